"""What a KV-sharing scheme means to a schedule: who reads whose cache, and which rows run."""

from __future__ import annotations

from dataclasses import dataclass

from descant.runtime.errors import DescantError

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Scheme:
    """A scheme.

    shared: all agents read one cache; each has its own otherwise.
    paired: decode runs an encoder and a decoder row a request over one reading of the KV, prefill a decoder row for
        each prompt's last token, and only decoder rows are adapted (ICaRus, section 3.3).
    targets: modules that its adapters update.
    """

    name: str
    shared: bool
    paired: bool
    targets: tuple[str, ...] = LINEAR


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("nonshared", shared=False, paired=False),
        Scheme("fullshared", shared=True, paired=False),
        Scheme(
            "icarus",
            shared=True,
            paired=True,
            targets=tuple(name for name in LINEAR if name not in ("k_proj", "v_proj")),
        ),
    )
}


def scheme_named(name: str) -> Scheme:
    """The scheme of that name.

    Raises:
        DescantError: no such scheme is modelled.
    """
    if name not in SCHEMES:
        raise DescantError(f"No model of the scheme {name}: choose one of {', '.join(SCHEMES)}.")
    return SCHEMES[name]

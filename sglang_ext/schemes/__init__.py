"""KV-sharing schemes, by the name that --kv-sharing takes."""

from descant.sglang_ext.schemes.base import Scheme
from descant.sglang_ext.schemes.fullshared import FullShared
from descant.sglang_ext.schemes.icarus import Icarus
from descant.sglang_ext.schemes.nonshared import NonShared

SCHEMES: dict[str, Scheme] = {scheme.name: scheme for scheme in (NonShared(), Icarus(), FullShared())}

__all__ = ["SCHEMES", "Scheme", "scheme_named"]


def scheme_named(name: str) -> Scheme:
    """The scheme called `name`.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    try:
        return SCHEMES[name]
    except KeyError:
        raise ValueError(f"--kv-sharing {name!r} is unknown; choose one of {', '.join(SCHEMES)}.") from None

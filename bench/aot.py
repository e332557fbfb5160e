"""Compile the Triton kernels ahead of time and print what each takes of a GPU, as Markdown. Needs no GPU.

Run as `python bench/aot.py`. A cell has registers a thread and shared memory a block, then what spilled, if anything.
"""

from __future__ import annotations

from descant.kernels.aot import SHARED_MEMORY, Resources, resources
from descant.kernels.paired.variants import Needed, paired_variants


def _cell(taken: Resources) -> str:
    spilled = f", **{taken.spilled} B spilled**" if taken.spilled else ""
    return f"{taken.registers} / {taken.shared / 1024:.1f} KB{spilled}"


def _row(needed: Needed) -> list[str]:
    variant = needed.variant
    constants = dict(variant.constants)
    return [
        variant.kernel.__name__.removesuffix("_kernel"),
        ", ".join(needed.models),
        str(needed.dtype).removeprefix("torch."),
        str(constants["HEAD_DIM"]),
        str(constants.get("GROUP_TILE", "")),
        str(variant.num_warps),
        *(_cell(resources(variant, capability)) for capability in SHARED_MEMORY),
    ]


def main() -> None:
    header = ["kernel", "models", "dtype", "d", "group tile", "warps", *(f"sm_{cc}" for cc in SHARED_MEMORY)]
    print("|", " | ".join(header), "|")
    print("|", " | ".join("---" for _ in header), "|")
    for needed in paired_variants():
        print("|", " | ".join(_row(needed)), "|", flush=True)


if __name__ == "__main__":
    main()

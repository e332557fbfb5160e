"""What bench/cpu.py makes of its measurements: ratios, verdicts and tables, as Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BYTES = {"bfloat16": 2, "float32": 4}
POOL_TOKENS = 16384
OTHERS = 0.1  # part of the cores: a busy process stalls every operator that shares its work among all cores

Figures = Mapping[str, Sequence[float]]  # what was measured, in seconds or bytes a second: one value a repeat


@dataclass(frozen=True)
class Sizes:
    """Tokens: decoded in a step's measurement; prefilled; cached before a prefill of `suffix` new ones."""

    decoded: int = 64
    prefilled: int = 1024
    prefix: int = 2000
    suffix: int = 64


QUICK = Sizes(decoded=16, prefilled=256, prefix=500, suffix=64)


@dataclass(frozen=True)
class Row:
    """A line of a table: one value a repeat, and the bound that their median should keep."""

    what: str
    values: Sequence[float]
    at_least: float | None = None
    at_most: float | None = None

    @property
    def target(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return "" if self.at_most is None else f"≤ {self.at_most:g}"

    @property
    def verdict(self) -> str:
        median = statistics.median(self.values)
        if self.at_least is None and self.at_most is None:
            return ""
        kept = (self.at_least is None or median >= self.at_least) and (self.at_most is None or median <= self.at_most)
        return "met" if kept else "**missed**"

    def cells(self) -> list[str]:
        figures = (statistics.median(self.values), min(self.values), max(self.values))
        return [self.what, *map(number, figures), self.target, self.verdict]


def number(value: float) -> str:
    """Three digits, or all of those before the point."""
    return f"{value:,.{max(0, 2 - math.floor(math.log10(value)))}f}" if value > 0 else f"{value:.2f}"


def table(title: str, rows: Sequence[Row]) -> str:
    head = [title, "median", "min", "max", "target", ""]
    lines = [head, ["---", *["---:"] * 4, "---"], *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Each repeat's ratio."""
    return [a / b for a, b in zip(above, below, strict=True)]


def rates(seconds: Sequence[float], tokens: int = 1) -> list[float]:
    """Tokens a second, if `tokens` take these seconds."""
    return [tokens / it for it in seconds]


def decode_rows(figures: Figures, weights: int) -> list[Row]:
    """`weights`: bytes of the model, all of which a step reads."""
    one, plain, eight = figures["step 1"], figures["plain step 1"], figures["step 8"]
    bf16, f32 = figures["Transformers bfloat16 step"], figures["Transformers float32 step"]
    limit = max(figures["stream"]) / weights
    return [
        Row("1 stream with an adapter", rates(one)),
        Row("the same, SGLang's own layers", rates(plain)),
        Row("Transformers with PEFT, bfloat16", rates(bf16)),
        Row("Transformers with PEFT, float32", rates(f32)),
        Row("8 streams with 3 adapters, sum", rates(eight, 8)),
        Row("ratio: 1 stream to SGLang's own layers", ratios(plain, one)),
        Row("ratio: 1 stream to Transformers, bfloat16", ratios(bf16, one), at_least=1.5),
        Row("ratio: 1 stream to Transformers, float32", ratios(f32, one)),
        Row(f"ratio: 1 stream to the bandwidth limit, {limit:.1f}", [it / limit for it in rates(one)], at_least=0.5),
        Row("ratio: 8 streams to 1", ratios(rates(eight, 8), rates(one)), at_least=4),
    ]


def prefill_rows(figures: Figures, sizes: Sizes, dtype: str) -> list[Row]:
    """The target is on Transformers in the dtype that was served."""
    new, theirs = sizes.prefilled, {it: figures[f"Transformers {it} prefill"] for it in BYTES}
    return [
        Row(f"{new:,} new, with an adapter", rates(figures["prefill"], new)),
        *(Row(f"Transformers with PEFT, {it}", rates(seconds, new)) for it, seconds in theirs.items()),
        *(
            Row(f"ratio: to Transformers, {it}", ratios(seconds, figures["prefill"]), 1.0 if it == dtype else None)
            for it, seconds in theirs.items()
        ),
    ]


def suffix_rows(figures: Figures, sizes: Sizes) -> list[Row]:
    over, alone = figures["suffix over prefix"], figures["suffix alone"]
    return [
        Row(f"{sizes.suffix} new over {sizes.prefix:,} cached", [it * 1e3 for it in over]),
        Row(f"{sizes.suffix} new over none", [it * 1e3 for it in alone]),
        Row("ratio", ratios(over, alone), at_most=1.5),
    ]


def paired_rows(figures: Figures) -> list[Row]:
    rows = []
    for batch, most in ((1, 1.35), (16, 1.6)):
        paired, base = figures[f"step {batch}"], figures[f"base step {batch}"]
        rows += [
            Row(f"batch {batch}, adapters (paired)", [it * 1e3 for it in paired]),
            Row(f"batch {batch}, base model alone", [it * 1e3 for it in base]),
            Row(f"batch {batch}, ratio", ratios(paired, base), at_most=most),
        ]
    return rows


def report(result: Mapping[str, Any], repeats: int) -> str:
    """The run as Markdown."""
    figures, sizes, mib = result["figures"], Sizes(**result["sizes"]), 1 << 20
    memory = (
        f"Memory: the scheduler's peak {result['peak bytes'] / mib:,.0f} MiB, of which weights "
        f"{result['weight bytes'] / mib:,.0f} MiB and the KV pool {result['pool bytes'] / mib:,.0f} MiB "
        f"({POOL_TOKENS:,} tokens)."
    )
    remarks = ["Quick: fewer tokens than the targets are meant for."] if result["quick"] else []
    if result["others"] > OTHERS:
        remarks.append("**The machine was not idle: measure again.**")
    return "\n\n".join(
        [
            f"{result['model']}, {result['dtype']}, {repeats} repeats; {result['cores']} cores, "
            f"{result['instructions']}; {', '.join(f'{k} {v}' for k, v in result['versions'].items())}; threads: "
            f"server {result['server threads']}, Transformers {result['Transformers threads']}; operators "
            f"{result['operators']}; stream rate {max(figures['stream']) / 1e9:.1f} GB/s; "
            f"others took {result['others']:.0%} of the cores.",
            *remarks,
            table("decode, tokens/s", decode_rows(figures, result["weight bytes"])),
            table("prefill, tokens/s", prefill_rows(figures, sizes, result["dtype"])),
            table("time to the first token, ms", suffix_rows(figures, sizes)),
            table("decode step, ms", paired_rows(figures)),
            memory,
        ]
    )

"""Measure paired decode on a CUDA device: one call over joined heads against two calls, as Markdown.

Run as `python bench/kernels.py`; needs PyTorch and Triton, and FlashInfer where it is to be measured. The two calls are
the same implementation's, each over the H heads of the encoder's or the decoder's queries. A time is the median, by
CUDA events, of replays of a captured graph, as a server runs it; the device's cache is overwritten between them. GB/s
counts one reading of the keys and values, and the last column says what part that is of a copy's bandwidth, measured
in the same run. Slots are scattered one by one over the pool, the worst that a radix cache can do.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import torch

from descant.kernels.paired import PairedShape, installed, join_rows, paired_decode, split_rows
from descant.kernels.paired.shapes import MODELS, Model

CUDA = torch.device("cuda")
DTYPE = torch.bfloat16
MEASURED = ("Llama-3.1-8B", "Qwen3-14B")  # Qwen3-8B has the shape of the first
BATCHES = (1, 4, 16, 64)
LENGTHS = (1024, 4096, 16384, 65536)
REPLAYS = 20


def median_ms(call: Callable[[], object]) -> float:
    """The median time of one replay of `call`, captured, in milliseconds."""
    call()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    cold = torch.empty(256 * 1024 * 1024, dtype=torch.uint8, device=CUDA)  # more than any device's L2
    times = []
    for _ in range(REPLAYS):
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        cold.zero_()
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after))
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Bytes read and written a second by a large copy."""
    source = torch.zeros(1 << 30, dtype=torch.uint8, device=CUDA)
    target = torch.empty_like(source)
    return 2 * source.numel() / (median_ms(lambda: target.copy_(source)) / 1e3)


def kv_bytes(model: Model, batch: int, length: int) -> int:
    """One layer's keys and values of a whole step."""
    return 2 * batch * length * model.kv_heads * model.head_dim * DTYPE.itemsize


def measure(name: str, model: Model, batch: int, length: int) -> tuple[float, float, float]:
    """Milliseconds of the joined call, of the joined call with joining and splitting, and of the two calls."""
    total = batch * length
    keys, values = torch.randn(2, total, model.kv_heads, model.head_dim, dtype=DTYPE, device=CUDA)
    encoder, decoder = torch.randn(2, batch, model.heads, model.head_dim, dtype=DTYPE, device=CUDA)
    starts = torch.arange(0, total + 1, length, dtype=torch.int32, device=CUDA)
    slots = torch.randperm(total, dtype=torch.int32, device=CUDA)

    def planned(shape: PairedShape) -> Callable[[torch.Tensor], torch.Tensor]:
        implementation = paired_decode(name, shape, CUDA)
        implementation.plan(starts, slots)
        return lambda queries: implementation.run(queries, keys, values)

    joined, single = planned(model.joined(DTYPE)), planned(model.single(DTYPE))
    rows = torch.stack([encoder, decoder], dim=1).flatten(0, 1)
    queries = join_rows(rows, model.kv_heads)
    return (
        median_ms(lambda: joined(queries)),
        median_ms(lambda: split_rows(joined(join_rows(rows, model.kv_heads)), model.kv_heads)),
        median_ms(lambda: (single(encoder), single(decoder))),
    )


def main() -> int:
    if not torch.cuda.is_available():
        print("bench/kernels.py measures on a CUDA device, and PyTorch finds none.", file=sys.stderr)
        return 2
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, a copy's bandwidth {bandwidth / 1e9:.0f} GB/s, {DTYPE}, one layer\n")
    columns = ("model", "B", "L", "kernel", "joined ms", "with join and split ms", "two calls ms", "ratio", "GB/s")
    print("|", " | ".join((*columns, "of a copy")), "|")
    print("|", " | ".join("---" for _ in (*columns, "")), "|")
    for model in (it for it in MODELS if it.name in MEASURED):
        for batch in BATCHES:
            for length in LENGTHS:
                read = kv_bytes(model, batch, length)
                torch.cuda.empty_cache()
                # A tenth more for the slots, and what the buffers take.
                if 1.1 * read + (2 << 30) > torch.cuda.mem_get_info()[0]:
                    print(f"| {model.name} | {batch} | {length} | does not fit | | | | | | |")
                    continue
                for name in installed():
                    joined, whole, two = measure(name, model, batch, length)
                    rate = read / (joined / 1e3)
                    times = f"{joined:.3f} | {whole:.3f} | {two:.3f} | {two / joined:.2f}"
                    print(
                        f"| {model.name} | {batch} | {length} | {name} | {times} | {rate / 1e9:.0f} "
                        f"| {rate / bandwidth:.0%} |",
                        flush=True,
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""FlashInfer as an implementation of paired decode: what its planner is told, and what it cannot serve."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from flashinfer_cpu import Module, flashinfer_on_cpu

from descant.kernels.paired import PairedShape, paired_decode
from descant.kernels.paired.flashinfer import needs_tensor_cores

TOLERANCE = 2e-2  # bfloat16 rounding of values of size one
CUDA = torch.device("cuda")


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Module]:
    with flashinfer_on_cpu(monkeypatch) as module:
        yield module


def _shape(group: int, dtype: torch.dtype = torch.bfloat16, head_dim: int = 64) -> PairedShape:
    return PairedShape(query_heads=2 * group * 2, kv_heads=2, head_dim=head_dim, scaling=0.2, dtype=dtype)


@pytest.mark.parametrize(("group", "kind"), [(1, "cuda cores"), (2, "tensor cores"), (5, "tensor cores")])
def test_all_joined_heads_are_planned_and_attended(flashinfer: Module, group: int, kind: str) -> None:
    shape = _shape(group)
    ours, definition = paired_decode("flashinfer", shape, CUDA), paired_decode("reference", shape, torch.device("cpu"))
    starts = torch.tensor([0, 3, 4, 9], dtype=torch.int32)
    slots = torch.randperm(20)[:9]  # int64: FlashInfer takes int32 only
    for decode in (ours, definition):
        decode.plan(starts, slots)
    assert (flashinfer.last.kind, flashinfer.last.heads, flashinfer.last.kv_heads) == (kind, 4 * group, 2)
    queries = torch.randn(3, 4 * group, 64, dtype=torch.bfloat16)
    keys, values = torch.randn(2, 20, 2, 64, dtype=torch.bfloat16)
    error = (ours.run(queries, keys, values) - definition.run(queries, keys, values)).abs().max()
    assert error < TOLERANCE


def test_another_number_of_heads_than_planned_is_refused(flashinfer: Module) -> None:
    decode = paired_decode("flashinfer", _shape(2), CUDA)
    decode.plan(torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0]))
    pool = torch.zeros(1, 2, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="4 query heads came where 8 were planned"):
        decode.run(torch.zeros(1, 4, 64, dtype=torch.bfloat16), pool, pool)


@pytest.mark.parametrize(
    ("shape", "device", "reason"),
    [
        (_shape(1), "cpu", "runs on CUDA, not on cpu"),
        (_shape(1, torch.float32), "cuda", "no kernel for float32, only for float16 and bfloat16"),
        (_shape(1, head_dim=80), "cuda", "no kernel for heads of 80, only for 64, 128, 256"),
    ],
)
def test_what_it_cannot_serve_is_refused(shape: PairedShape, device: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^Paired decode cannot use 'flashinfer': .*{reason}; choose 'triton'.$"):
        paired_decode("flashinfer", shape, torch.device(device))


def test_every_group_goes_to_a_kernel_that_has_it() -> None:
    """FlashInfer's CUDA-core kernel raises at `plan` for a group that its source does not list."""
    from flashinfer.jit import env

    source = (Path(env.FLASHINFER_INCLUDE_DIR) / "flashinfer/utils.cuh").read_text()
    listed = source[source.index("#define DISPATCH_GQA_GROUP_SIZE") : source.index('"Unsupported group_size')]
    groups = {int(group) for group in re.findall(r"group_size == (\d+)", listed)}
    assert groups == {1, 2, 3, 4, 6, 8, 16}
    assert {group for group in range(1, 129) if not needs_tensor_cores(group)} <= groups


def test_flashinfer_knows_no_float32() -> None:
    """If it learns it, the refusal can go."""
    from flashinfer.jit.utils import filename_safe_dtype_map

    assert torch.float32 not in filename_safe_dtype_map

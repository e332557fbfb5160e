"""Paired decode attention on FlashInfer's batch decode, pages of one slot. The only file in `kernels/` that knows it.

FlashInfer plans a step for a number of query heads and never checks it when it runs: planned with H and run with 2H, it
returns with half of its output unwritten (seen in 0.7.2). The joined head count 2H must therefore reach `plan`.
"""

from __future__ import annotations

import torch

from descant.kernels.paired.base import PairedDecode, PairedShape

DTYPES = (torch.float16, torch.bfloat16)
# The head sizes that FlashInfer itself ships decode and prefill kernels for (flashinfer/aot.py, fa2_head_dim).
HEAD_DIMS = (64, 128, 256)
# FlashInfer's advice; it holds the partial results of requests whose KV is split over several blocks.
WORKSPACE_BYTES = 128 * 1024 * 1024


def needs_tensor_cores(group: int) -> bool:
    """Whether decode with `group` query heads per KV head (joined: 2G) should take the tensor-core kernel.

    The CUDA-core kernel exists for groups of 1, 2, 3, 4, 6, 8 and 16 only (flashinfer/utils.cuh), and from 4 on its
    arithmetic costs more than reading the KV. The tensor-core kernel takes every group; up to 16 rows fit one tile.
    """
    return group >= 4


def unsupported(head_dim: int, dtype: torch.dtype) -> str | None:
    """Why FlashInfer cannot attend with this head size and data type, or None. Every group can be served."""
    if dtype not in DTYPES:
        return f"FlashInfer has no kernel for {str(dtype).removeprefix('torch.')}, only for float16 and bfloat16"
    if head_dim not in HEAD_DIMS:
        return f"FlashInfer has no kernel for heads of {head_dim}, only for {', '.join(map(str, HEAD_DIMS))}"
    return None


class FlashInferDecode(PairedDecode):
    """float16 or bfloat16, heads of 64, 128 or 256, any group, on CUDA.

    Raises:
        ValueError: on construction, for anything else.
    """

    def __init__(self, shape: PairedShape, device: torch.device) -> None:
        super().__init__(shape, device)
        reason = unsupported(shape.head_dim, shape.dtype)
        if device.type != "cuda":
            reason = f"FlashInfer runs on CUDA, not on {device.type}"
        if reason:
            raise ValueError(f"Paired decode cannot use 'flashinfer': {reason}; choose 'triton'.")
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper

        self.wrapper = BatchDecodeWithPagedKVCacheWrapper(
            torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device),
            "NHD",
            use_tensor_cores=needs_tensor_cores(shape.group),
            backend="fa2",
        )

    def plan(self, slot_starts: torch.Tensor, slots: torch.Tensor) -> None:
        requests = slot_starts.numel() - 1
        self.wrapper.plan(
            slot_starts,
            slots.to(torch.int32),
            torch.ones(requests, dtype=torch.int32, device=slot_starts.device),  # tokens in each last page
            self.shape.query_heads,
            self.shape.kv_heads,
            self.shape.head_dim,
            1,
            q_data_type=self.shape.dtype,
            kv_data_type=self.shape.dtype,
            sm_scale=self.shape.scaling,
        )

    def run(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        if queries.shape[1] != self.shape.query_heads:  # FlashInfer would not say
            raise ValueError(f"{queries.shape[1]} query heads came where {self.shape.query_heads} were planned.")
        return self.wrapper.run(queries, (keys.unsqueeze(1), values.unsqueeze(1)))

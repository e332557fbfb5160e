"""BatchShape from SGLang's ForwardBatch.

Only fields are read that every copy of a ForwardBatch keeps: the runner copies it between LoRA preparation and the
model's forward, and anything hung on it by then is lost.
"""

from __future__ import annotations

from typing import Any

from descant.sglang_ext.rows import BatchShape


def batch_shape(forward_batch: Any) -> BatchShape:
    """The shape of a decode, extend or mixed batch (a mixed batch's decode tails are one-token extends)."""
    adapters = forward_batch.lora_ids or []
    if forward_batch.forward_mode.is_decode_or_idle():
        return BatchShape.decode(adapters)
    return BatchShape.extend(
        adapters,
        forward_batch.extend_seq_lens_cpu,
        forward_batch.extend_logprob_start_lens_cpu if forward_batch.return_logprob else None,
    )

"""What a plan is derived from, out of SGLang's ForwardBatch.

Only fields are read that every copy of a ForwardBatch keeps: the runner copies it between LoRA preparation and the
model's forward, and anything hung on it by then is lost.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.model_executor.runner_utils.capture_mode import get_capture_lora_variant

from descant.sglang_ext.rows import DecodeBatch, ExtendBatch, RowBatch


def row_batch(forward_batch: Any) -> RowBatch:
    """Of a decode, extend or mixed batch (a mixed batch's decode tails are one-token extends)."""
    adapters = tuple(forward_batch.lora_ids or ())
    if forward_batch.forward_mode.is_decode_or_idle():
        # SGLang captures each decode graph twice where a LoRA backend asks for it (SharingLoRAManager does), and
        # replays "lora" for batches in which some request has an adapter. At capture no request has one yet.
        capturing = get_capture_lora_variant() == "lora"
        return DecodeBatch(adapters, adapted=capturing or any(adapters))
    return ExtendBatch.build(
        adapters,
        forward_batch.extend_seq_lens_cpu,
        forward_batch.extend_logprob_start_lens_cpu if forward_batch.return_logprob else None,
    )

"""What the engine has to compute, written a second time on Transformers and PEFT.

ICaRus (design.md, "ICaRus, exactly") needs two passes over the whole sequence. The encoder pass runs the base model
and keeps each layer's K and V, as attention sees them (after the rotation). The decoder pass runs the adapted model
from the embedding up, and its queries attend to the encoder's K and V, their own position included. Nothing here is
shared with the engine, and nothing is fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM

_ATTENTION = "descant_reference"
KV = list[tuple[Tensor, Tensor]]  # one (K, V) a layer, each [1, Hkv, L, d], K after the rotation


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    *,
    own_kv: KV,
    encoder_kv: KV | None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention of the last M positions of L: query [1, H, M, d], key and value [1, Hkv, L, d] -> [1, M, H, d].

    Appends this layer's K and V to `own_kv`, and attends to `encoder_kv` in their place where that is given.
    """
    own_kv.append((key, value))
    if encoder_kv is not None:
        key, value = encoder_kv[int(module.layer_idx)]
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    scores = query @ key.transpose(-1, -2) * scaling
    ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(diagonal=1 + scores.shape[-1] - scores.shape[-2])
    weights = scores.masked_fill(ahead, float("-inf")).softmax(dim=-1)
    return (weights @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register(_ATTENTION, _attention)


class Reference:
    """One base model and its adapters.

    Args:
        model_path: an ordinary checkpoint.
        adapters: a PEFT adapter's folder by the name the engine serves it under.
    """

    def __init__(self, model_path: Path, adapters: Mapping[str, Path] | None = None) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            model_path, dtype=torch.float32, attn_implementation=_ATTENTION
        )
        self.model.eval()
        for name, path in (adapters or {}).items():
            self.add_adapter(name, path)

    def add_adapter(self, name: str, path: Path) -> None:
        """Load the adapter at `path` as `name`, in place of any adapter of that name."""
        if not isinstance(self.model, PeftModel):
            self.model = PeftModel.from_pretrained(self.model, path, adapter_name=name).eval()
            return
        if name in self.model.peft_config:
            self.model.delete_adapter(name)
        self.model.load_adapter(path, adapter_name=name)
        self.model.eval()

    def icarus(self, tokens: Sequence[int], adapter: str | None) -> Tensor:
        """Log-probabilities [L, V] after each of `tokens` [L], as ICaRus defines them for `adapter` (None: base)."""
        encoder, encoder_kv = self._forward(tokens, None)
        if adapter is None:
            return encoder
        return self._forward(tokens, adapter, encoder_kv)[0]

    def conventional(self, tokens: Sequence[int], adapter: str | None) -> Tensor:
        """Log-probabilities [L, V] of ordinary LoRA: the adapted model reads the K and V that it wrote itself."""
        return self._forward(tokens, adapter)[0]

    def greedy(self, prompt: Sequence[int], adapter: str | None, new_tokens: int) -> list[int]:
        """The `new_tokens` most likely tokens after `prompt` under ICaRus, everything computed again for each."""
        tokens = list(prompt)
        for _ in range(new_tokens):
            tokens.append(int(self.icarus(tokens, adapter)[-1].argmax()))
        return tokens[len(prompt) :]

    @torch.no_grad()
    def _forward(self, tokens: Sequence[int], adapter: str | None, encoder_kv: KV | None = None) -> tuple[Tensor, KV]:
        own_kv: KV = []
        with self._only(adapter):
            output = self.model(
                input_ids=torch.tensor([list(tokens)]), use_cache=False, own_kv=own_kv, encoder_kv=encoder_kv
            )
        return output.logits[0].log_softmax(dim=-1), own_kv

    def _only(self, adapter: str | None) -> AbstractContextManager[Any]:
        if adapter is not None:
            self.model.set_adapter(adapter)
            return nullcontext()
        return self.model.disable_adapter() if isinstance(self.model, PeftModel) else nullcontext()

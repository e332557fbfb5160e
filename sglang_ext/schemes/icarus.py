"""icarus: the base model writes the KV, adapters read it (ICaRus, arXiv 2603.13281, equations 4 and 5)."""

from descant.sglang_ext.rows import RowBatch, RowPlan, paired_rows
from descant.sglang_ext.schemes.base import Scheme

# The encoder, adapter off, computes K and V: an update of these projections can have no effect.
KV_MODULES = frozenset({"k_proj", "v_proj", "qkv_proj"})
# The logits are computed once per request row, after the paired forward, without adapters.
HEAD_MODULES = frozenset({"lm_head", "unembed_tokens"})


class Icarus(Scheme):
    name = "icarus"
    summary = "the base model writes the KV cache, every adapter reads it; exact for adapters trained that way"
    shares_namespace = True
    pairs_rows = True

    def plan(self, batch: RowBatch) -> RowPlan | None:
        return paired_rows(batch)

    def dropped_modules(self, modules: set[str]) -> set[str]:
        return modules & KV_MODULES

    def refuse_adapter(self, name: str, modules: set[str]) -> str | None:
        if head := modules & HEAD_MODULES:
            return (
                f"Adapter '{name}' updates {_names(head)}, which --kv-sharing icarus cannot serve yet: train without "
                f"it, or serve this adapter with --kv-sharing nonshared."
            )
        if kv := self.dropped_modules(modules):
            return (
                f"Adapter '{name}' updates {_names(kv)}, which has no effect under --kv-sharing icarus because the "
                f"base model writes K and V: train it on others (q_proj, o_proj, gate_proj, up_proj, down_proj), "
                f"serve it with --kv-sharing nonshared, or drop these updates knowingly with --allow-kv-adapters."
            )
        return None


def _names(modules: set[str]) -> str:
    return ", ".join(sorted(modules))

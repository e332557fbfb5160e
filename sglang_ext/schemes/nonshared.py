"""nonshared: upstream SGLang. Each adapter has a namespace and writes its own KV."""

from descant.sglang_ext.rows import RowBatch, RowPlan
from descant.sglang_ext.schemes.base import Scheme


class NonShared(Scheme):
    name = "nonshared"
    summary = "upstream SGLang: each adapter keeps its own KV cache"
    shares_namespace = False

    def plan(self, batch: RowBatch) -> RowPlan | None:
        return None

"""fullshared: one namespace; whoever comes first writes, adapted (FullShared, PReCache, section 2.2)."""

from descant.sglang_ext.rows import RowBatch, RowPlan
from descant.sglang_ext.schemes.base import Scheme


class FullShared(Scheme):
    name = "fullshared"
    summary = "a baseline: adapters read whatever KV lies there, whoever wrote it"
    shares_namespace = True
    warning = (
        "--kv-sharing fullshared lets an adapter read KV that another adapter wrote, which costs accuracy and makes "
        "answers depend on the order of requests; use it as a baseline only (icarus shares exactly)."
    )

    def plan(self, batch: RowBatch) -> RowPlan | None:
        return None

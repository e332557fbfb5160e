"""Row plans: every adapter's logits come from a decoder row of its own, and nothing else is computed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from descant.sglang_ext.rows import DecodeBatch, DecodeRows, ExtendBatch, ExtendRows, Segment, paired_rows


def test_decode_pairs_every_request_of_a_batch_that_has_an_adapter() -> None:
    plan = paired_rows(DecodeBatch(("a", None, "b"), adapted=True))
    assert plan == DecodeRows(("a", None, "b"))
    assert [segment.adapter for segment in plan.segments] == [None, "a", None, None, None, "b"]
    assert all(segment.length == 1 for segment in plan.segments)


def test_a_decode_graph_is_planned_for_adapters_to_come() -> None:
    plan = paired_rows(DecodeBatch((None, None), adapted=True))
    assert plan is not None
    assert plan.segments == (Segment(None, 1),) * 4


def test_extend_repeats_each_adapters_last_token() -> None:
    plan = paired_rows(ExtendBatch.build([None, "a"], [3, 5], None))
    assert plan == ExtendRows(8, (7,), (0, 1), (Segment(None, 8), Segment("a", 1)))


def test_input_logprobs_need_a_decoder_row_for_each_position() -> None:
    plan = paired_rows(ExtendBatch.build(["a", "b"], [4, 3], [1, 3]))
    assert isinstance(plan, ExtendRows)
    assert plan.decoder_tokens == (1, 2, 3, 6)  # b starts past its end: the last token still gives the next one
    assert plan.decoder_counts == (3, 1)


def test_a_batch_without_adapters_is_upstreams() -> None:
    assert paired_rows(DecodeBatch((None, None), adapted=False)) is None
    assert paired_rows(DecodeBatch((), adapted=False)) is None
    assert paired_rows(ExtendBatch.build([None], [3], None)) is None


@st.composite
def extends(draw: st.DrawFn) -> ExtendBatch:
    requests = draw(
        st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.integers(1, 9)), min_size=1, max_size=6)
    )
    starts = [draw(st.integers(0, length)) for _, length in requests]
    return ExtendBatch.build([a for a, _ in requests], [n for _, n in requests], starts)


@given(extends())
def test_a_plan_covers_the_logits_that_are_wanted_and_no_more(batch: ExtendBatch) -> None:
    plan = paired_rows(batch)
    wanted: list[tuple[int, str]] = []
    first = 0
    for adapter, length, start in zip(batch.adapters, batch.new_tokens, batch.logit_starts, strict=True):
        assert length > start
        wanted += [(first + i, adapter) for i in range(start, length) if adapter is not None]
        first += length
    if not wanted:
        assert plan is None
        return
    assert isinstance(plan, ExtendRows)
    rows = [segment.adapter for segment in plan.segments for _ in range(segment.length)]
    assert len(rows) == plan.encoder_rows + len(plan.decoder_tokens)
    assert rows[: plan.encoder_rows] == [None] * sum(batch.new_tokens)
    assert list(zip(plan.decoder_tokens, rows[plan.encoder_rows :], strict=True)) == wanted
    assert sum(plan.decoder_counts) == len(wanted)

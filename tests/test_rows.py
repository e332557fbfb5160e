"""RowPlan: every adapter's logits come from a decoder row of its own, and nothing else is computed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from descant.sglang_ext.rows import BatchShape, RowPlan, Segment, paired_rows


def test_decode_pairs_the_requests_that_have_an_adapter() -> None:
    plan = paired_rows(BatchShape.decode(["a", None, "b", "b"]))
    assert plan == RowPlan(
        encoder_rows=4,
        decoder_tokens=(0, 2, 3),
        decoder_counts=(1, 0, 1, 1),
        segments=(Segment(None, 4), Segment("a", 1), Segment("b", 2)),
    )


def test_extend_repeats_each_adapters_last_token() -> None:
    plan = paired_rows(BatchShape.extend([None, "a"], [3, 5], None))
    assert plan == RowPlan(8, (7,), (0, 1), (Segment(None, 8), Segment("a", 1)))


def test_input_logprobs_need_a_decoder_row_for_each_position() -> None:
    plan = paired_rows(BatchShape.extend(["a", "b"], [4, 3], [1, 3]))
    assert plan is not None
    assert plan.decoder_tokens == (1, 2, 3, 6)  # b starts past its end: the last token still gives the next one
    assert plan.decoder_counts == (3, 1)


def test_a_batch_without_adapters_is_upstreams() -> None:
    assert paired_rows(BatchShape.decode([None, None])) is None
    assert paired_rows(BatchShape.decode([])) is None


@st.composite
def extends(draw: st.DrawFn) -> BatchShape:
    requests = draw(
        st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.integers(1, 9)), min_size=1, max_size=6)
    )
    starts = [draw(st.integers(0, length)) for _, length in requests]
    return BatchShape.extend([a for a, _ in requests], [n for _, n in requests], starts)


@given(extends())
def test_a_plan_covers_the_logits_that_are_wanted_and_no_more(shape: BatchShape) -> None:
    plan = paired_rows(shape)
    wanted: list[tuple[int, str]] = []
    first = 0
    for adapter, length, start in zip(shape.adapters, shape.new_tokens, shape.logit_starts, strict=True):
        assert length > start
        wanted += [(first + i, adapter) for i in range(start, length) if adapter is not None]
        first += length
    if not wanted:
        assert plan is None
        return
    assert plan is not None
    rows = [segment.adapter for segment in plan.segments for _ in range(segment.length)]
    assert len(rows) == plan.total_rows
    assert rows[: plan.encoder_rows] == [None] * sum(shape.new_tokens)
    assert list(zip(plan.decoder_tokens, rows[plan.encoder_rows :], strict=True)) == wanted
    assert sum(plan.decoder_counts) == len(wanted)

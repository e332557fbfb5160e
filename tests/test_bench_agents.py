"""`descant bench agents`: schedules, the load on a clock of its own, measures by hand, resumption, the real engine."""

from __future__ import annotations

import asyncio
import json
import statistics
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import tiny
import uvloop
from commands import here, refused
from deployments import on
from engine import Server
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from descant.runtime.errors import DescantError
from descant.workflows.bench import traces
from descant.workflows.bench.cells import Book, Cell, Key, read
from descant.workflows.bench.load import Reply, run_load
from descant.workflows.bench.measures import Spread, by_turn, held_by_trajectory, measures, percentile, spreads
from descant.workflows.bench.peak import doubling, peak
from descant.workflows.bench.plots import plot
from descant.workflows.bench.recipe import Recipe
from descant.workflows.bench.report import render
from descant.workflows.bench.row import Row
from descant.workflows.bench.schedule import Turn, Workflow
from descant.workflows.bench.search import next_cell
from descant.workflows.bench.sweep import Target, own_servers, sweep
from descant.workflows.bench.vocabulary import Vocabulary, vocabulary_of
from descant.workflows.bench.watch import EVICTED, USED, Sample, Watched, parse

T = TypeVar("T")
VOCABULARY = Vocabulary(1000, frozenset(range(10)))
RECIPE = Recipe(
    schemes=("nonshared", "icarus"),
    agents=(2, 4),
    trace=traces.react(3),
    choice="round-robin",
    scale=1 / 64,
    workflows=2,
    seed=0,
    repeats=2,
    rates=(),
    start=1.0,
    fill=False,
    pool_workflows=4,
    max_running=8,
)


class FakeClock(asyncio.SelectorEventLoop):
    """An event loop on which waiting takes no time: its clock jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        selector: Any = self._selector  # type: ignore[attr-defined]
        select = selector.select

        def jump(timeout: float | None) -> Any:
            assert timeout is not None, "nothing is left to wait for: a deadlock"
            self.now += timeout
            return select(0)

        selector.select = jump

    def time(self) -> float:
        return self.now


def on_fake_clock(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=FakeClock) as runner:
        return runner.run(work)


class FakeServer:
    """Answers after `ttft` and a tenth of a second a token. requests: agent, prompt, tokens asked for."""

    def __init__(self, ttft: float = 0.5) -> None:
        self.ttft = ttft
        self.requests: list[tuple[int, list[int], int]] = []

    async def send(self, agent: int, ids: Sequence[int], decode: int) -> Reply:
        self.requests.append((agent, list(ids), decode))
        await asyncio.sleep(self.ttft + 0.1 * (decode - 1))
        return Reply([500 + len(ids) % 100] * decode, self.ttft, len(ids), len(ids) // 2, len(ids) // 4)


def workflow(number: int, arrival: float, *turns: tuple[int, int, int]) -> Workflow:
    return Workflow(number, arrival, tuple(Turn(*turn) for turn in turns))


# The load


def test_every_workflow_starts_when_it_is_due_however_slow_the_server_is() -> None:
    load = [workflow(number, arrival, (0, 4, 1)) for number, arrival in enumerate((0.0, 1.5, 1.75, 4.0))]
    rows = on_fake_clock(run_load(load, FakeServer(ttft=100).send, VOCABULARY, 0))
    assert [row.sent for row in rows] == pytest.approx([0, 1.5, 1.75, 4.0])
    assert [row.due for row in rows] == [0, 1.5, 1.75, 4.0]
    assert [row.first for row in rows] == pytest.approx([100, 101.5, 101.75, 104])


def test_a_turn_reads_all_that_was_said_before_it_and_new_ids() -> None:
    load = [workflow(0, 2.0, (1, 5, 3), (0, 7, 2), (1, 0, 4))]
    server = FakeServer()
    ended: list[int] = []
    rows = on_fake_clock(run_load(load, server.send, VOCABULARY, 0, lambda: ended.append(1)))
    first, second, third = (prompt for _, prompt, _ in server.requests)
    assert second[:8] == [*first, *[505] * 3]
    assert third == [*second, 515, 515]
    assert [(row.turn, row.agent, row.prompt, row.output) for row in rows] == [
        (0, 1, 5, 3),
        (1, 0, 15, 2),
        (2, 1, 17, 4),
    ]
    assert [(row.cached, row.cross_agent) for row in rows] == [(2, 1), (7, 3), (8, 4)]
    assert [row.due for row in rows] == pytest.approx([2.0, 2.7, 3.3])
    assert [row.first for row in rows] == pytest.approx([2.5, 3.2, 3.8])
    assert [row.end for row in rows] == pytest.approx([2.7, 3.3, 4.1])
    assert len(ended) == 1


def test_new_ids_are_those_of_the_workflow_and_turn_alone_and_none_is_special() -> None:
    load = [workflow(number, float(number), (0, 200, 1), (0, 200, 1)) for number in range(2)]
    slow, fast = FakeServer(ttft=9), FakeServer(ttft=0.1)
    for server in (slow, fast):
        on_fake_clock(run_load(load, server.send, VOCABULARY, 5))
    new = [sorted(tuple(prompt[-200:]) for _, prompt, _ in server.requests) for server in (slow, fast)]
    assert new[0] == new[1]
    assert len(set(new[0])) == 4
    assert all(10 <= token < 1000 for prompt in new[0] for token in prompt)
    other = FakeServer()
    on_fake_clock(run_load(load, other.send, VOCABULARY, 6))
    assert not {tuple(prompt[-200:]) for _, prompt, _ in other.requests} & set(new[0])


def test_a_failed_request_ends_the_load_at_once() -> None:
    server = FakeServer()

    async def send(agent: int, ids: Sequence[int], decode: int) -> Reply:
        if len(server.requests) == 2:
            raise DescantError("The server broke off its answer.")
        return await server.send(agent, ids, decode)

    load = [workflow(number, 10.0 * number, (0, 4, 1)) for number in range(9)]
    with pytest.raises(DescantError, match="broke off"):
        on_fake_clock(run_load(load, send, VOCABULARY, 0))
    assert len(server.requests) == 2


@pytest.mark.parametrize(("prompt", "output"), [(4, 2), (3, 3), (5, 3)])
def test_an_answer_of_another_length_is_no_measurement(prompt: int, output: int) -> None:
    async def send(agent: int, ids: Sequence[int], decode: int) -> Reply:
        return Reply([1] * output, 0.1, prompt, 0, 0)

    with pytest.raises(DescantError, match="no measurement"):
        on_fake_clock(run_load([workflow(7, 0.0, (0, 4, 3))], send, VOCABULARY, 0))


# Schedules


def test_a_rate_changes_the_arrivals_alone_and_a_seed_all_that_is_drawn() -> None:
    trace, common = traces.react(), {"workflows": 50, "agents": 8, "choice": "random", "scale": 0.1}
    slow = traces.schedule(trace, **common, rate=0.5, seed=3)
    fast = traces.schedule(trace, **common, rate=2.0, seed=3)
    assert [one.turns for one in slow] == [one.turns for one in fast]
    assert [one.arrival for one in slow] == pytest.approx([4 * one.arrival for one in fast])
    other = traces.schedule(trace, **common, rate=2.0, seed=4)
    assert [one.turns for one in other] != [one.turns for one in fast]
    assert [one.arrival for one in other][1:] != [one.arrival for one in fast][1:]


def test_arrivals_are_a_poisson_process() -> None:
    times = traces.arrivals(4001, 2.0, 0)
    gaps = [after - before for before, after in pairwise(times)]
    assert times[0] == 0
    assert statistics.fmean(gaps) == pytest.approx(0.5, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.5, rel=0.05)


def test_who_speaks() -> None:
    trace = traces.react(4000)
    common = {"workflows": 1, "agents": 4, "scale": 1.0, "rate": 1.0, "seed": 0}
    spoken = {
        choice: [turn.agent for turn in traces.schedule(trace, choice=choice, **common)[0].turns]
        for choice in traces.CHOICES
    }
    assert spoken["round-robin"][:6] == [0, 1, 2, 3, 0, 1]
    assert all(count == pytest.approx(1000, rel=0.1) for count in Counter(spoken["random"]).values())
    skew = Counter(spoken["skewed"])
    assert [skew[agent] / 4000 for agent in range(4)] == pytest.approx([0.48, 0.24, 0.16, 0.12], abs=0.03)


def test_the_shapes() -> None:
    assert traces.react().turns == (Turn(0, 512, 48), *[Turn(0, 4096, 48)] * 6)
    trial = [Turn(0, 4096, 48)] * 3
    judged = [Turn(0, 32, 8), Turn(0, 8, 32)]
    assert traces.reflexion().turns == (Turn(0, 512, 48), *trial, *judged, Turn(0, 8, 48), *trial, judged[0])
    assert len(traces.reflexion(30).turns) == 30


@given(st.integers(0, 9000), st.integers(1, 200), st.floats(0.001, 4))
def test_scaling_leaves_no_turn_without_a_token(prefill: int, decode: int, scale: float) -> None:
    turn = traces.scaled(Turn(3, prefill, decode), scale)
    assert turn.agent == 3
    assert turn.decode == max(1, round(decode * scale))
    assert turn.prefill == (max(1, round(prefill * scale)) if prefill else 0)


@pytest.mark.parametrize("names", [("plan", "act"), ("0", "1")])
def test_a_csv_names_agents_or_numbers_them(tmp_path: Path, names: tuple[str, str]) -> None:
    file = tmp_path / "turns.csv"
    one, two = names
    file.write_text(f"agent,prefill_len,decode_len\n{one},512,32\n{two},8,8\n{one},0,1\n")
    trace = traces.read_csv(file)
    assert trace == traces.Trace((Turn(0, 512, 32), Turn(1, 8, 8), Turn(0, 0, 1)), 2)
    common = {"workflows": 1, "choice": traces.AS_WRITTEN, "scale": 1.0, "rate": 1.0, "seed": 0}
    assert traces.schedule(trace, agents=2, **common)[0].turns == trace.turns
    with pytest.raises(DescantError, match="for 2 agents, not 4"):
        traces.schedule(trace, agents=4, **common)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("agent,prefill_len\nplan,3\n", "line 1 has no column decode_len"),
        ("agent,prefill_len,decode_len\nplan,3,4\nact,x,4\n", "line 3"),
        ("agent,prefill_len,decode_len\nplan,3,0\n", "line 2"),
        ("agent,prefill_len,decode_len\nplan,3\n", "line 2"),
        ("agent,prefill_len,decode_len\n,3,4\n", "line 2"),
        ("agent,prefill_len,decode_len\n", "no turns"),
        ("", "line 1"),
        ("agent,prefill_len,decode_len\nplan,3,4,5\n", "line 2 has more fields"),
        ("agent,prefill_len,decode_len,agent\nplan,3,4,act\n", "line 1 has the column agent twice"),
        (f"agent,prefill_len,decode_len\nplan,{'9' * 5000},4\n", "line 2"),
        (f"agent,prefill_len,decode_len\nplan,{10**12},4\n", "line 2"),
        (f"agent,prefill_len,decode_len\n{'9' * 5000},3,4\n", "has agents 99999999999999999999…: number them"),
        ("agent,prefill_len,decode_len\n0,3,4\n2,3,4\n", "has agents 0, 2: number them from 0 without a gap"),
        ("agent,prefill_len,decode_len\n1,3,4\n", "has agents 1: number"),
        ("agent,prefill_len,decode_len\n0,3,4\n00,3,4\n", "has agents 0, 00: number"),
        ("agent,prefill_len,decode_len\n" + "plan,3,4\n" * 10_001, "more than 10,000 turns"),
    ],
)
def test_a_bad_csv_is_refused_by_file_and_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "turns.csv"
    file.write_text(text)
    with pytest.raises(DescantError) as error:
        traces.read_csv(file)
    assert words in str(error.value)
    assert str(file) in str(error.value)


def test_a_csv_of_a_spreadsheet_is_read(tmp_path: Path) -> None:
    """With a mark of its encoding, blanks around names, and columns of its own."""
    file = tmp_path / "turns.csv"
    file.write_text("agent , prefill_len, decode_len,why\nplan, 3, 4,x\n", encoding="utf-8-sig")
    assert traces.read_csv(file) == traces.Trace((Turn(0, 3, 4),), 1)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"scale": 0.0}, "A scale of 0 leaves no load"),
        ({"scale": 1e300}, "A scale of 1e\\+300 leaves no load"),
        ({"scale": float("nan")}, "A scale of nan leaves no load"),
        ({"agents": 10_001}, "for 10,001 agents is too much"),
        ({"workflows": 10_000_000}, "10,000,000 workflows, 7 turns each, .* is too much"),
        ({"trace": traces.Trace((Turn(0, 0, 4),))}, "nothing to read or to generate"),
    ],
)
def test_an_absurd_load_is_refused_before_it_is_made(change: dict[str, Any], why: str) -> None:
    common = {"trace": traces.react(), "workflows": 2, "agents": 2, "choice": "random", "scale": 1.0}
    with pytest.raises(DescantError, match=why):
        traces.schedule(**{**common, **change}, rate=1.0, seed=0)


def test_the_pool_is_a_multiple_of_one_workflow_under_every_scheme() -> None:
    assert RECIPE.trajectory == 8 + 64 + 64 + 3 * 1
    assert RECIPE.pool_tokens == 4 * 139
    # As many tokens as a server says: no float makes them one more.
    assert replace(RECIPE, pool_workflows=6356 / 139).pool_tokens == 6356
    for pool in range(139, 6000):
        assert replace(RECIPE, pool_workflows=pool / 139).pool_tokens == pool
    with pytest.raises(DescantError, match="grows to 139 tokens and the model takes 138"):
        Vocabulary(10, context=138).check(RECIPE.trajectory)


# Measures


def test_measures_by_hand() -> None:
    rows = [
        Row(0, 0, 0, due=0.0, sent=0.0, first=1.0, end=2.0, prompt=10, cached=0, cross_agent=0, output=5, queued=0.25),
        Row(0, 1, 1, due=2.0, sent=2.5, first=4.0, end=6.0, prompt=20, cached=15, cross_agent=15, output=5, queued=0.0),
        Row(1, 0, 0, due=4.0, sent=4.0, first=7.0, end=8.0, prompt=10, cached=5, cross_agent=0, output=10, queued=0.5),
    ]
    watched = Watched([Sample(1, 10, 0), Sample(3, 20, 40), Sample(5, 30, 0)], evicted=7, retracted=1, rss=99)
    found = measures(rows, watched)
    expected = {
        "span": 8.0,
        "workflows_per_s": 2 / 8,
        "output_per_s": 20 / 8,
        "prompt_per_s": 40 / 8,
        "ttft_p50": 2.0,
        "ttft_p90": 2.8,
        "turn_p50": 4.0,
        "turn_p95": 4.0,
        "workflow_p50": 5.0,
        "workflow_p95": 5.9,
        "prompt_tokens": 40,
        "prefilled_tokens": 20,
        "output_tokens": 20,
        "cached_share": 0.5,
        "cross_agent_share": 15 / 40,
        "late_max": 0.5,
        "queue_mean": 0.25,
        "prefill_mean": 1.75,
        "decode_mean": 4 / 3,
        "kv_held_peak": 60,
        "kv_held_mean": 100 / 3,
        "kv_running_peak": 30,
        "evicted_tokens": 7,
        "retracted_requests": 1,
        "rss_peak": 99,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert by_turn(rows) == [(10, 2.0), (20, 2.0)]
    assert held_by_trajectory(rows, watched) == [(10, 10), (15, 60), (20, 30)]
    assert measures(rows, Watched())["kv_held_peak"] is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.sampled_from([0, 50, 90, 95, 99, 100]))
def test_percentiles_lie_among_the_values(values: list[float], p: float) -> None:
    assert min(values) <= percentile(values, p) <= max(values)
    assert percentile(values, 50) == pytest.approx(statistics.median(values))


def test_spread_over_repeats() -> None:
    found = spreads([{"a": 3.0, "b": 1.0}, {"a": 1.0, "b": None}, {"a": 9.0, "b": 1.0}])
    assert found == {"a": Spread(3.0, 1.0, 9.0, 3)}


def test_metrics_are_summed_over_their_labels() -> None:
    text = (
        f'# HELP {USED} x\n{USED}{{tp_rank="0"}} 3.0\n{USED}{{tp_rank="1"}} 4.0\n{USED}_other 9.0\n'
        f'{EVICTED}{{a="b c"}} 1e+03\n'
    )
    assert parse(text) == {USED: 7.0, EVICTED: 1000.0}


# The order of cells


def run_all(recipe: Recipe, throughput: Callable[[Key], float | None]) -> list[Key]:
    done: dict[Key, float | None] = {}
    while (key := next_cell(recipe, done)) is not None:
        assert key not in done
        done[key] = throughput(key)
    return list(done)


def capacity(key: Key) -> float:
    """A server that serves up to 2.5 workflows a second, with icarus three times as many."""
    return min(key.rate, 2.5 * (3 if key.scheme == "icarus" else 1))


def test_the_rate_doubles_until_throughput_no_longer_grows() -> None:
    assert list(doubling(1.0, {})) == [1]
    assert list(doubling(1.0, {1: 1, 2: 2, 4: 2.5, 8: 2.6})) == [1, 2, 4, 8]
    assert list(doubling(1.0, {1: 1, 2: 1.09})) == [1, 2]
    assert list(doubling(1.0, {1: 1, 2: None})) == [1, 2]


def test_throughput_peaks_where_a_higher_rate_brings_hardly_more() -> None:
    assert peak({1: 1.0, 2: 1.9, 4: 2.0, 8: 1.8}) == 2
    assert peak({1: 1.0, 2: 1.89, 4: 2.0}) == 4
    assert peak({1: 1.0, 2: None}) == 1
    assert peak({1: None}) is None


def test_schemes_take_turns_and_are_compared_where_each_peaks() -> None:
    keys = run_all(replace(RECIPE, agents=(2,)), capacity)
    first = [(key.scheme, key.rate) for key in keys if key.repeat == 0]
    own = [("nonshared", rate) for rate in (1, 2, 4, 8)] + [("icarus", rate) for rate in (1, 2, 4, 8, 16)]
    assert first == own  # both peaks, 4 and 8, are among the rates of both
    second = [key for key in keys if key.repeat == 1]
    assert second[0].scheme == "icarus"
    assert sorted((key.scheme, key.rate) for key in second) == sorted(own)


def test_a_scheme_is_also_measured_where_the_other_peaks() -> None:
    keys = run_all(
        replace(RECIPE, agents=(2,), repeats=1), lambda key: capacity(key) if key.scheme == "icarus" else 1.0
    )
    rates = [key.rate for key in keys if key.scheme == "nonshared"]
    assert rates == [1, 2, 8]
    filled = run_all(replace(RECIPE, agents=(2,), repeats=1, fill=True), capacity)
    assert {key.rate for key in filled if key.scheme == "icarus"} == {1, 2, 4, 8, 16, 5.657, 11.31}


def test_a_cell_that_fails_ends_its_search_and_is_not_repeated() -> None:
    keys = run_all(RECIPE, lambda key: None if key.scheme == "nonshared" and key.rate == 2 else capacity(key))
    assert [key.rate for key in keys if key.scheme == "nonshared" and key.agents == 2 and key.repeat == 0] == [1, 2, 8]
    assert Key("nonshared", 2, 2.0, 1) not in keys


def test_rates_that_are_given_are_run_as_they_are() -> None:
    keys = run_all(replace(RECIPE, rates=(0.5, 0.25), repeats=1), capacity)
    assert [(key.agents, key.scheme, key.rate) for key in keys] == [
        (agents, scheme, rate) for agents in (2, 4) for scheme in ("nonshared", "icarus") for rate in (0.5, 0.25)
    ]


# The file


ROW = Row(0, 0, 0, 0.0, 0.0, 1.0, 2.0, 10, 0, 0, 5)
HEAD = {
    "schemes": ["nonshared", "icarus"],
    "trace": {"turns": [[0, 512, 48]], "agents": None},
    "choice": "round-robin",
    "scale": 1.0,
    "seed": 0,
    "workflows": 1,
    "trajectory": 560,
    "pool_tokens": 2240,
    "max_running": 8,
    "model": "m",
    "adapters": "a",
    "versions": {"descant": "1"},
    "machine": {"cpu": "c", "cores": 2, "memory_gib": 8, "gpus": []},
}
STARTED = {"command": ["descant", "bench", "agents"], "at": "2026-01-01"}


def cell(scheme: str, rate: float = 1.0, end: float = 2.0, agents: int = 2, repeat: int = 0) -> Cell:
    row = replace(ROW, first=end / 2, end=end)
    return Cell(Key(scheme, agents, rate, repeat), [row], Watched([Sample(1.0, 10, 5)], 0, 0, 2**20))


def test_cells_that_are_done_stay_and_those_that_failed_are_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "sub" / "bench.jsonl"
    book = Book(file, HEAD, STARTED)
    book.add(cell("icarus"))
    book.add(Cell(Key("nonshared", 2, 1.0, 0), error="The server has ended."))
    with file.open("a") as cut:
        cut.write('{"line": "cell", "sch')
    again = Book(file, HEAD, STARTED)
    assert again.cells == {cell("icarus").key: cell("icarus")}
    again.add(cell("nonshared"))
    bench = read(file)
    assert [one.error for one in bench.cells.values()] == [None, None]
    assert len(bench.started) == 2


def test_a_command_tells_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a server that answers for SGLang, with the load itself left out."""

    async def load(key: Key, *_: object) -> tuple[list[Row], Watched]:
        if key.rate == 2:
            raise DescantError("It is too fast.")
        return [ROW], Watched()

    monkeypatch.setattr("descant.workflows.bench.sweep._load", load)
    (tmp_path / "config.json").write_text('{"vocab_size": 100, "max_position_embeddings": 4096}')
    answers = {"/server_info": INFO, "/v1/models": MODELS, "/model_info": {"model_path": str(tmp_path)}}
    with answering({path: (200, json.dumps(body)) for path, body in answers.items()}) as url:
        file = tmp_path / "b.jsonl"
        words = ("bench", "agents", "--output", file, "--url", url, "--adapters", "plan", "--rates")
        result = here(*words, 1)
        assert result.stdout.startswith(f"{file}: 1 measured cell. ")
        assert result.stderr.startswith("nonshared, 1 agent, 1 workflows/s, repeat 0: begins\n")
        assert read(file).recipe["pool_tokens"] == INFO["max_total_num_tokens"]
        assert here(*words, 1).stderr == f"1 cell is in {file} already; nothing is left to measure.\n"
        assert "it differs in rates" in here(*words, 2, status=1).stderr
        file.unlink()
        failed = here(*words, "1,2", status=1)
        assert "1 cell without a measurement; the same command tries again. The first: It is too fast." in failed.stderr
        assert here(*words, "1,2", status=1).stderr.startswith(f"1 cell is in {file} already; going on from there.\n")


def test_another_recipe_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bench.jsonl"
    Book(file, HEAD, STARTED).add(cell("icarus"))
    before = file.read_bytes()
    with pytest.raises(DescantError, match=r"of another benchmark \(it differs in scale, seed\)"):
        Book(file, {**HEAD, "scale": 2.0, "seed": 1}, STARTED)
    assert file.read_bytes() == before
    file.write_text("{}\n")
    with pytest.raises(DescantError, match="is no benchmark"):
        read(file)
    file.write_text("")
    with pytest.raises(DescantError, match="is no benchmark"):
        read(file)


def test_a_file_with_no_cell_is_begun_anew(tmp_path: Path) -> None:
    file = tmp_path / "bench.jsonl"
    Book(file, HEAD, STARTED)
    with file.open("a") as cut:
        cut.write('{"line": "cell", "sch')
    Book(file, {**HEAD, "seed": 1}, STARTED)
    assert (read(file).recipe["seed"], len(read(file).started)) == (1, 1)
    Book(file, {**HEAD, "seed": 1}, STARTED).add(Cell(cell("icarus").key, error="It died."))
    assert len(read(file).started) == 2
    with pytest.raises(DescantError, match="it differs in seed"):
        Book(file, HEAD, STARTED)


def test_a_last_cell_that_lacks_only_its_newline_stays(tmp_path: Path) -> None:
    file = tmp_path / "bench.jsonl"
    Book(file, HEAD, STARTED).add(cell("icarus"))
    file.write_bytes(file.read_bytes()[:-1])
    assert list(read(file).cells) == [cell("icarus").key]
    again = Book(file, HEAD, STARTED)
    again.add(cell("nonshared"))
    assert len(read(file).cells) == 2


def damaged(change: Callable[[dict[str, Any]], object], line: int, file: Path) -> str:
    """What is said of a file whose line was changed."""
    file.unlink(missing_ok=True)
    Book(file, HEAD, STARTED).add(cell("icarus"))
    lines = [json.loads(text) for text in file.read_text().splitlines()]
    change(lines[line - 1])
    file.write_text("".join(json.dumps(one) + "\n" for one in lines))
    with pytest.raises(DescantError) as error:
        read(file)
    for command in ("report", "calibrate"):
        assert refused("bench", command, file) == str(error.value)
    return str(error.value)


def test_a_damaged_file_is_told_by_its_line(tmp_path: Path) -> None:
    file = tmp_path / "bench.jsonl"
    for broken in ({}, [1], {"schemes": "icarus"}):
        told = damaged(lambda line, broken=broken: line.update(recipe=broken), 1, file)  # type: ignore[misc]
        assert told.startswith(f"{file}, line 1 is not of a benchmark: ")
        assert "measure anew, into another file" in told
    told = damaged(lambda line: line.pop("command"), 2, file)
    assert told == (
        f"{file}, line 2 is not of a benchmark: the line has no command; delete the line, with which no measurement "
        "goes."
    )
    values = [0, 0, 0, 0.0, 0.0, 1.0, 2.0, 10, 0, 0, 5, None]
    for change in (
        {"scheme": "mine"},
        {"rows": []},
        {"rows": 3},
        {"rows": [["x"] * 12]},
        {"rows": [values[:3]]},
        {"rows": [[*values[:5], float("nan"), *values[6:]]]},
        {"rows": [[*values[:7], 0, *values[8:]]]},
        {"rows": [[*values[:5], 0.0, 0.0, *values[7:]]]},
        {"watched": {}},
        {"watched": {"samples": [], "rss": "x"}},
        {"watched": {"samples": [], "more": 1}},
        {"rate": 10**400},
        {"rate": "1"},
        {"agents": 0},
        {"line": "cells"},
    ):
        told = damaged(lambda line, change=change: line.update(change), 3, file)  # type: ignore[misc]
        assert told.startswith(f"{file}, line 3 is not of a benchmark: ")
        assert ("is run again" in told) is ("line" not in change)
    told = damaged(lambda line: line.update(error=""), 3, file)
    assert told.endswith('its error is ""; delete the line, with which no measurement goes.')


def test_the_report_compares_where_nonshared_peaks(tmp_path: Path) -> None:
    file = tmp_path / "bench.jsonl"
    book = Book(file, HEAD, STARTED)
    # nonshared: 1/2, 1/4 workflows a second; icarus: 1/2, 1.
    for one in (
        cell("nonshared", 1),
        cell("nonshared", 2, end=4),
        cell("icarus", 1, end=0.5),
        cell("icarus", 2, end=1),
    ):
        book.add(one)
    book.add(cell("icarus", 1, end=1.0, repeat=1))
    book.add(cell("icarus", 1, end=0.75, repeat=2))
    book.add(Cell(Key("nonshared", 2, 4.0, 0), error="The server has ended; its log ends with:\nKilled"))
    text = render(read(file))
    (headline,) = [line for line in text.splitlines() if line.startswith("| 2 | icarus | 1/s")]
    assert headline == (
        "| 2 | icarus | 1/s | 2.00 → 0.75 s | 2.67x | 2.00 → 0.75 s | 2.67x | 3.80x | 0.5 → 1.33 | 2.67x | 1.40x |"
    )
    assert "| 2 | icarus | 1 | 3 | 1.33 (1…2) | 6.67 (5…10) |" in text
    assert "- 2 agents, nonshared, 4/s, repeat 0: The server has ended; its log ends with:" in text
    assert "Killed" not in text


def test_a_report_needs_a_measured_cell(tmp_path: Path) -> None:
    file = tmp_path / "bench.jsonl"
    book = Book(file, HEAD, STARTED)
    for _ in range(2):
        for command in ("report", "calibrate"):
            assert refused("bench", command, file).startswith(f"{file} has no measured cell yet: run descant bench")
        book.add(Cell(cell("icarus").key, error="It died."))
    assert list(tmp_path.iterdir()) == [file]


def test_the_report_of_an_interrupted_run_says_so(tmp_path: Path) -> None:
    plan = {"agents": [2], "rates": [1.0, 2.0], "start": 1.0, "fill": False, "repeats": 1}
    book = Book(tmp_path / "bench.jsonl", {**HEAD, **plan}, STARTED)
    for rate in (1.0, 2.0):
        book.add(cell("icarus", rate))
    book.add(cell("nonshared", 1.0))
    assert "**Incomplete: measured so far 3 of 4 cells.**" in render(read(book.path))
    book.add(Cell(cell("nonshared", 2.0).key, error="It died."))
    assert "**Incomplete: measured so far 3 of 4 cells.**" in render(read(book.path))
    book.add(cell("nonshared", 2.0))
    assert "Incomplete" not in render(read(book.path))

    book = Book(tmp_path / "search.jsonl", {**HEAD, **plan, "rates": []}, STARTED)
    book.add(cell("nonshared", 1.0))
    assert "**Incomplete: measured so far 1 cell; saturation" in render(read(book.path))
    for scheme in ("nonshared", "icarus"):
        for rate in (1.0, 2.0):
            book.add(cell(scheme, rate))
    assert "Incomplete" not in render(read(book.path))


def test_the_plots_have_a_panel_for_each_number_of_agents(tmp_path: Path) -> None:
    """Also where a scheme lacks a rate, and a cell its samples."""
    book = Book(tmp_path / "bench.jsonl", HEAD, STARTED)
    for agents in (2, 4):
        for rate in (1.0, 2.0):
            book.add(cell("icarus", rate, agents=agents))
    book.add(cell("nonshared", agents=2))
    book.add(replace(cell("nonshared", 4.0, agents=4), watched=Watched()))
    drawn = plot(read(book.path), tmp_path / "plots")
    assert [path.name for path in drawn] == ["load.png", "trajectory.png", "agents.png"]
    width, height = (int.from_bytes(drawn[0].read_bytes()[at : at + 4], "big") for at in (16, 20))
    assert width > height  # two panels beside each other


# The real engine


@on("llama")
def test_a_running_server_is_loaded_by_the_schedule(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the command to the report: counts as scheduled, KV of one agent read by the other, nothing run twice."""
    monkeypatch.setattr(asyncio.events, "_event_loop_policy", uvloop.EventLoopPolicy())  # as SGLang sets it
    csv, file = tmp_path / "turns.csv", tmp_path / "bench.jsonl"
    turns = [("plan", 40, 4), ("act", 16, 3), ("act", 0, 1), ("plan", 8, 5)]
    csv.write_text("agent,prefill_len,decode_len\n" + "".join(f"{a},{p},{d}\n" for a, p, d in turns))
    common = ("bench", "agents", "--url", server.url, "--adapters", "plan,act", "--csv", csv, "--output", file)
    load = ("--scale", 1, "--workflows", 2, "--rates", 2, "--repeats", 1)
    here(*common, *load)
    (one,) = read(file).cells.values()
    assert one.key == Key("icarus", 2, 2.0, 0)
    for number in range(2):
        rows = [row for row in one.rows if row.workflow == number]
        assert [(row.agent, row.prompt, row.output) for row in rows] == [(0, 40, 4), (1, 60, 3), (1, 63, 1), (0, 72, 5)]
        # All but the last token, which was sampled and not read, lies in the cache for whoever comes next.
        assert [row.cached for row in rows] == [0, 43, 62, 63]
        assert rows[1].cross_agent == 43
        assert all(row.due <= row.sent < row.first <= row.end for row in rows)
        assert all(row.queued is not None and 0 <= row.queued < row.first - row.sent for row in rows)
    assert one.measures["cross_agent_share"] > 0  # type: ignore[operator]
    assert one.measures["kv_held_peak"] >= 76  # type: ignore[operator]
    assert (one.watched.evicted, one.watched.retracted, one.watched.rss) == (0, 0, None)

    asked = server.log.read_text().count("POST /generate")
    here(*common, *load)
    assert server.log.read_text().count("POST /generate") == asked
    assert "it differs in workflows" in refused(*common, *load[:2], "--workflows", 3, *load[4:])

    report = here("bench", "report", file).stdout
    assert "| 2 | icarus | 2 | 1 |" in report
    folder = tmp_path / "bench-report"
    assert {path.name for path in folder.iterdir()} == {"report.md", "load.png", "trajectory.png", "agents.png"}
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in folder.glob("*.png"))


# A killed worker is outlived by its server for some seconds: the second workflow still finds that, and is cut off.
@pytest.mark.parametrize(("victim", "rate", "until"), [("server", 0.2, 9.9), ("worker", 0.5, 3.9)])
def test_a_server_that_dies_is_reported_as_that(
    victim: str, rate: float, until: float, checkpoint: Callable[[str], tiny.Checkpoint], tmp_path: Path
) -> None:
    model, adapters = checkpoint("llama").model, checkpoint("llama").adapters
    recipe = replace(RECIPE, schemes=("nonshared",), agents=(2,), repeats=1, rates=(rate,))
    assert recipe.schedule(2, rate, 0)[1].arrival > until
    console = Console(stderr=True)
    deploy = own_servers(model, recipe, adapters, console)

    @contextmanager
    def doomed(scheme: str, agents: int) -> Iterator[Target]:
        with deploy(scheme, agents) as target:
            assert target.pid is not None
            root = psutil.Process(target.pid)
            (worker,) = [one for one in root.children(recursive=True) if "sglang::scheduler" in one.cmdline()]
            threading.Timer(1.0, {"server": root.terminate, "worker": worker.kill}[victim]).start()
            yield target

    book = Book(tmp_path / "bench.jsonl", HEAD, STARTED)
    told: list[str] = []
    (failed,) = sweep(recipe, doomed, vocabulary_of(model), book, console, told.append)
    assert failed.key == Key("nonshared", 2, rate, 0)
    assert not failed.rows
    assert (failed.error or "").startswith("The server has ended; its log")
    assert told[0].endswith(": begins")
    assert "The server has ended" in told[-1]
    assert not Book(book.path, HEAD, STARTED).cells
    line = json.loads(book.path.read_text().splitlines()[2])
    assert "measures" not in line


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    bench = ("bench", "agents", "--output", tmp_path / "b.jsonl")
    assert "no preset 'huge'" in refused(*bench, "--preset", "huge")
    assert "no shape 'tot'" in refused(*bench, "--shape", "tot")
    assert "no choice 'none'" in refused(*bench, "--choice", "none")
    assert "no scheme kvcomm" in refused(*bench, "--schemes", "icarus,kvcomm")
    assert "--agents 2,x is no list of numbers" in refused(*bench, "--agents", "2,x")
    assert "--rates 1,0 has something" in refused(*bench, "--rates", "1,0")
    assert "give its --url" in refused(*bench, "--adapters", "plan")
    assert "names no folder for plan" in refused(*bench, "--lora-paths", "plan=/nowhere")
    assert refused(*bench, "--url", "http://127.0.0.1:9", "--adapters", "plan").endswith(": is it running?")
    assert "names no folder" not in (told := refused(*bench, "--lora-paths", "a,b"))
    assert "--lora-paths has 'a' between its commas" in told
    assert "without adapter_config.json for a" in refused(*bench, "--lora-paths", f"a={tmp_path}")
    assert "names a twice" in refused(*bench, "--lora-paths", f"a={tmp_path}, a=/")
    assert "--agents 2, 2 has 2 twice" in refused(*bench, "--agents", "2, 2")
    assert "--schemes icarus,icarus has icarus twice" in refused(*bench, "--schemes", "icarus,icarus")
    assert "--rates 5,5.0 has 5 twice" in refused(*bench, "--rates", "5,5.0")
    assert "search stands alone" in refused(*bench, "--rates", "1, search")
    assert "below 0.0001 workflows/s" in refused(*bench, "--rates", "1e-300")
    assert "endless" in refused(*bench, "--rates", "inf")
    url = ("--url", "http://127.0.0.1:9", "--adapters")
    assert "has plan twice" in refused(*bench, *url, "plan,plan")
    assert "names 1 adapter for 2 agents" in refused(*bench, "--lora-paths", f"a={adapter(tmp_path)}")
    for option in ("--scale", "--start", "--pool-workflows"):
        for value in ("inf", "nan"):
            assert f"Invalid value for '{option}'" in here(*bench, option, value, status=2).stderr
    here(*bench, "--turns", 1_000_000, status=2)
    csv = tmp_path / "turns.csv"
    csv.write_text("agent,prefill_len,decode_len\nplan,0,4\n")
    for words in (bench, ("bench", "export", tmp_path / "x.jsonl", "--adapters", "plan")):
        assert "nothing to read or to generate" in refused(*words, "--csv", csv)
    assert {path.name for path in tmp_path.iterdir()} == {"turns.csv", "adapter"}


def adapter(folder: Path) -> Path:
    """What looks like one's folder."""
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    return folder / "adapter"


@pytest.mark.parametrize(
    ("config", "tokenizer", "why"),
    [
        ([1], {}, "does not say how large"),
        ({"vocab_size": None, "max_position_embeddings": 9}, {}, "does not say how large"),
        ({"vocab_size": 0, "max_position_embeddings": 9}, {}, "has a vocabulary of 0 tokens"),
        ({"vocab_size": 9, "max_position_embeddings": 0}, {}, "and takes 0"),
        ({"vocab_size": 1, "max_position_embeddings": 9}, {"added_tokens": [{"id": 0}]}, "1 of them special"),
        ({"vocab_size": 9, "max_position_embeddings": 9}, [], "tokenizer.json is no tokenizer"),
        ({"vocab_size": 9, "max_position_embeddings": 200}, {}, "grows to 1589 tokens and the model takes 200"),
    ],
)
def test_a_model_that_takes_no_load_is_refused(config: Any, tokenizer: Any, why: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert why in refused("bench", "export", tmp_path / "x", "--adapters", "plan,act", "--model", tmp_path)
    assert why in refused("bench", "agents", "--output", tmp_path / "x", "--model", tmp_path)
    assert not (tmp_path / "x").exists()


def test_an_export_is_what_bench_serving_sends(checkpoint: Callable[[str], tiny.Checkpoint], tmp_path: Path) -> None:
    """Its own loader reads the file, and its requests carry the ids and adapters of the schedule."""
    from sglang.benchmark.datasets.openai_dataset import sample_openai_requests
    from transformers import AutoTokenizer

    file, model = tmp_path / "load.jsonl", checkpoint("llama").model
    words = ("--turns", 3, "--scale", 1 / 64, "--workflows", 2, "--model", model)
    line = here("bench", "export", file, "--adapters", "plan,act", *words).stdout
    assert f"--dataset-path {file} --num-prompts 6" in line
    rows = sample_openai_requests(str(file), 6, AutoTokenizer.from_pretrained(model))
    sent = [row.extra_request_body for row in rows]
    assert [len(body["input_ids"]) for body in sent] == [8, 8, 73, 73, 138, 138]
    assert [body["lora_path"] for body in sent] == ["plan"] * 2 + ["act"] * 2 + ["plan"] * 2
    assert sent[2]["input_ids"][:8] == sent[0]["input_ids"]
    assert {row.output_len for row in rows} == {1}


def test_an_export_overwrites_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before a model is looked for."""
    monkeypatch.setattr("descant.runtime.checkpoint.demo_checkpoint", None)
    file = tmp_path / "measured.jsonl"
    file.write_text("dear")
    words = ("--adapters", "plan,act")
    assert refused("bench", "export", file, *words) == (
        f"{file} is there already, and is not overwritten: name another file."
    )
    assert "is a folder: name a file in it" in refused("bench", "export", tmp_path, *words)
    assert "x cannot be written (Not a directory)" in refused("bench", "export", file / "x", *words)
    assert file.read_text() == "dear"


def test_a_report_replaces_reports_alone(tmp_path: Path) -> None:
    file, other = tmp_path / "bench.jsonl", tmp_path / "report.md"
    Book(file, HEAD, STARTED).add(cell("icarus"))
    other.write_text("# Mine")
    report = ("bench", "report", file, "--no-plots")
    assert "is there and no benchmark's report" in here(*report, "--output", tmp_path, status=1).stderr
    assert other.read_text() == "# Mine"
    here(*report)
    here(*report)


@contextmanager
def answering(answers: Mapping[str, tuple[int, str]]) -> Iterator[str]:
    """Something that speaks HTTP and says for each path what is given; the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, "<html>Nothing here</html>"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


INFO = {"internal_states": [{"effective_max_running_requests_per_dp": 8}], "max_total_num_tokens": 6356}
MODELS = {"data": [{"id": "m", "max_model_len": 2048}, {"id": "plan"}]}


@pytest.mark.parametrize(
    ("info", "models", "model", "why"),
    [
        ("<html>Hello</html>", "", "", "is no SGLang server: /server_info answers"),
        ("[]", "", "", "is no SGLang server: /server_info answers"),
        ("{}", "{}", "", "is no SGLang server: /v1/models answers"),
        ("{}", json.dumps(MODELS), "{}", "is no SGLang server: /model_info answers"),
        ("{}", json.dumps(MODELS), '{"model_path": "/m"}', "is no SGLang server: its /server_info is of another form"),
        (None, "", "", "The server does not answer /server_info: HTTP 404 Not Found"),
        (json.dumps(INFO), json.dumps({"data": MODELS["data"][:1]}), '{"model_path": "/m"}', "has no adapter 'plan'"),
    ],
)
def test_what_is_no_server_is_told_in_a_sentence(
    info: str | None, models: str, model: str, why: str, tmp_path: Path
) -> None:
    answers = {"/v1/models": (200, models), "/model_info": (200, model)}
    if info is not None:
        answers["/server_info"] = (200, info)
    with answering(answers) as url:
        file = tmp_path / "b.jsonl"
        assert why in refused("bench", "agents", "--output", file, "--url", url, "--adapters", "plan")
    assert not file.exists()

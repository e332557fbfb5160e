"""Prediction: the pool against SGLang's radix tree, the scheduler by hand, conservation, and the calibration."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import typer
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
from typer.testing import CliRunner

from descant.runtime.errors import DescantError
from descant.workflows.bench import cells as benchmark
from descant.workflows.bench.cells import Book, Key
from descant.workflows.bench.measures import percentile
from descant.workflows.bench.predict.calibrate import Cell, Fitted, errors, fit
from descant.workflows.bench.predict.command import add_to
from descant.workflows.bench.predict.machine import GPUS, Roofline, pool_tokens
from descant.workflows.bench.predict.measured import calibrate, measured, render
from descant.workflows.bench.predict.model import MODELS, model_at
from descant.workflows.bench.predict.outcome import outcome, schedule_of
from descant.workflows.bench.predict.pool import Pool
from descant.workflows.bench.predict.saturation import Setting, highest, peak, saturate
from descant.workflows.bench.predict.scheme import SCHEMES, Scheme
from descant.workflows.bench.predict.simulate import Limits, Run, simulate
from descant.workflows.bench.predict.step import Step
from descant.workflows.bench.row import Row
from descant.workflows.bench.schedule import Turn, Workflow

NONSHARED, ICARUS = SCHEMES["nonshared"], SCHEMES["icarus"]
AMPLE = Limits(pool=1_000_000)


@dataclass(frozen=True)
class Clockwork:
    """A token of prefill takes 1 s, a decode step 100 s, a prefill step 10,000 s beside its tokens."""

    turn: float = 0.0

    def seconds(self, step: Step) -> float:
        return 10_000 + step.written if step.prefill else 100


def _load(count: int, agents: int, rate: float, seed: int = 0, turns: int = 6) -> list[Workflow]:
    """Round-robin turns of random lengths, at random times."""
    choice = random.Random(seed)
    now = 0.0
    found = []
    for number in range(count):
        now += choice.expovariate(rate)
        found.append(
            Workflow(
                number,
                now,
                tuple(
                    Turn(
                        turn % agents,
                        choice.randint(1, 300) if turn else choice.randint(100, 900),
                        choice.randint(1, 60),
                    )
                    for turn in range(turns)
                ),
            )
        )
    return found


class _Allocator:
    """Counts what SGLang's tree frees."""

    device = "cpu"

    def __init__(self) -> None:
        self.freed = 0

    def free_segment(self, slots: torch.Tensor, start_pos: int) -> None:
        self.freed += len(slots)


class _Tree:
    """A pool of token ids in SGLang's own RadixCache, driven as its scheduler drives it."""

    def __init__(self, capacity: int) -> None:
        self.allocator = _Allocator()
        self.tree = RadixCache.create_simulated(mock_allocator=self.allocator)
        self.free = capacity
        self.locked: dict[tuple[int, int], object] = {}

    @staticmethod
    def _key(key: tuple[int, int], tokens: list[int]) -> RadixKey:
        return RadixKey(tokens, extra_key=str(key[1]))

    def match(self, key: tuple[int, int], prompt: list[int]) -> tuple[int, object]:
        found = self.tree.match_prefix(MatchPrefixParams(key=self._key(key, prompt[:-1])))
        return found.device_prefix_len, found.last_device_node

    def lock(self, key: tuple[int, int], node: object) -> None:
        self.tree.inc_lock_ref(node)
        self.locked[key] = node

    def unlock(self, key: tuple[int, int]) -> None:
        self.tree.dec_lock_ref(self.locked.pop(key))

    def allocate(self, tokens: int) -> None:
        if (short := tokens - self.free) > 0:
            before = self.allocator.freed
            self.tree.evict(EvictParams(num_tokens=short))
            self.free += self.allocator.freed - before
        self.free -= tokens

    def checkpoint(self, key: tuple[int, int], tokens: list[int]) -> None:
        self.tree.insert(InsertParams(key=self._key(key, tokens), value=torch.zeros(len(tokens), dtype=torch.int64)))
        self.unlock(key)
        node = self.tree.match_prefix(MatchPrefixParams(key=self._key(key, tokens))).last_device_node
        self.lock(key, node)


def _ids(choice: random.Random, count: int) -> list[int]:
    """Of 2**40 values, so that no two workflows begin alike."""
    return [choice.getrandbits(40) for _ in range(count)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shared", [True, False])
def test_a_length_says_what_the_radix_tree_holds(seed: int, shared: bool) -> None:
    """Random turns of six workflows, several at a time, in a pool that holds a third of what they leave."""
    choice = random.Random(seed)
    capacity = 4_000
    pool, tree = Pool(capacity), _Tree(capacity)
    trajectories: list[list[int]] = [[] for _ in range(6)]
    open_workflows = list(range(6))
    active: dict[int, tuple[tuple[int, int], int, int]] = {}  # workflow: its key, agent and tokens to decode
    turns = 0
    while turns < 150:
        workflow = choice.choice(open_workflows)
        tokens = trajectories[workflow]
        if workflow in active:  # the turn ends
            key, agent, decode = active.pop(workflow)
            pool.allocate(decode - 1)
            tree.allocate(decode - 1)
            tokens += _ids(choice, decode)
            pool.checkpoint(key, len(tokens) - 1, agent)
            tree.checkpoint(key, tokens[:-1])
            pool.unlock(key)
            tree.unlock(key)
            turns += 1
            if len(tokens) > 900:  # it is over; another takes its place
                trajectories.append([])
                open_workflows[open_workflows.index(workflow)] = len(trajectories) - 1
        else:
            agent, decode = choice.randrange(3), choice.randint(2, 40)
            key = (workflow, 0 if shared else agent)
            tokens += _ids(choice, choice.randint(1, 200))
            cached, _ = pool.match(key, agent)
            found, node = tree.match(key, tokens)
            assert cached == found
            pool.lock(key)
            tree.lock(key, node)
            if len(tokens) - cached + decode + 400 > pool.room:  # refused, as if the server were full
                pool.unlock(key)
                tree.unlock(key)
                continue
            for end in sorted({len(tokens), min(len(tokens), cached + 120)}):  # in two chunks, if it is long
                pool.allocate(end - pool.paths[key].tokens)
                tree.allocate(end - pool.paths[key].tokens)
                pool.checkpoint(key, end, agent)
                tree.checkpoint(key, tokens[:end])
            active[workflow] = key, agent, decode
        assert pool.free == tree.free
        assert pool.evictable == tree.tree.evictable_size()
        assert pool.evicted == tree.allocator.freed
    assert pool.evicted > capacity


def test_one_agent_by_hand() -> None:
    """100 new tokens and 3 to generate, then 50 new ones and 2; the last of the 3 was not in the pool."""
    run = simulate([Workflow(0, 5.0, (Turn(0, 100, 3), Turn(0, 50, 2)))], NONSHARED, Clockwork(), AMPLE)
    first, second = run.turns
    assert first == Row(0, 0, 0, 5.0, 5.0, 10_105.0, 10_305.0, 100, 0, 0, 3)
    assert second == Row(0, 1, 0, 10_305.0, 10_305.0, 20_356.0, 20_456.0, 153, 102, 0, 2)


def test_agents_recompute_alone_and_read_together() -> None:
    """The second agent finds what the first left under icarus, nothing under nonshared."""
    schedule = [Workflow(0, 0.0, (Turn(0, 100, 3), Turn(1, 50, 2), Turn(0, 10, 1)))]
    alone = simulate(schedule, NONSHARED, Clockwork(), AMPLE)
    assert [turn.cached for turn in alone.turns] == [0, 0, 102]
    assert [turn.cross_agent for turn in alone.turns] == [0, 0, 0]
    assert alone.turns[1].first - alone.turns[1].due == 10_153
    assert alone.prefilled == 100 + 153 + (165 - 102)

    together = simulate(schedule, ICARUS, Clockwork(), AMPLE)
    assert [turn.cached for turn in together.turns] == [0, 102, 154]
    assert [turn.cross_agent for turn in together.turns] == [0, 102, 52]
    assert together.turns[1].first - together.turns[1].due == 10_051
    assert together.prefilled == 100 + 51 + 11


def test_a_turn_waits_for_the_step_that_runs_and_prefill_goes_first() -> None:
    """The second workflow comes during the first's prefill; its own goes before the first's decode."""
    run = simulate(
        [Workflow(0, 0.0, (Turn(0, 100, 2),)), Workflow(1, 50.0, (Turn(0, 20, 2),))], NONSHARED, Clockwork(), AMPLE
    )
    assert [(turn.workflow, turn.first, turn.end) for turn in run.turns] == [
        (0, 10_100.0, 20_220.0),
        (1, 20_120.0, 20_220.0),
    ]


def test_a_long_prompt_is_prefilled_in_chunks() -> None:
    run = simulate([Workflow(0, 0.0, (Turn(0, 250, 1),))], ICARUS, Clockwork(), Limits(pool=1_000, chunk=100))
    prefill = [step for _, _, step in run.steps]
    assert [step.written for step in prefill] == [100, 100, 50]
    assert [step.rows for step in prefill] == [100, 100, 51]  # the decoder row of the last token
    assert [step.logits for step in prefill] == [0, 0, 1]
    assert [step.kv for step in prefill] == [100, 200, 250]
    assert sum(step.pairs for step in prefill) == 250 * 251 // 2 + 250


def test_paired_decode_runs_two_rows_over_one_reading() -> None:
    schedule = [Workflow(number, 0.0, (Turn(number, 10, 4),)) for number in range(3)]
    alone = [step for _, _, step in simulate(schedule, NONSHARED, Clockwork(), AMPLE).steps if not step.prefill]
    paired = [step for _, _, step in simulate(schedule, ICARUS, Clockwork(), AMPLE).steps if not step.prefill]
    assert [step.kv for step in alone] == [33, 36, 39] == [step.kv for step in paired]
    assert {(step.rows, step.adapted, step.logits, step.adapters) for step in alone} == {(3, 3, 3, 3)}
    assert {(step.rows, step.adapted, step.logits, step.adapters) for step in paired} == {(6, 3, 3, 3)}
    assert [step.pairs for step in paired] == [2 * step.pairs for step in alone]


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=list(SCHEMES))
@pytest.mark.parametrize("pool", [3_000, 6_000, 100_000])
def test_every_token_of_the_schedule_is_processed_once(scheme: Scheme, pool: int) -> None:
    schedule = _load(40, 3, rate=0.001)
    run = simulate(schedule, scheme, Clockwork(), Limits(pool, chunk=256))
    assert len(run.turns) == sum(len(workflow.turns) for workflow in schedule)
    assert schedule_of(run.turns) == schedule
    assert run.retracted == 0  # admission reserves all that may be generated
    assert run.prefilled == sum(turn.prompt - turn.cached for turn in run.turns)
    assert run.decoded == sum(turn.decode - 1 for workflow in schedule for turn in workflow.turns)
    assert sum(step.written for _, _, step in run.steps) == run.prefilled + run.decoded
    assert run.peak <= pool
    for turn in run.turns:
        assert turn.due <= turn.sent < turn.first <= turn.end
    assert all(before[1] <= after[0] for before, after in pairwise(run.steps))
    assert simulate(schedule, scheme, Clockwork(), Limits(pool, chunk=256)) == run


def test_sharing_never_prefills_more_and_a_larger_pool_never_evicts_more() -> None:
    schedule = _load(60, 4, rate=0.0005)
    prefilled, evicted = [], []
    for pool in (4_000, 8_000, 16_000, 32_000, 400_000):
        alone = simulate(schedule, NONSHARED, Clockwork(), Limits(pool))
        together = simulate(schedule, ICARUS, Clockwork(), Limits(pool))
        assert together.prefilled <= alone.prefilled
        prefilled.append((alone.prefilled, together.prefilled))
        evicted.append((alone.evicted, together.evicted))
    assert prefilled[0] > prefilled[-1]
    for before, after in pairwise(evicted):
        assert after[0] <= before[0]
        assert after[1] <= before[1]
    assert evicted[0] > (0, 0) == evicted[-1]
    # With room for all, each token that sharing prefills was new to the trajectory.
    assert prefilled[-1][1] == sum(
        workflow.tokens - workflow.turns[-1].decode - sum(turn.decode - 1 for turn in workflow.turns[:-1])
        for workflow in schedule
    )


def test_decode_that_runs_out_of_room_retracts_the_newest() -> None:
    """Admission reserves 4,096 tokens of an output; these generate more, and two do not fit together."""
    schedule = [Workflow(0, 0.0, (Turn(0, 50, 9_000),)), Workflow(1, 1.0, (Turn(0, 70, 9_000),))]
    run = simulate(schedule, NONSHARED, Clockwork(), Limits(pool=10_000))
    assert run.retracted == 1
    assert [turn.workflow for turn in run.turns] == [0, 1]
    assert [turn.output for turn in run.turns] == [9_000, 9_000]
    # The second prefills again what it had generated, and that prefill gives its next token.
    assert run.prefilled > 50 + 70 + 4_096
    assert run.decoded == 2 * 8_999 - 1


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(DescantError, match="Workflow 7 has 120 tokens and the pool 100"):
        simulate([Workflow(7, 0.0, (Turn(0, 100, 20),))], NONSHARED, Clockwork(), Limits(pool=100))
    with pytest.raises(DescantError, match="nothing to read or to generate"):
        simulate([Workflow(7, 0.0, (Turn(0, 100, 0),))], NONSHARED, Clockwork(), AMPLE)


def test_models_have_the_parameters_that_they_are_named_for(tmp_path: Path) -> None:
    llama, qwen = MODELS["Llama-3.1-8B"], MODELS["Qwen3-14B"]
    assert llama.parameters == pytest.approx(8.03e9, rel=1e-3)
    assert qwen.parameters == pytest.approx(14.77e9, rel=1e-3)
    assert llama.kv_bytes == 131_072
    # q, k, v, o, gate, up and down of rank 16: 41,943,040 parameters, as PEFT counts them.
    assert llama.adapter_parameters(16, NONSHARED.targets) == 41_943_040
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "hidden_size": 4096,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "intermediate_size": 14336,
                "vocab_size": 128256,
            }
        )
    )
    assert model_at(tmp_path) == replace(llama, name=tmp_path.name)
    (tmp_path / "config.json").write_text('{"hidden_size": 4096}')
    with pytest.raises(DescantError, match="num_attention_heads"):
        model_at(tmp_path)
    with pytest.raises(DescantError, match="No configuration at"):
        model_at(tmp_path / "absent")


def test_the_roofline_by_hand() -> None:
    """Decode of one request is bound by the weights' bytes, a long prefill by arithmetic."""
    gpu, model = GPUS["A100-80GB"], MODELS["Llama-3.1-8B"]
    machine = Roofline(gpu, model, NONSHARED, rank=16)
    decode = Step(prefill=False, rows=1, written=1, adapted=1, pairs=1000, kv=1000, logits=1, adapters=1)
    layers, head = 32 * (4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 14336), 4096 * 128256
    assert machine.bytes(decode) == 2 * (layers + head + 41_943_040) + 1001 * 131_072
    assert machine.seconds(decode) == pytest.approx(gpu.overhead + machine.bytes(decode) / (0.8 * 2.039e12))
    prefill = Step(prefill=True, rows=4096, written=4096, adapted=4096, pairs=8_390_656, kv=4096, logits=1, adapters=1)
    assert machine.flops(prefill) == 2 * 4096 * (layers + 41_943_040) + 2 * head + 4 * 32 * 32 * 128 * 8_390_656
    assert machine.seconds(prefill) == pytest.approx(gpu.overhead + machine.flops(prefill) / (0.6 * 312e12))
    # 85% of 80 GB, less 16.06 GB of weights and two adapters of 84 MB.
    tokens = pool_tokens(gpu, model, 16, 2, NONSHARED.targets)
    assert tokens == pytest.approx((68e9 - 2 * model.parameters - 4 * 41_943_040) / 131_072, abs=1)
    with pytest.raises(DescantError, match="does not fit A100-80GB"):
        pool_tokens(gpu, model, 128, 100, NONSHARED.targets)


TRUE = Fitted(0.004, 0.012, 0.0008, 2e-8, 0.018, 0.0012, 3e-7)


def _cells(scheme: str, rates: tuple[float, ...]) -> Iterator[Cell]:
    """Loads "measured" on a machine whose constants are known."""
    for rate in rates:
        limits = Limits(pool=12_000, chunk=2048)
        schedule = _load(16, 2, rate, seed=3)
        yield Cell(scheme, 2, rate, limits, tuple(simulate(schedule, SCHEMES[scheme], TRUE, limits).turns))


@pytest.mark.parametrize("scheme", ["nonshared", "icarus"])
def test_calibration_recovers_known_constants(scheme: str) -> None:
    *fitted_on, between, saturated = _cells(scheme, (0.1, 0.2, 0.4, 0.3, 0.8))
    found = fit(fitted_on)
    for name in ("turn", "prefill_step", "prefill_row", "prefill_pair", "decode_step", "decode_row", "decode_kv"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.01), name
    for held_out in (between, saturated):
        off = errors(held_out, found)
        assert off.ttft < 1e-3
        assert off.latency < 1e-3
        assert abs(off.p95) < 1e-3
        assert abs(off.throughput) < 1e-3
        assert off.cached == 0


def test_calibration_bears_noise() -> None:
    """A tenth of error on each measured time moves what is predicted for another rate by less than that."""
    noise = random.Random(1)
    cells = []
    for cell in _cells("icarus", (0.1, 0.2, 0.4)):
        turns = []
        for turn in cell.turns:
            ttft = (turn.first - turn.due) * noise.uniform(0.9, 1.1)
            rest = (turn.end - turn.first) * noise.uniform(0.9, 1.1)
            turns.append(replace(turn, first=turn.due + ttft, end=turn.due + ttft + rest))
        cells.append(replace(cell, turns=tuple(turns)))
    (held_out,) = _cells("icarus", (0.3,))
    off = errors(held_out, fit(cells))
    assert off.ttft < 0.1
    assert off.latency < 0.1
    assert abs(off.throughput) < 0.02


def test_errors_are_seen() -> None:
    (cell,) = _cells("icarus", (0.05,))
    slower = replace(TRUE, prefill_row=2 * TRUE.prefill_row)
    off = errors(cell, slower)
    assert off.ttft > 0.3
    assert off.p95 > 0.1


def test_figures_by_hand() -> None:
    turns = [
        Row(0, 0, 0, 0.0, 0.0, 1.0, 2.0, 10, 0, 0, 5),
        Row(0, 1, 1, 2.0, 2.0, 5.0, 6.0, 20, 14, 14, 5),
        Row(1, 0, 0, 1.0, 1.0, 3.0, 5.0, 10, 0, 0, 5),
    ]
    found = outcome(turns)
    assert (found.ttft, found.latency, found.throughput) == (2.0, 5.0, 2 / 6.0)
    assert found.p95 == pytest.approx(4 + 0.95 * 2)
    assert (found.prompt, found.cached, found.foreign) == (40, 14, 14)
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([7.0], 95) == 7.0


def test_two_thousand_turns_take_seconds() -> None:
    """On a machine that is busy otherwise, too."""
    schedule = _load(167, 8, rate=0.5, turns=12)
    gpu, model = GPUS["A100-80GB"], MODELS["Llama-3.1-8B"]
    run: Run = simulate(schedule, ICARUS, Roofline(gpu, model, ICARUS, 128), Limits(100_000))
    assert len(run.turns) == 2004


@dataclass(frozen=True)
class Second:
    """A prefill step takes a second, whatever is in it; nothing is decoded."""

    turn: float = 0.0

    def seconds(self, step: Step) -> float:
        return 1.0


def test_the_peak_is_where_more_arrivals_bring_no_more() -> None:
    """One prompt fits a step, so a workflow a second is the most, and 64 of them take 64 seconds at least."""

    def load(rate: float) -> list[Workflow]:
        return [Workflow(number, number / rate, (Turn(0, 10, 1),)) for number in range(64)]

    setting = Setting(load, NONSHARED, Second(), Limits(pool=1_000, chunk=10))
    points = saturate(setting, 0.1)
    assert [point.rate for point in points] == sorted(point.rate for point in points)
    assert highest(points) == 1.0
    assert points[-1].rate >= 1.6
    assert 0.95 <= peak(points).rate <= 1.2
    assert peak(points).throughput >= 0.95
    with pytest.raises(DescantError, match="begin at a lower rate"):
        saturate(setting, 5.0)


runner = CliRunner()


def _app() -> typer.Typer:
    app = typer.Typer()
    add_to(app)
    return app


def test_predict_prints_a_table_that_says_so(tmp_path: Path) -> None:
    wanted = ["--device", "H200", "--model", "Llama-3.1-8B", "--agents", "2,400", "--rank", "64", "--workflows", "24"]
    files = ["--output", str(tmp_path / "it.json"), "--plots", str(tmp_path / "plots")]
    done = runner.invoke(_app(), ["predict", *wanted, "--first-rate", "0.1", *files])
    assert done.exit_code == 0, done.output
    head, _, row = done.stdout.splitlines()[:3]
    figures = [cell.strip() for cell in head.strip("|").split("|")][3:]
    assert all(cell.endswith("(predicted)") for cell in figures)
    assert row.startswith("| H200 | Llama-3.1-8B | 2 |")
    assert "400 agents: Llama-3.1-8B with 400 adapters of rank 64 does not fit H200" in done.output
    (written,) = json.loads((tmp_path / "it.json").read_text())
    assert written["predicted"] is True
    assert written["throughput_gain"] > 1
    assert written["p95_reduction"] > 1
    (drawn,) = (tmp_path / "plots").iterdir()
    assert drawn.name == "predicted-H200-Llama-3.1-8B.png"
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert all(point["retracted"] == 0 for point in written["nonshared"] + written["icarus"])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--device", "H20"], "No data of a device H20"),
        (["--model", "absent"], "No configuration at absent"),
        (["--device", "H200,H20"], "No data of a device H20"),
        (["--shape", "ring"], "There is no shape 'ring'"),
        (["--choice", "loudest"], "There is no choice 'loudest'"),
        (["--csv", "absent.csv", "--turns", "3"], "leave out --turns"),
        (["--agents", "two"], "no list of numbers"),
        (["--agents", "0"], "not above 0"),
        (["--output", "/proc/descant.json"], "cannot be written"),
        (["--output", "/proc"], "/proc is a folder"),
        (["--device", "H200, H200"], "has H200 twice"),
        (["--model", "Llama-3.1-8B,Llama-3.1-8B"], "has Llama-3.1-8B twice"),
        (["--agents", "2,2"], "has 2 twice"),
        (["--workflows", "1"], "give --workflows 2 or more"),
        (["--scale", "0"], "A scale of 0 leaves no load"),
        (["--choice", "as-written"], "names no agents"),
        (["--output", __file__], "is there already, and is not overwritten"),
        (["--output", f"{__file__}/x/y.json"], "y.json cannot be written (Not a directory)"),
        (["--plots", __file__], "cannot be written (Not a directory)"),
        (["--plots", "/proc/descant"], "cannot be written"),
    ],
)
def test_predict_refuses_in_a_sentence_before_it_simulates(
    words: list[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("descant.workflows.bench.predict.study.compare", None)  # calling it would be a TypeError
    done = runner.invoke(_app(), ["predict", *words])
    assert done.exit_code == 1
    assert why in done.output


@pytest.mark.parametrize("option", ["--scale", "--first-rate", "--overhead-ms", "--flops-share"])
@pytest.mark.parametrize("value", ["inf", "nan"])
def test_predict_takes_finite_numbers(option: str, value: str) -> None:
    done = runner.invoke(_app(), ["predict", option, value])
    assert done.exit_code == 2
    assert f"Invalid value for '{option}'" in done.output


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_size", 0),
        ("num_attention_heads", 0),
        ("num_key_value_heads", -8),
        ("vocab_size", True),
        ("head_dim", "x"),
    ],
)
def test_a_size_that_is_none_is_refused(name: str, value: object, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "vocab_size": 100, name: value}))
    with pytest.raises(DescantError, match=f"its {name} is {value}"):
        model_at(tmp_path)


def test_predict_that_finds_nothing_writes_nothing(tmp_path: Path) -> None:
    files = ["--output", str(tmp_path / "a" / "it.json"), "--plots", str(tmp_path / "plots")]
    wanted = ["--device", "H200", "--model", "Llama-3.1-8B", "--agents", "4000", "--workflows", "2"]
    done = runner.invoke(_app(), ["predict", *wanted, *files])
    assert done.exit_code == 1
    assert "does not fit H200" in done.stderr
    assert not done.stdout
    assert not list(tmp_path.iterdir())


def test_predict_misses_matplotlib_before_it_simulates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("descant.workflows.bench.predict.study.compare", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = runner.invoke(_app(), ["predict", "--plots", str(tmp_path / "plots")])
    assert done.exit_code == 1
    assert "pip install 'descant[bench]'" in done.output
    assert not (tmp_path / "plots").exists()


HEAD = {
    "schemes": ["nonshared", "icarus"],
    "trace": {"turns": [[0, 512, 48]]},
    "choice": "round-robin",
    "scale": 1.0,
    "seed": 0,
    "workflows": 16,
    "trajectory": 560,
    "model": "m",
    "adapters": "a",
    "versions": {},
    "machine": {"cpu": "c", "cores": 2, "memory_gib": 8, "gpus": []},
}


def _write(file: Path, cells: list[Cell]) -> None:
    """As descant bench agents writes it."""
    file.unlink(missing_ok=True)
    head = {**HEAD, "pool_tokens": cells[0].limits.pool, "max_running": cells[0].limits.requests}
    book = Book(file, head, {"command": ["descant"]})
    for cell in cells:
        book.add(benchmark.Cell(Key(cell.scheme, cell.agents, cell.rate, 0), cell.turns))
    book.add(benchmark.Cell(Key("icarus", 2, 9.0, 0), error="it died"))


def test_calibrate_reads_a_benchmark_and_holds_every_second_rate_out(tmp_path: Path) -> None:
    file = tmp_path / "bench.jsonl"
    _write(file, [*_cells("nonshared", (0.1, 0.2, 0.4)), *_cells("icarus", (0.1, 0.2, 0.4))])
    cells = measured(file, chunk=2048)
    assert cells == [*_cells("nonshared", (0.1, 0.2, 0.4)), *_cells("icarus", (0.1, 0.2, 0.4))]
    found = calibrate(cells)
    assert [one.scheme for one in found] == ["nonshared", "icarus"]
    for one in found:
        assert [judged.fitted for judged in one.cells] == [True, False, True]
        assert one.cells[1].error.ttft < 0.01
        assert one.cells[1].error.latency < 0.01
    assert render(found).count("| held out |") == 2
    done = runner.invoke(_app(), ["calibrate", str(file), "--chunk", "2048"])
    assert done.exit_code == 0, done.output
    assert "nonshared, fitted:" in done.stdout

    assert "The fit is poor" not in done.stdout
    off = [
        replace(cell, turns=tuple(replace(turn, end=50 * turn.end + 1) for turn in cell.turns))
        if cell.rate > 0.3
        else cell
        for cell in _cells("icarus", (0.1, 0.2, 0.4))
    ]
    _write(file, off)
    done = runner.invoke(_app(), ["calibrate", str(file), "--chunk", "2048"])
    assert "The fit is poor: throughput is off by more than 25% in icarus, 2 agents, 0.4/s, on which" in done.stdout
    done = runner.invoke(_app(), ["calibrate", str(file), "--chunk", "2048", "--json"])
    assert len(json.loads(done.stdout)) == 1
    assert "The fit is poor" in done.stderr

    _write(file, [*_cells("icarus", (0.1,))])
    with pytest.raises(DescantError, match="measured at one rate"):
        calibrate(measured(file, chunk=2048))
    file.write_text("{}")
    with pytest.raises(DescantError, match="is no benchmark"):
        measured(file, chunk=2048)

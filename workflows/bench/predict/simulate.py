"""The same schedules in simulated time: SGLang's scheduler over a pool, on a machine that can be asked a step's time.

What is followed, of SGLang 0.5.23 (managers/scheduler.py and schedule_policy.py): requests wait in the order in which
they came; a prefill step goes before decode whenever one can be made; it holds prompts up to a number of tokens, the
last cut where they end (chunked prefill, not mixed with decode); a request is admitted if what is new of its prompt,
and all that it may generate, fits beside what the running ones may still generate, in what is free or evictable; after
a refusal none is tried until a request leaves; prefixes of waiting requests are refreshed every 32nd time; where decode
still runs out of room, the request with the fewest tokens generated is retracted and waits again, at the end. Steps
follow one another without a gap, as with the overlap scheduler.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from descant.runtime.errors import DescantError
from descant.workflows.bench.predict.pool import Pool
from descant.workflows.bench.predict.scheme import Scheme
from descant.workflows.bench.predict.step import Machine, Step
from descant.workflows.bench.row import Row
from descant.workflows.bench.schedule import Workflow

RESERVED_DECODE = 4096  # of a request's output, what admission reserves at most (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION)
REFRESH_EVERY = 32  # scheduling passes between refreshes of waiting prefixes (WAITING_PREFIX_REFRESH_INTERVAL)
REFRESHED = 128  # waiting requests whose prefixes are refreshed (WAITING_QUEUE_PREFIX_MATCH_MAX)


@dataclass(frozen=True)
class Limits:
    """A server's settings.

    pool: tokens of KV. chunk: tokens of a prefill step at most. requests: running at once at most.
    """

    pool: int
    chunk: int = 8192
    requests: int = 4096


@dataclass
class Run:
    """What a simulation gives.

    turns: in the order in which they ended.
    steps: each with the times at which it began and ended.
    prefilled: tokens that prefill computed; those of retracted requests count again.
    decoded: tokens that decode steps generated, all but each prompt's first.
    evicted, retracted: tokens of the tree, and requests.
    peak: tokens of the pool that were not free, at most.
    """

    turns: list[Row] = field(default_factory=list)
    steps: list[tuple[float, float, Step]] = field(default_factory=list)
    prefilled: int = 0
    decoded: int = 0
    evicted: int = 0
    retracted: int = 0
    peak: int = 0


@dataclass(eq=False, slots=True)
class _Request:
    """A turn that waits, is prefilled, or runs.

    prompt, decode: tokens that it brings, and that it shall generate.
    generated: tokens so far, while it waits or is prefilled; `last` minus the simulation's decode steps, while it runs.
    computed: tokens of its trajectory that are in the pool.
    matched: cached tokens that it found, and those of them that another agent wrote; None before it was first admitted.
    """

    workflow: Workflow
    turn: int
    key: tuple[int, int]
    prompt: int
    due: float
    sent: float
    generated: int = 0
    computed: int = 0
    matched: tuple[int, int] | None = None
    first: float | None = None
    last: int = 0

    @property
    def agent(self) -> int:
        return self.workflow.turns[self.turn].agent

    @property
    def decode(self) -> int:
        return self.workflow.turns[self.turn].decode

    @property
    def target(self) -> int:
        """Tokens that prefill must have computed: the prompt, and after a retraction what was generated."""
        return self.prompt + self.generated


def simulate(workflows: Sequence[Workflow], scheme: Scheme, machine: Machine, limits: Limits) -> Run:
    """Serve `workflows` on `machine` under `scheme`.

    Raises:
        DescantError: a trajectory does not fit the pool, or a turn generates nothing.
    """
    for workflow in workflows:
        if workflow.tokens + 1 >= limits.pool:
            raise DescantError(
                f"Workflow {workflow.number} has {workflow.tokens} tokens and the pool {limits.pool}: "
                "give a larger pool or shorter workflows."
            )
        workflow.check()
    simulation = _Simulation(scheme, machine, limits)
    for workflow in workflows:
        simulation.send(workflow, 0, workflow.turns[0].prefill, workflow.arrival)
    simulation.go()
    return simulation.run


class _Simulation:
    def __init__(self, scheme: Scheme, machine: Machine, limits: Limits) -> None:
        self.scheme = scheme
        self.machine = machine
        self.limits = limits
        self.pool = Pool(limits.pool)
        self.run = Run()
        self.now = 0.0
        self.arriving: list[tuple[float, int, _Request]] = []  # a heap: when it gets to the server, its number
        self.numbers = 0
        self.waiting: deque[_Request] = deque()
        self.chunked: _Request | None = None
        self.running: list[tuple[int, int, _Request]] = []  # a heap: the decode step that ends it, its number
        self.decode_steps = 0
        self.running_kv = 0  # tokens that a decode step reads now, of all running requests together
        self.running_agents: Counter[int] = Counter()
        self.full = False  # whether a request was refused and none has left since
        self.passes = 0

    def send(self, workflow: Workflow, turn: int, prompt: int, due: float) -> None:
        """A turn of `workflow` is due, with `prompt` tokens."""
        namespace = -1 if self.scheme.shared else workflow.turns[turn].agent
        request = _Request(workflow, turn, (workflow.number, namespace), prompt, due, due)
        self.numbers += 1
        heapq.heappush(self.arriving, (due + self.machine.turn, self.numbers, request))

    def go(self) -> None:
        """Step until nothing is left."""
        while True:
            while self.arriving and self.arriving[0][0] <= self.now:
                self.waiting.append(heapq.heappop(self.arriving)[2])
            batch = self._admit()
            if batch:
                self._prefill(batch)
            elif self.running:
                self._decode()
            elif self.arriving:
                self.now = max(self.now, self.arriving[0][0])
            else:
                assert not self.waiting, "a request that fits the pool alone was refused by an idle server"
                break
        self.run.evicted = self.pool.evicted

    def _admit(self) -> list[tuple[_Request, int]]:
        """The next prefill step's requests, each with how many tokens it computes."""
        if self.chunked is None and (self.full or not self.waiting):
            return []
        self._refresh()
        batch: list[tuple[_Request, int]] = []
        chunk = self.limits.chunk
        reserved = sum(min(last - self.decode_steps, RESERVED_DECODE) for last, _, _ in self.running)
        if (request := self.chunked) is not None:
            room = self.pool.room - reserved
            tokens = min(request.target - request.computed, min(chunk, room) if room > 0 else chunk)
            batch.append((request, tokens))
            chunk -= tokens
            reserved += tokens + 1
            if request.computed + tokens < request.target:
                return batch
            self.chunked = None
            reserved += min(request.decode, RESERVED_DECODE)
        while self.waiting and chunk > 0:
            request = self.waiting[0]
            if len(self.running) + len(batch) >= self.limits.requests:
                self.full = True
                break
            cached, foreign = self.pool.match(request.key, request.agent)
            self.pool.lock(request.key)  # first, so that its own prefix is no room
            new = request.target - cached
            output = min(request.decode - request.generated, RESERVED_DECODE)
            if new + output + 1 >= self.pool.room - reserved:
                self.pool.unlock(request.key)
                self.full = bool(batch or self.running)
                break
            self.waiting.popleft()
            request.computed = cached
            if request.matched is None:
                request.matched = cached, foreign
            tokens = min(new, chunk)
            batch.append((request, tokens))
            chunk -= tokens
            reserved += tokens + 1
            if tokens < new:
                self.chunked = request
            else:
                reserved += min(request.decode, RESERVED_DECODE)
            if self.pool.room <= reserved:
                self.full = True
                break
        return batch

    def _refresh(self) -> None:
        """Now and then, prefixes that wait are used, the next request's last."""
        if self.waiting:
            if self.passes % REFRESH_EVERY == 0:
                for request in reversed(list(self.waiting)[:REFRESHED]):
                    self.pool.touch(request.key)
            self.passes += 1

    def _prefill(self, batch: list[tuple[_Request, int]]) -> None:
        rows = pairs = kv = 0
        ending = []
        for request, tokens in batch:
            self.pool.allocate(tokens)
            rows += tokens
            pairs += tokens * request.computed + tokens * (tokens + 1) // 2
            kv += request.computed + tokens
            if request.computed + tokens == request.target:
                ending.append(request)
                if self.scheme.paired:
                    pairs += request.target
        self.run.prefilled += rows
        decoder = len(ending) if self.scheme.paired else 0
        readers = ending if self.scheme.paired else [request for request, _ in batch]
        self._step(
            Step(
                prefill=True,
                rows=rows + decoder,
                written=rows,
                adapted=decoder if self.scheme.paired else rows,
                pairs=pairs,
                kv=kv,
                logits=len(ending),
                adapters=len({request.agent for request in readers}),
            )
        )
        for request, tokens in batch:
            request.computed += tokens
            if request.computed > request.prompt:  # after a retraction: the tree keeps an end at the prompt's
                self.pool.checkpoint(request.key, request.prompt, request.agent)
            self.pool.checkpoint(request.key, request.computed, request.agent)
        for request in ending:
            request.generated += 1
            if request.first is None:
                request.first = self.now
            if request.generated == request.decode:
                self._end(request)
            else:
                request.last = self.decode_steps + request.decode - request.generated
                self.running_kv += request.prompt + request.generated
                self.running_agents[request.agent] += 1
                self.numbers += 1
                heapq.heappush(self.running, (request.last, self.numbers, request))

    def _decode(self) -> None:
        while len(self.running) > 1 and self.pool.room < len(self.running):
            self._retract()
        count = len(self.running)
        self.pool.allocate(count)
        rows = 2 if self.scheme.paired else 1
        self._step(
            Step(
                prefill=False,
                rows=rows * count,
                written=count,
                adapted=count,
                pairs=rows * self.running_kv,
                kv=self.running_kv,
                logits=count,
                adapters=len(self.running_agents),
            )
        )
        self.run.decoded += count
        self.running_kv += count
        self.decode_steps += 1
        while self.running and self.running[0][0] == self.decode_steps:
            request = heapq.heappop(self.running)[2]
            request.generated = request.decode
            self._leave_running(request)
            self.pool.checkpoint(request.key, request.prompt + request.decode - 1, request.agent)
            self._end(request)

    def _leave_running(self, request: _Request) -> None:
        self.running_kv -= request.prompt + request.generated
        self.running_agents[request.agent] -= 1
        self.running_agents += Counter()  # drops agents of whom none runs

    def _retract(self) -> None:
        """Of the running requests the one with the fewest tokens generated, the longest prompt among them, waits
        again; its prompt stays in the tree, what it generated is given back."""
        for last, _, request in self.running:
            request.generated = request.decode - (last - self.decode_steps)
        entry = min(self.running, key=lambda entry: (entry[2].generated, -entry[2].prompt))
        self.running.remove(entry)
        heapq.heapify(self.running)
        request = entry[2]
        self._leave_running(request)
        self.pool.release(request.target - 1 - request.computed)
        self.pool.unlock(request.key)
        self.waiting.append(request)
        self.run.retracted += 1
        self.full = False

    def _end(self, request: _Request) -> None:
        """A turn has all its tokens; the workflow's next one is due at once."""
        self.pool.unlock(request.key)
        self.full = False
        workflow, number = request.workflow, request.turn
        assert request.matched is not None
        assert request.first is not None
        self.run.turns.append(
            Row(
                workflow=workflow.number,
                turn=number,
                agent=request.agent,
                due=request.due,
                sent=request.sent,
                first=request.first,
                end=self.now,
                prompt=request.prompt,
                cached=request.matched[0],
                cross_agent=request.matched[1],
                output=request.decode,
            )
        )
        if number + 1 < len(workflow.turns):
            prompt = request.prompt + request.decode + workflow.turns[number + 1].prefill
            self.send(workflow, number + 1, prompt, self.now)

    def _step(self, step: Step) -> None:
        """The pool holds what the step writes; it takes its time."""
        self.run.peak = max(self.run.peak, self.pool.capacity - self.pool.free)
        began = self.now
        self.now += self.machine.seconds(step)
        self.run.steps.append((began, self.now, step))

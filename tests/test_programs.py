"""SGLang programs under an agent: what they compute, and the ids that they leave."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sglang as sgl
import tiny
from deployments import on
from engine import Server
from graphs import FOREVER
from sglang.lang.ir import SglFunction

from descant.runtime.programs import ProgramError, run_program
from descant.runtime.protocol import detokenize
from descant.runtime.session import RequestError, Session, TurnCancelled, TurnTimeout

GREEDY = {"temperature": 0}
WORDS = r"[A-Za-z ,.]+"
PROMPT = "Question: which city is larger, Porto or Lisbon?"


@pytest.fixture
def session(server: Server) -> Iterator[Session]:
    with Session(server.url) as session:
        session.append(PROMPT)
        yield session


@sgl.function
def think_and_act(s: Any, tool: str) -> str:
    """A program as one would write it for SGLang alone."""
    s += "\nThought: " + sgl.gen("thought", max_tokens=12, regex=WORDS, stop=",")
    s += "\nAction: " + sgl.select("kind", choices=["Search", "Lookup", "Finish"])
    if s["kind"] != "Nothing":
        s += f"[{tool}]"
    s += " times " + sgl.gen("times", dtype=int, max_tokens=4)
    return "returned"


@on("llama")
@pytest.mark.parametrize("agent", ["plan", None])
def test_a_program_leaves_what_it_wrote_token_for_token(session: Session, agent: str | None) -> None:
    start = session.ids
    pieces: list[str] = []
    state = run_program(session, agent, think_and_act, sampling=GREEDY, on_text=pieces.append, tool="Lisbon")
    assert state.ret_value == "returned"
    assert re.fullmatch(WORDS, state["thought"])
    assert re.fullmatch(r"[-+]?\d+", state["times"])
    assert state["kind"] in ("Search", "Lookup", "Finish")
    assert "".join(pieces) == state["thought"] + state["kind"] + state["times"]
    written = f"\nThought: {state['thought']}\nAction: {state['kind']}[Lisbon] times {state['times']}"
    assert state.text() == written
    assert session.client.call(detokenize(session.ids[len(start) :])) == written

    # The same turns, by hand.
    hand = Session(session.client, start)
    hand.append("\nThought: ")
    hand.generate(agent, max_tokens=12, regex=WORDS, stop=",", sampling=GREEDY)
    hand.append("\nAction: ")
    hand.select(agent, ["Search", "Lookup", "Finish"])
    hand.append("[Lisbon] times ")
    hand.generate(agent, max_tokens=4, regex=r"[-+]?[0-9]+[ \n]*", stop=[" ", "\n"], sampling=GREEDY)
    assert hand.ids == session.ids
    for ours, theirs in zip(session.turns, hand.turns, strict=True):
        assert (ours.agent, ours.prompt_ids, ours.output_ids) == (agent, theirs.prompt_ids, theirs.output_ids)


@on("llama")
def test_agents_read_what_programs_left_in_the_cache(server: Server, session: Session) -> None:
    @sgl.function
    def speak(s: Any, cue: str) -> None:
        s += cue + sgl.gen("said", max_tokens=8, ignore_eos=True)

    for number in range(9):
        before = len(session)
        run_program(session, tiny.AGENTS[number % 3], speak, cue="\nNext: ")
        turn = session.turns[-1]
        added = len(session.client.tokenize("\nNext: "))
        if number:
            assert (turn.prompt_tokens, turn.prefilled) == (before + added, added + 1)
            assert turn.cross_agent > 0
    assert session.client.tokenize(session.text()) != list(session.ids)


@on("llama")
def test_forks_share_the_prefix_and_the_parent_keeps_its_own(server: Server, session: Session) -> None:
    @sgl.function
    def tips(s: Any) -> None:
        s += "\nTwo tips: "
        forks = s.fork(2)
        forks += lambda i: f"tip {i}: "
        forks += sgl.gen("tip", max_tokens=6, ignore_eos=True)
        inner = forks[0].fork(2)
        inner += sgl.gen("inner", max_tokens=3, ignore_eos=True)
        inner.join()
        forks.join()
        s += "both: " + sgl.gen("both", max_tokens=5, ignore_eos=True)

    start = session.ids
    state = run_program(session, "plan", tips, sampling=GREEDY)
    assert len(state["tip"]) == 2
    assert len(state["inner"][0]) == 2
    assert state["inner"][0][0] == state["inner"][0][1]  # greedy, from the same ids
    hand = Session(session.client, start)
    hand.append("\nTwo tips: ")
    shared = len(hand)
    hand.append("both: ")
    hand.generate("plan", max_tokens=5, sampling={**GREEDY, "ignore_eos": True})
    assert hand.ids == session.ids
    tip_turns = [turn for turn in session.turns if len(turn.output_ids) == 6]
    assert len(tip_turns) == 2
    for turn in tip_turns:
        # Computed once, before the fork; a fork computes what it adds.
        assert turn.cached_tokens >= shared
        assert turn.text in state["tip"]
    assert len(session.turns) == 5


@on("llama")
def test_forks_can_be_joined_into_the_parent(session: Session) -> None:
    @sgl.function
    def gather(s: Any) -> None:
        s += "\nAll: "
        forks = s.fork(2)
        forks += lambda i: f" part {i}"
        forks += sgl.gen("part", max_tokens=6, ignore_eos=True)
        forks += lambda i: ";"
        forks.join("concate_and_append")
        s += sgl.gen("end", max_tokens=2, ignore_eos=True)

    start = session.ids
    run_program(session, "act", gather)
    first, second = sorted(session.turns[:2], key=lambda turn: turn.prompt_ids[-1])
    tokenize = session.client.tokenize
    expected = [*start, *tokenize("\nAll: ")]
    for number, turn in enumerate((first, second)):
        expected += [*tokenize(f" part {number}"), *turn.output_ids, *tokenize(";")]
    assert session.ids == (*expected, *session.turns[2].output_ids)


@on("llama")
def test_roles_are_the_chat_templates(session: Session) -> None:
    @sgl.function
    def chat(s: Any) -> None:
        s += sgl.user("Which city?")
        s += sgl.assistant(sgl.gen("answer", max_tokens=6, regex=WORDS))

    start = len(session)
    state = run_program(session, "plan", chat, sampling=GREEDY)
    # That of an unknown model.
    assert session.client.call(detokenize(session.ids[start:])) == f"USER:Which city?\nASSISTANT:{state['answer']}\n"
    assert state.messages()[-1] == {"role": "assistant", "content": state["answer"].lstrip()}


@on("llama")
def test_gen_takes_schemas_logprobs_and_choices(session: Session) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}

    @sgl.function
    def many(s: Any) -> None:
        s += sgl.gen("json", max_tokens=30, json_schema=json.dumps(schema))
        s += sgl.gen("probable", max_tokens=4, return_logprob=True, top_logprobs_num=2, ignore_eos=True)
        s += sgl.gen("choice", choices=[" yes", " no"], choices_method=sgl.unconditional_likelihood_normalized)
        s += sgl.select("greedy", [" yes", " no"], choices_method=sgl.greedy_token_selection)
        s += sgl.gen("float", dtype=float, max_tokens=5) + " " + sgl.gen("string", dtype=str, max_tokens=20)
        with s.copy() as other:
            other += "aside"
        with s.var_scope("scope"):
            s += " end"

    state = run_program(session, "plan", many, sampling={**GREEDY, "stop": "~"})
    assert set(json.loads(state["json"])) == {"ok"}
    meta = state.get_meta_info("probable")
    assert [entry[1] for entry in meta["output_token_logprobs"]] == session.turns[1].output_ids
    assert all(len(top) == 2 for top in meta["output_top_logprobs"])
    assert state["choice"] in (" yes", " no")
    assert state["greedy"] in (" yes", " no")
    assert re.fullmatch(r"[-+]?\d*\.?\d+", state["float"])
    assert state["string"].startswith('"')
    assert state["scope"] == " end"
    assert "aside" not in session.text()
    assert session.text() == PROMPT + state.text()


def _image(s: Any) -> None:
    s += sgl.image("no.png")


def _several(s: Any) -> None:
    s += "x" + sgl.gen("several", n=2)


def _sampled(s: Any) -> None:
    s += sgl.select("sampled", ["a", "b"], temperature=1.0)


def _reasoning(s: Any) -> None:
    s += sgl.separate_reasoning(sgl.gen("r", max_tokens=2), model_type="qwen3")


def _python(s: Any) -> None:
    s += "x" + sgl.gen("x", max_tokens=2)
    raise LookupError("the program's own")


def _fork_joined(s: Any) -> None:
    forks = s.fork(2)
    forks += sgl.gen("x", json_schema="{", max_tokens=2)
    forks += lambda i: "more"
    forks.join()


def _fork_read(s: Any) -> None:
    forks = s.fork(1)
    forks += sgl.image("no.png")
    forks += sgl.gen("x", max_tokens=2)
    forks[0]["x"]


def _fork_left(s: Any) -> None:
    s.fork(1)[0].__iadd__(sgl.image("no.png"))


@on("llama")
@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        (_image, ProgramError, "image"),
        (_several, RequestError, "n > 1"),
        (_sampled, ProgramError, "temperature"),
        (_reasoning, ProgramError, "separate_reasoning"),
        (_python, LookupError, "the program's own"),
        (_fork_joined, RequestError, "schema|grammar"),
        (_fork_read, ProgramError, "image"),
        (_fork_left, ProgramError, "image"),
    ],
)
def test_an_error_surfaces_and_the_session_is_as_before(
    session: Session, function: Callable[[Any], None], kind: type[Exception], words: str
) -> None:
    before, threads = session.ids, threading.active_count()
    with pytest.raises(kind, match=words):
        run_program(session, "plan", SglFunction(function))
    assert session.ids == before
    assert not session.turns
    assert threading.active_count() <= threads


@on("llama")
def test_an_unknown_agent_is_named(session: Session) -> None:
    with pytest.raises(RequestError, match="nobody"):
        run_program(session, "nobody", think_and_act, tool="x")


@on("roomy")
def test_a_program_has_to_be_over_in_time_forks_too(server: Server, session: Session) -> None:
    @sgl.function
    def long(s: Any) -> None:
        forks = s.fork(2)
        forks += sgl.gen("long", max_tokens=FOREVER, ignore_eos=True)
        forks.join()

    before = session.ids
    start = time.monotonic()
    with pytest.raises(TurnTimeout):
        run_program(session, "plan", long, timeout=1)
    assert time.monotonic() - start < 3
    assert session.ids == before
    server.flush()


@on("roomy")
def test_an_error_in_the_program_ends_its_forks(server: Server, session: Session) -> None:
    said = threading.Event()

    @sgl.function
    def broken(s: Any) -> None:
        s.fork(1)[0].__iadd__(sgl.gen("long", max_tokens=FOREVER, ignore_eos=True))
        assert said.wait(10)
        raise LookupError("the program's own")

    start = time.monotonic()
    with pytest.raises(LookupError):
        run_program(session, "plan", broken, on_text=lambda _: said.set())
    assert time.monotonic() - start < 2
    server.flush()


@on("roomy")
def test_cancel_ends_a_program_and_its_forks(server: Server, session: Session) -> None:
    before = session.ids
    start = time.monotonic()
    for forks in (0, 2):
        said = threading.Event()

        def program(s: Any, forks: int = forks) -> None:
            branches = s.fork(forks) if forks else s
            branches += sgl.gen("long", max_tokens=FOREVER, ignore_eos=True)
            if forks:
                branches.join()

        def cancel(said: threading.Event = said) -> None:
            said.wait()
            session.cancel()

        thread = threading.Thread(target=cancel)
        thread.start()
        with pytest.raises(TurnCancelled):
            run_program(session, "plan", SglFunction(program), on_text=lambda _, said=said: said.set())
        thread.join()
        server.flush()
    assert time.monotonic() - start < 4
    assert session.ids == before


def test_the_session_needs_no_sglang() -> None:
    code = "import sys, descant.runtime.session; sys.exit(any(name.split('.')[0] == 'sglang' for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)

"""`descant run` on the real engine, as a user runs it: transcript, events, resumption, and what it refuses."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from commands import begin, descant, events, here, read_until, refused, wait_for
from deployments import on
from engine import Server

from descant.workflows.checkpoints import SqliteCheckpoints

QUESTION = "Which city is larger?"
SHORT = ("--steps", 2)
USERS_GRAPH = """
import operator
import pathlib
from typing import Annotated, TypedDict

import sglang as sgl
from langgraph.graph import END, START
from langgraph.types import interrupt

from descant.agents.agent import Agent
from descant.workflows.graph import AgentGraph


class Notes(TypedDict, total=False):
    question: str
    note: str
    reply: str


class Other(TypedDict, total=False):
    topic: str


def chat(adapter="plan", tokens=4):
    graph = AgentGraph(Notes, opening=lambda state: f"Question: {state['question']}")
    greedy = {"temperature": 0, "ignore_eos": True}

    def note(s):
        s += sgl.gen("note", max_tokens=tokens)

    def reply(s):
        s += " said "
        s += sgl.gen("reply", max_tokens=4)

    graph.add_step("note", Agent("writer", adapter, " Note: ", greedy), note)
    graph.add_step("reply", Agent("reader", "act", " Reply: ", greedy), reply)
    return graph.add_edge(START, "note").add_edge("note", "reply").add_edge("reply", END)


graph = chat()
forever = lambda: chat(tokens=900)
stranger = lambda: chat("nobody")
other = AgentGraph(Other, opening="Hello.").add_step("a", None, lambda s: None).add_edge(START, "a")
number = 3


def broken():
    raise ValueError("no graph today")


class Asked(TypedDict, total=False):
    question: str
    said: Annotated[list, operator.add]


def asks(*names):
    graph = AgentGraph(Asked, opening="Hello.")

    def ask(name):
        return lambda state: {"said": [[name, interrupt(f"What of {name}?")]]}

    for name in names:
        graph.add_node(name, ask(name))
        graph.add_edge(START, name).add_edge(name, END)
    return graph


one_asks = lambda: asks("north")
two_ask = lambda: asks("north", "south")


def failing():
    def fail(state):
        if not pathlib.Path(__file__).with_name("mended").exists():
            raise KeyError("what the user's code raised")
        return {"said": ["mended"]}

    return AgentGraph(Asked, opening="Hello.").add_node("fail", fail).add_edge(START, "fail").add_edge("fail", END)
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    file = tmp_path / "users_graph.py"
    file.write_text(USERS_GRAPH)
    return file


@pytest.fixture(scope="module")
def passages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("passages") / "passages.jsonl"
    file.write_text('{"title": "Lisbon", "text": "Lisbon is a city."}\n')
    return file


def ids(cache: Path, thread: str) -> list[int]:
    found = SqliteCheckpoints(cache / "runs.sqlite").get_tuple({"configurable": {"thread_id": thread}})
    assert found is not None
    values: list[int] = found.checkpoint["channel_values"]["ids"]
    return values


def aborts(server: Server) -> int:
    return server.log.read_text(errors="replace").count("POST /abort_request")


@on("roomy")
def test_a_transcript(server: Server, cache: Path, passages: Path) -> None:
    shown = descant(
        *("run", "plan-act-reflect", QUESTION, *SHORT, "--passages", passages, "--server", server.url),
        *("--thread", "told", "--adapters", "plan=wide", "act=act", "reflect="),
        cache=cache,
    )
    assert "plan: adapter wide; act: adapter act; reflect: the base model." in shown.stderr
    assert "descant run --resume told" in shown.stderr
    assert "\x1b" not in shown.stdout
    assert shown.stdout.startswith(f"{QUESTION}\n\nplan ")
    assert re.search(r"^plan +Thought:", shown.stdout, re.MULTILINE)  # what follows may hold any character
    assert re.search(r"^ +Action: (Search|Lookup|Calculate|Finish)$", shown.stdout, re.MULTILINE)
    assert re.search(r"^act +\[.+\]$", shown.stdout, re.MULTILINE)
    assert re.search(r"^tool +Observation: .+$", shown.stdout, re.MULTILINE)
    assert re.search(r"^Answer +\S", shown.stdout, re.MULTILINE)
    assert re.search(r"^Ended +(answered|limit of 2 (steps|verdicts))", shown.stdout, re.MULTILINE)
    totals = r"^Totals +\d+ turns, \d+ tokens generated; [\d,]+ prompt +tokens, [\d,]+ reused"
    assert re.search(totals, re.sub(r"\s*\n {3,}", " ", shown.stdout), re.MULTILINE)

    # What had ended is shown again, and the id is taken.
    again = descant("run", "--resume", "told", cache=cache)
    assert again.stdout[again.stdout.index("Answer") :] == shown.stdout[shown.stdout.index("Answer") :]
    taken = descant("run", "react", QUESTION, "--server", server.url, "--thread", "told", cache=cache, status=1)
    assert taken.stderr.splitlines() == ["There is a run told already: resume it, or choose another --thread."]


@on("roomy")
def test_events_are_json_and_the_last_is_the_result(server: Server, cache: Path) -> None:
    arguments = ("run", "reflexion", QUESTION, *SHORT, "--key", "Lisbon", "--server", server.url, "--json")
    told = events(descant(*arguments, "--thread", "json", cache=cache).stdout)
    first, *between, last = told
    assert (first["event"], first["thread"], first["question"]) == ("run", "json", QUESTION)
    assert first["agents"] == {"plan": "plan", "act": "act", "reflect": "reflect"}
    assert {event["event"] for event in between} >= {"turn", "text", "turn_end"}
    turns = [event for event in between if event["event"] == "turn_end"]
    assert (last["event"], last["turns"]) == ("result", len(turns))
    assert last["prompt_tokens"] == sum(turn["prompt_tokens"] for turn in turns)
    assert last["cross_agent_tokens"] == sum(turn["cross_agent"] for turn in turns) > 0
    assert last["cached_tokens"] + last["prefilled_tokens"] == last["prompt_tokens"]
    assert last["ended"] == "limit of 3 trials"
    assert len(last["state"]["reflections"]) == 2
    assert last["answer"] == last["state"]["answer"]


@on("roomy")
@pytest.mark.parametrize("turns", [1, 3])
def test_a_killed_run_goes_on_and_gives_the_same(server: Server, cache: Path, passages: Path, turns: int) -> None:
    arguments = ("run", "react", QUESTION, *SHORT, "--passages", passages, "--server", server.url, "--json")
    whole, cut = f"whole-{turns}", f"cut-{turns}"
    expected = events(descant(*arguments, "--thread", whole, cache=cache).stdout)[-1]
    assert expected["turns"] == 4
    child = begin(*arguments, "--thread", cut, cache=cache)
    try:
        ended = 0

        def enough(event: Any) -> bool:
            nonlocal ended
            ended += event["event"] == "turn_end"
            return ended == turns or event["event"] == "result"

        assert read_until(child, enough)[-1]["event"] == "turn_end"
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    result = events(descant("run", "--resume", cut, "--json", cache=cache).stdout)[-1]
    costs = ("thread", "ttft_p50", "ttft_p90")
    same = [name for name in expected if name not in costs and not re.search("cached|cross|prefilled", name)]
    assert {name: result[name] for name in same} == {name: expected[name] for name in same}
    assert ids(cache, cut) == ids(cache, whole)


@on("roomy")
def test_ctrl_c_ends_the_request_and_says_how_to_go_on(server: Server, cache: Path, users_file: Path) -> None:
    before = aborts(server)
    arguments = ("run", f"{users_file}:forever", "Hi?", "--server", server.url, "--json", "--thread", "long")
    child = begin(*arguments, cache=cache)
    read_until(child, lambda event: event["event"] == "text")
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130
    assert child.stderr is not None
    said = child.stderr.read()
    assert said.splitlines()[-2:] == ["To go on: descant run --resume long", "Interrupted."]
    assert "Traceback" not in said
    wait_for(lambda: aborts(server) == before + 1, 5)
    result = events(descant("run", "--resume", "long", "--json", cache=cache).stdout)[-1]
    assert result["state"]["reply"]


@on("roomy")
def test_a_graph_of_the_users(server: Server, cache: Path, users_file: Path) -> None:
    shown = descant("run", f"{users_file}:graph", "Hi?", "--server", server.url, cache=cache)
    assert "writer: adapter plan; reader: adapter act." in shown.stderr
    assert re.search(r"^writer +Note: ", shown.stdout, re.MULTILINE)
    assert re.search(r"^reader +Reply:  said ", shown.stdout, re.MULTILINE)
    assert re.search(r"^Ended +the graph was through", shown.stdout, re.MULTILINE)
    assert re.search(r"^reply +\S", shown.stdout, re.MULTILINE)


@on("roomy")
def test_what_a_graph_asks_is_shown_and_answered(
    server: Server, users_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESCANT_CACHE", str(tmp_path / "cache"))
    begun = ("run", f"{users_file}:one_asks", "Hi?", "--server", server.url, "--thread")
    for number, (text, meant) in enumerate(
        [("Go on.", "Go on."), ('{"a": [1, null]}', {"a": [1, None]}), ("null", None)]
    ):
        thread = f"one-{number}"
        for arguments in ((*begun, thread), ("run", "--resume", thread)):  # asked again until it is answered
            shown = here(*arguments)
            assert re.search(r"^Asks +What of north\?$", shown.stdout, re.MULTILINE)
            assert "Ended" not in shown.stdout
            assert shown.stderr.splitlines()[-1] == f"To answer: descant run --resume {thread} --answer TEXT"
        answered = events(here("run", "--resume", thread, "--answer", text, "--json").stdout)
        assert answered[-1]["event"] == "result"
        assert answered[-1]["state"]["said"] == [["north", meant]]
    no_answer = "The run one-0 waits for no answer: resume it without --answer."
    assert refused("run", "--resume", "one-0", "--answer", "Again.") == no_answer
    assert "give --answer with --resume ID" in refused(*begun, "new", "--answer", "Early.")


@on("roomy")
def test_several_questions_are_answered_by_id(
    server: Server, users_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESCANT_CACHE", str(tmp_path / "cache"))
    shown = here("run", f"{users_file}:two_ask", "Hi?", "--server", server.url, "--thread", "two", "--json")
    ids = {event["value"]: event["id"] for event in events(shown.stdout) if event["event"] == "interrupt"}
    assert ids.keys() == {"What of north?", "What of south?"}
    assert all(one in shown.stderr.splitlines()[-1] for one in ids.values())
    for text in ("Go on.", "{}", '{"north": 1}'):
        assert "The run two waits for 2 answers: give them by id" in refused("run", "--resume", "two", "--answer", text)

    # One after the other, or both at once.
    north, south = ids["What of north?"], ids["What of south?"]
    *_, left = events(here("run", "--resume", "two", "--answer", json.dumps({south: 1}), "--json").stdout)
    assert (left["event"], left["id"]) == ("interrupt", north)
    *_, last = events(here("run", "--resume", "two", "--answer", "2", "--json").stdout)
    assert sorted(last["state"]["said"]) == [["north", 2], ["south", 1]]


@on("roomy")
def test_below_what_the_users_code_raised_stands_how_to_go_on(
    server: Server, users_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESCANT_CACHE", str(tmp_path / "cache"))
    failed = here("run", f"{users_file}:failing", "Hi?", "--server", server.url, "--thread", "failed", status=1)
    assert "Traceback" in failed.stderr
    assert 'KeyError: "what the user\'s code raised"' in failed.stderr
    assert failed.stderr.splitlines()[-1] == "To go on: descant run --resume failed"
    (tmp_path / "mended").touch()
    assert events(here("run", "--resume", "failed", "--json").stdout)[-1]["state"]["said"] == ["mended"]


@on("roomy")
def test_what_a_user_gets_wrong_is_one_sentence(
    server: Server, users_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESCANT_CACHE", str(tmp_path / "cache"))
    at = ("--server", server.url)
    malformed = tmp_path / "malformed.jsonl"
    malformed.write_text('{"title": "A", "text": "a"}\n{"title": "B"}\n')
    (tmp_path / "syntax.py").write_text("graph = (")
    for arguments, words in (
        (("sing", "Hi?"), "There is no workflow 'sing': name react, reflexion, plan-act-reflect or FILE.py:NAME."),
        (("react",), "Say what to run and what to ask"),
        (("react", "Hi?", *at, "--adapters", "plan=nobody"), "The server has no adapter 'nobody': its adapters are "),
        (("react", "Hi?", *at, "--adapters", "reflect=act"), "The agents of react are plan, act: it has no reflect."),
        (("react", "Hi?", *at, "--adapters", "plan"), "--adapters plan names no adapter: write ROLE=NAME."),
        (("react", "Hi?", *at, "--passages", malformed), f"{malformed}, line 2 is no passage"),
        (("react", "Hi?", *at, "--passages", tmp_path / "no"), "cannot be read: No such file or directory."),
        (("react", "Hi?", *at, "--passages", malformed, "--wikipedia"), "give one of the two."),
        (("react", "Hi?", *at, "--key", "x"), "Only reflexion judges by a key"),
        (("react", " ", *at), "There is no question"),
        (("react", "Hi?", "--server", "http://127.0.0.1:9"), "cannot be reached"),
        ((tmp_path / "no.py:graph", "Hi?"), f"There is no file {tmp_path / 'no.py'}"),
        ((f"{users_file}:nothing", "Hi?", *at), f"{users_file} has no nothing"),
        ((f"{users_file}:number", "Hi?", *at), "is no AgentGraph but int"),
        ((f"{users_file}:broken", "Hi?", *at), "cannot be run (ValueError: no graph today)."),
        ((tmp_path / "syntax.py:graph", "Hi?", *at), "cannot be run (SyntaxError: "),
        ((f"{users_file}:other", "Hi?", *at), "has no key question"),
        ((f"{users_file}:stranger", "Hi?", *at), "The server has no adapter 'nobody'"),
        ((f"{users_file}:graph", "Hi?", *at, "--steps", 2), "A graph of your own says that itself: leave --steps out."),
        (("--resume", "nobody"), "There is no run nobody: descant run prints the id of each."),
        (("react", "--resume", "nobody"), "A run goes on as it was begun"),
    ):
        assert words in refused("run", *arguments), arguments

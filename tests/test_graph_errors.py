"""Wrong programs and wrong graphs: each ends in one sentence that says where and what to do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
import sglang as sgl
from deployments import on
from engine import Server
from graphs import ACTOR, PLANNER, QUESTION, State, do, loop, opening, single, think
from langgraph.types import Command, Send

from descant.agents.agent import Agent
from descant.runtime.errors import DescantError
from descant.runtime.session import RequestError
from descant.workflows.graph import AgentGraph, GraphError
from descant.workflows.step import StepError

NOWHERE = "http://127.0.0.1:1"


class Hiding(TypedDict):
    question: str
    steps: int


def one_sentence(error: DescantError) -> None:
    text = str(error)
    assert "\n" not in text
    assert text.endswith(".")
    assert ". " not in text


def _bare() -> AgentGraph:
    return AgentGraph(State, opening=opening).add_step("think", PLANNER, think).add_step("do", ACTOR, do)


@pytest.mark.parametrize(
    ("describe", "kind", "words"),
    [
        (lambda: single(lambda question: None), StepError, r"'only' takes no `s` first"),
        (lambda: single(lambda: None), StepError, r"'only' takes no `s` first"),
        (lambda: single(lambda s, answer, thought: None), StepError, r"'only' takes answer, which the state"),
        (lambda: single(think, state=Hiding), DescantError, "state's steps would hide"),
        (lambda: _bare().add_step("do", ACTOR, do), GraphError, "a node 'do' already"),
        (lambda: _bare().add_node("do", print), GraphError, "a node 'do' already"),
        (lambda: _bare().add_node("opening", print), GraphError, "a node 'opening' already"),
        (lambda: _bare().add_edge("think", "do").compile(NOWHERE), GraphError, "what runs first: .* START"),
        (lambda: loop().add_edge("think", "act").compile(NOWHERE), GraphError, "node 'act', which"),
        (lambda: loop().add_edge("act", "think").compile(NOWHERE), GraphError, "node 'act', which"),
        (lambda: loop().add_edge("do", "opening").compile(NOWHERE), GraphError, "node 'opening', which"),
        (
            lambda: loop().add_conditional_edges("think", lambda _: "act", {"x": "act"}).compile(NOWHERE),
            GraphError,
            "node 'act', which",
        ),
        (lambda: loop().add_conditional_edges("act", print).compile(NOWHERE), GraphError, "node 'act', which"),
        (lambda: loop().add_edge("do", "think").compile(NOWHERE), GraphError, r"loop through '(think|do)'"),
        (lambda: loop().add_edge("do", "do").compile(NOWHERE), GraphError, r"loop through 'do'"),
        (lambda: loop().compile(NOWHERE).invoke(QUESTION), RequestError, "cannot be reached"),
    ],
)
def test_a_wrong_description_is_refused(describe: Callable[[], Any], kind: type[DescantError], words: str) -> None:
    with pytest.raises(kind, match=words) as error:
        describe()
    one_sentence(error.value)


def _speaks(returned: Any) -> Callable[[Any], Any]:
    def speak(s: Any) -> Any:
        s += sgl.gen("thought", max_tokens=1)
        return returned

    return speak


@on("llama")
@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (single(do), "'only' needs thought, which nothing has set"),
        (single(_speaks(7)), "'only' returned int: return a dict"),
        (single(_speaks({"answer": 7, "round": 1})), "'only' returned answer, and may set only action, ended, notes"),
        (single(_speaks({"ids": []})), "'only' returned ids, and may set only"),
        (single(_speaks(Command(update={"answer": 7}))), "'only' returned answer, and may"),
        (single(_speaks(Command(update=[("round", 7)]))), "'only' returned list: return a dict"),
        (loop(again=lambda _: "thnk"), "router of 'do' gave 'thnk', which is none of '__end__', 'think'"),
        (
            loop().add_conditional_edges("think", lambda _: None),
            "router of 'think' gave None, which is none of .*'do', 'think'",
        ),
        (loop(again=lambda _: Send("think", {"question": "x"})), r"'think' was sent a state without the trajectory"),
        (single(_speaks(None), Agent("a", "nobody")), "nobody"),
    ],
)
def test_what_goes_wrong_in_a_run_is_said(server: Server, graph: AgentGraph, words: str) -> None:
    with pytest.raises(DescantError, match=words) as error:
        graph.compile(server.url).invoke(QUESTION)
    assert "\n" not in str(error.value)


@on("llama")
def test_programs_may_be_any_callable(server: Server) -> None:
    def speak(s: Any, question: str, /, *, word: str, thought: str = "none") -> dict[str, Any]:
        s += f" {word} {question} {thought}" + sgl.gen("action", max_tokens=1)
        return {"notes": [s.text()]}

    def program(s: Any, *, question: str, word: str, thought: str = "none") -> dict[str, Any]:
        return speak(s, question, word=word, thought=thought)

    class Speaker:
        def said(self, s: Any, question: str) -> dict[str, Any]:
            return program(s, question=question, word="so")

        def __call__(self, s: Any, question: str) -> dict[str, Any]:
            return self.said(s, question)

    @sgl.function
    def decorated(s: Any, question: str, word: str) -> dict[str, Any]:
        return program(s, question=question, word=word)

    speaker = Speaker()
    outcomes = [
        single(each).compile(server.url).invoke(QUESTION)
        for each in (functools.partial(program, word="so"), speaker, speaker.said, decorated.bind(word="so"))
    ]
    assert " so which city" in outcomes[0]["notes"][0]
    assert all(outcome["ids"] == outcomes[0]["ids"] for outcome in outcomes)

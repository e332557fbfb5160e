"""What a run tells while it goes on."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest
import sglang as sgl
from deployments import on
from engine import Server
from graphs import QUESTION, ROUNDS, loop, single
from langchain_core.callbacks import BaseCallbackHandler

from descant.agents.observation import Observation
from descant.workflows.events import observed

MODES = ["custom", "updates", "values", "messages"]


def streamed(app: Any, way: str) -> list[tuple[str, Any]]:
    """All that a run tells, by `stream` or by `astream`."""

    async def gather() -> list[tuple[str, Any]]:
        return [told async for told in app.astream(QUESTION, stream_mode=MODES)]

    return asyncio.run(gather()) if way == "astream" else list(app.stream(QUESTION, stream_mode=MODES))


@on("llama")
@pytest.mark.parametrize("way", ["stream", "astream"])
def test_the_four_modes_tell_the_same_run(server: Server, way: str) -> None:
    told = defaultdict(list)
    for mode, what in streamed(loop().compile(server.url), way):
        told[mode].append(what)

    state = told["values"][-1]
    steps = state["steps"][1:]
    said = [step["turns"][0]["text"] for step in steps]
    updates = [(name, update) for one in told["updates"] for name, update in one.items()]
    assert [name for name, _ in updates] == ["opening", *["think", "do"] * ROUNDS]
    ids: list[int] = []
    for _, update in updates:
        ids += update["ids"]
    assert ids == state["ids"]

    messages: dict[str, str] = defaultdict(str)
    for chunk, about in told["messages"]:
        assert (about["langgraph_node"], chunk.name) in (("think", "planner"), ("do", "actor"))
        messages[chunk.id] += chunk.content
    assert list(messages.values()) == said

    turns = iter(zip(steps, said, strict=True))
    text = ""
    kinds = []
    for event in told["custom"]:
        kinds.append(event["event"])
        if event["event"] == "turn":
            step, text = next(turns)[0], ""
            cue = {"planner": "\nThought:", "actor": "\nAction:"}[step["agent"]]
            assert event == {"event": "turn", "node": step["node"], "agent": step["agent"], "cue": cue}
        elif event["event"] == "text":
            text += event["text"]
        elif event["event"] == "turn_end":
            assert event == {"event": "turn_end", "node": step["node"], **step["turns"][0]}
            assert text == event["text"]
    assert kinds.count("turn") == kinds.count("turn_end") == 2 * ROUNDS
    assert kinds.count("text") > 2 * ROUNDS  # it came in pieces


@on("llama")
def test_text_of_forks_is_told_too(server: Server) -> None:
    def tips(s: Any) -> None:
        forks = s.fork(3)
        forks += lambda i: f"tip {i}: "
        forks += sgl.gen("notes", max_tokens=6)
        forks.join()

    told = streamed(single(tips).compile(server.url), "astream")
    turns = [event for mode, event in told if mode == "custom" and event["event"] == "turn_end"]
    assert len(turns) == 3
    pieces = "".join(chunk.content for mode, (chunk, _) in ((m, w) for m, w in told if m == "messages"))
    assert sorted(pieces) == sorted("".join(turn["text"] for turn in turns))


@on("llama")
def test_an_observation_is_told_and_callbacks_hear_the_agent(server: Server) -> None:
    class Heard(BaseCallbackHandler):
        def __init__(self) -> None:
            self.said: list[str] = []
            self.ended: list[str] = []

        def on_llm_new_token(self, token: Any, **_: Any) -> None:
            self.said.append(token)

        def on_llm_end(self, response: Any, **_: Any) -> None:
            self.ended.append(response.generations[0][0].text)

        def on_llm_error(self, error: BaseException, **_: Any) -> None:
            self.ended.append(f"error: {error}")

    def lookup(s: Any) -> None:
        s += sgl.gen("thought", max_tokens=4)
        observed(Observation("Search", "Lisbon", "a city", True, 0.5))

    heard = Heard()
    app = single(lookup).compile(server.url)
    told = list(app.stream(QUESTION, {"callbacks": [heard]}, stream_mode="custom"))
    assert {
        "event": "observation",
        "tool": "Search",
        "argument": "Lisbon",
        "text": "a city",
        "ok": True,
        "seconds": 0.5,
    } in told
    assert heard.ended == ["".join(heard.said)] == [told[-1]["text"]]

    def fail(s: Any) -> None:
        raise LookupError("the program's own")

    heard = Heard()
    with pytest.raises(LookupError, match="the program's own"):
        single(fail).compile(server.url).invoke(QUESTION, {"callbacks": [heard]})
    assert heard.ended == ["error: the program's own"]

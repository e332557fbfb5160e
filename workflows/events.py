"""What a run tells while it goes on: LangGraph's `custom` stream, and tokens in its `messages` stream too."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import get_callback_manager_for_config
from langgraph.config import get_stream_writer

from descant.agents.observation import Observation

# Events are JSON objects; "event" is one of these. What turns, texts and writings say is, in order, all that the run's
# steps append to the trajectory.
TURN, TEXT, WRITTEN, TURN_END, OBSERVATION = "turn", "text", "written", "turn_end", "observation"


def observed(observation: Observation) -> None:
    """Tell, from within a node, what a tool answered."""
    get_stream_writer()(
        {
            "event": OBSERVATION,
            "tool": observation.tool,
            "argument": observation.argument,
            "text": observation.text,
            "ok": observation.ok,
            "seconds": observation.seconds,
        }
    )


@contextmanager
def speaking(config: RunnableConfig, node: str, agent: str, cue: str) -> Iterator[Callable[[str], None]]:
    """Within the block `agent` speaks: yields what takes each piece of its text, from any thread.

    To LangChain's callbacks it is a chat model's answer, so LangGraph's `messages` stream and tracers see it. Its
    prompt stays out of them: that is token ids, and each turn would repeat the whole trajectory.
    """
    write = get_stream_writer()
    write({"event": TURN, "node": node, "agent": agent, "cue": cue})
    manager = get_callback_manager_for_config(config)
    (callbacks,) = manager.on_chat_model_start({}, [[]], name=agent)
    message = f"run-{uuid.uuid4()}"
    said: list[str] = []

    def piece(text: str) -> None:
        said.append(text)
        write({"event": TEXT, "node": node, "agent": agent, "text": text})
        chunk = ChatGenerationChunk(message=AIMessageChunk(content=text, id=message, name=agent))
        callbacks.on_llm_new_token(text, chunk=chunk)

    try:
        yield piece
    except BaseException as error:
        callbacks.on_llm_error(error)
        raise
    answer = AIMessage(content="".join(said), id=message, name=agent)
    callbacks.on_llm_end(LLMResult(generations=[[ChatGeneration(message=answer)]]))


def writing(node: str) -> Callable[[str], None]:
    """What takes each piece of text that the program of `node` writes itself."""
    write = get_stream_writer()
    return lambda text: write({"event": WRITTEN, "node": node, "text": text})


def turn_ended(node: str, turn: Mapping[str, Any]) -> None:
    """Tell what one request cost."""
    get_stream_writer()({"event": TURN_END, "node": node, **turn})

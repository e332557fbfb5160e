"""What a tool is: any LangChain tool, called with the text of an agent's action, `Action: Name[argument]`.

`@tool` makes one of a typed Python function, sync or async: name and description from the function and its docstring,
parameters from its annotations. It is langchain-core's own, so such a tool works everywhere a LangChain tool does.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, TypeVar

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, ToolException, tool
from langchain_core.tools import Tool as StringTool
from langgraph.errors import GraphBubbleUp
from pydantic import ValidationError

from descant.agents.observation import MAX_CHARS, Observation, clean, shorten
from descant.agents.tool_arguments import arguments, usage
from descant.runtime.errors import DescantError

__all__ = ["MAX_CHARS", "TIMEOUT_S", "Observation", "Tool", "acall", "call", "clean", "in_daemon", "tool", "usage"]

Tool = BaseTool
TIMEOUT_S = 30.0

T = TypeVar("T")
Outcome = tuple[str, bool]  # the answer's text, and whether the tool succeeded


def call(tool: Tool, argument: str, *, timeout: float = TIMEOUT_S, max_chars: int = MAX_CHARS) -> Observation:
    """Call `tool` with an action's argument (see `arguments` for how it is read) and return what the agent reads.

    Whatever goes wrong in the tool is an observation, not an exception: an argument that does not fit, an error, no
    answer within `timeout` seconds. Only KeyboardInterrupt, cancellation and LangGraph's own signals (`interrupt()` in
    a tool) pass through.

    The tool runs in a thread of its own, an async one in an event loop of its own. At the time limit an async tool is
    cancelled; a sync one cannot be stopped: its thread goes on, its result is dropped, and what it does on the way
    still happens. The thread is a daemon, so it does not keep the process from ending.

    Args:
        timeout: seconds.
        max_chars: where a long answer is cut; the text says so.
    """
    start = time.monotonic()
    future = in_daemon(lambda: _run(tool, argument, timeout))
    try:
        outcome = future.result(timeout)
    except TimeoutError:  # ours: one that the tool raises is part of the outcome
        outcome = None
    return _observation(tool, argument, outcome, timeout, max_chars, start)


async def acall(tool: Tool, argument: str, *, timeout: float = TIMEOUT_S, max_chars: int = MAX_CHARS) -> Observation:
    """As `call`, for an event loop: an async tool runs in this loop, a sync one in a thread."""
    start = time.monotonic()
    if _has_coroutine(tool):
        outcome = await _run_async(tool, argument, timeout)
    else:
        outcome = await _within(timeout, asyncio.wrap_future(in_daemon(lambda: _run(tool, argument, timeout))))
    return _observation(tool, argument, outcome, timeout, max_chars, start)


def in_daemon(work: Callable[[], T]) -> Future[T]:
    """Run `work` in a daemon thread, in a copy of this context; an executor's threads would be waited for at exit."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    context = copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(work))
        except BaseException as error:  # the caller's to handle
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="descant-tool").start()
    return future


def _run(tool: Tool, argument: str, timeout: float) -> Outcome | None:
    try:
        if isinstance(tool, StructuredTool | StringTool) and tool.func is None:
            return asyncio.run(_run_async(tool, argument, timeout))
        return _shown(tool.invoke(_tool_call(tool, argument)))
    except GraphBubbleUp:
        raise
    except (Exception, SystemExit, GeneratorExit, asyncio.CancelledError) as error:  # the tool's own, in this thread
        if isinstance(error, NotImplementedError) and _has_coroutine(tool):  # how a class says that it is async alone
            return asyncio.run(_run_async(tool, argument, timeout))
        return _failure(tool, error), False


async def _run_async(tool: Tool, argument: str, timeout: float) -> Outcome | None:
    async def run() -> Outcome:
        try:
            return _shown(await tool.ainvoke(_tool_call(tool, argument)))
        except GraphBubbleUp:
            raise
        except Exception as error:
            return _failure(tool, error), False

    return await _within(timeout, asyncio.ensure_future(run()))


async def _within(timeout: float, future: asyncio.Future[T]) -> T | None:
    """The future's result, or None after `timeout` seconds; then it is cancelled, but not waited for."""
    try:
        done, _ = await asyncio.wait({future}, timeout=timeout)
    finally:
        if not future.done():
            future.cancel()
    return future.result() if done else None


def _has_coroutine(tool: Tool) -> bool:
    """Whether the tool is async itself; LangChain's default only moves the sync half to a thread pool."""
    if isinstance(tool, StructuredTool | StringTool):
        return tool.coroutine is not None
    return type(tool)._arun is not BaseTool._arun


def _tool_call(tool: Tool, argument: str) -> dict[str, Any]:
    return {"type": "tool_call", "id": "action", "name": tool.name, "args": arguments(tool, argument)}


def _shown(result: Any) -> Outcome:
    if isinstance(result, ToolMessage):
        return str(result.text) or f"({result.name} answered without text.)", result.status != "error"
    return str(result), True


def _failure(tool: Tool, error: BaseException) -> str:
    if isinstance(error, ValidationError):
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
        return f"{tool.name} was called with a wrong argument: {wrong}. Its form is {usage(tool)}."
    if isinstance(error, DescantError | ToolException):
        return f"{tool.name} failed: {error}"
    try:
        return f"{tool.name} failed: {type(error).__name__}: {error}"
    except Exception:  # of an exception that cannot say what it is
        return f"{tool.name} failed: {type(error).__name__}"


def _observation(
    tool: Tool, argument: str, outcome: Outcome | None, timeout: float, max_chars: int, start: float
) -> Observation:
    text, ok = outcome or (f"{tool.name} gave no answer within {timeout:g} seconds.", False)
    return Observation(tool.name, argument, shorten(text, max_chars), ok, time.monotonic() - start)

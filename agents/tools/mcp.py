"""The tools of an MCP server (Model Context Protocol), through langchain-mcp-adapters."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AsyncExitStack, contextmanager
from typing import Any, cast

from langchain_core.tools import BaseTool, StructuredTool

from descant.agents.tool import in_daemon
from descant.runtime.errors import DescantError

START_S = 30.0
CLOSE_S = 10.0

Server = str | Sequence[str] | Mapping[str, Any]


@contextmanager
def mcp_tools(server: Server, *, timeout: float = START_S) -> Iterator[list[BaseTool]]:
    """The tools of one server, in one session that lasts as long as the block; usable from any thread or event loop.

    Args:
        server: a URL (streamable HTTP), the words of a command (stdio), or one of langchain-mcp-adapters' connections,
            for headers, environment variables or another transport.
        timeout: seconds that the server may take to list its tools.

    Raises:
        DescantError: the package is not installed, or the server does not start, answer or speak MCP.
    """
    connection, name = _connection(server)
    ready: Future[tuple[list[BaseTool], asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    session = in_daemon(lambda: asyncio.run(_hold(connection, ready, timeout)))

    def ended(session: Future[None]) -> None:
        if not ready.done():
            ready.set_exception(session.exception() or EOFError("it closed the session"))

    session.add_done_callback(ended)
    try:
        tools, loop, closing = ready.result()
    except Exception as error:
        cause = _first(error)
        late = f"they were not listed within {timeout:g} seconds" if isinstance(cause, TimeoutError) else ""
        reason = late or " ".join(str(cause).split()) or type(cause).__name__
        raise DescantError(f"The MCP server {name} gives no tools: {reason}.") from error
    try:
        yield [_from_anywhere(cast(StructuredTool, tool), loop) for tool in tools]
    finally:
        if not session.done():
            loop.call_soon_threadsafe(closing.set)
        wait([session], CLOSE_S)


async def _hold(connection: Any, ready: Future[Any], timeout: float) -> None:
    """Keep a session open until it is asked to close."""
    from langchain_mcp_adapters.sessions import create_session
    from langchain_mcp_adapters.tools import load_mcp_tools

    closing = asyncio.Event()
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(timeout):
            session = await stack.enter_async_context(create_session(connection))
            await session.initialize()
            tools = await load_mcp_tools(session)
        ready.set_result((tools, asyncio.get_running_loop(), closing))
        await closing.wait()


def _from_anywhere(tool: StructuredTool, loop: asyncio.AbstractEventLoop) -> BaseTool:
    """`tool`, whose coroutine must run in the session's `loop`, for callers in any other."""
    inside = cast(Any, tool.coroutine)

    async def outside(**arguments: Any) -> Any:
        if loop.is_closed():
            raise DescantError("the session with its MCP server has ended.")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(inside(**arguments), loop))

    return tool.model_copy(update={"coroutine": outside})


def _connection(server: Server) -> tuple[Mapping[str, Any], str]:
    """The adapter's form of `server`, and how messages name it."""
    try:
        import langchain_mcp_adapters  # noqa: F401
    except ModuleNotFoundError as error:
        raise DescantError("MCP tools need langchain-mcp-adapters: run pip install 'descant[mcp]'.") from error
    if isinstance(server, str):
        return {"transport": "streamable_http", "url": server}, server
    if isinstance(server, Mapping):
        return server, str(server.get("url") or server.get("command"))
    return {"transport": "stdio", "command": server[0], "args": list(server[1:])}, shlex.join(server)


def _first(error: BaseException) -> BaseException:
    """What went wrong, under the groups that task groups put around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

"""The page's HTTP interface: JSON, and each run as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from starlette.middleware.trustedhost import TrustedHostMiddleware

from descant.runtime.errors import DescantError
from descant.runtime.turn import Unreachable
from descant.workflows.checkpoints import SqliteCheckpoints
from descant.workflows.ui.page import Page
from descant.workflows.ui.runs import Busy, NoRun, Run, Runs

STATIC = Path(__file__).with_name("static")
STATUS = ((NoRun, 404), (Busy, 409), (Unreachable, 503), (DescantError, 400))


router = APIRouter(prefix="/api/runs")


class Asked(BaseModel):
    """A question for a graph."""

    workflow: str
    question: str


def create_app(page: Page, saver: SqliteCheckpoints, hosts: Sequence[str] = ("*",)) -> FastAPI:
    """The page.

    Args:
        hosts: names under which it may be reached, so that a foreign page cannot reach it by a name of its own.
    """

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        app.state.runs = Runs(page, saver)
        yield
        await app.state.runs.close()

    app = FastAPI(title="Descant", lifespan=life, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))

    @app.exception_handler(DescantError)
    async def refuse(_: Request, error: DescantError) -> JSONResponse:
        status = next(status for kind, status in STATUS if isinstance(error, kind))
        return JSONResponse({"detail": str(error)}, status)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "up"}

    @app.get("/api/setup")
    async def setup() -> dict[str, Any]:
        return page.offered()

    @app.get("/api/server")
    async def server() -> dict[str, Any]:
        return await asyncio.to_thread(page.found)

    app.include_router(router)
    app.mount("/", StaticFiles(directory=STATIC, html=True))
    return app


def _runs(request: Request) -> Runs:
    runs: Runs = request.app.state.runs
    return runs


async def _named(request: Request, thread: str) -> Run:
    return await _runs(request).find(thread)


@router.get("")
async def listed(request: Request) -> list[dict[str, Any]]:
    return await _runs(request).listed()


@router.post("", status_code=201)
async def begin(request: Request, asked: Asked) -> dict[str, str]:
    return {"thread": (await _runs(request).begin(asked.workflow, asked.question)).thread}


@router.post("/{thread}/resume", status_code=202)
async def resume(request: Request, thread: str) -> dict[str, str]:
    return {"thread": (await _runs(request).resume(thread)).thread}


@router.post("/{thread}/stop", status_code=202)
async def stop(request: Request, thread: str) -> dict[str, str]:
    await _runs(request).stop(thread)
    return {"thread": thread}


@router.get("/{thread}/events", response_class=EventSourceResponse)
async def follow(
    run: Annotated[Run, Depends(_named)], last_event_id: Annotated[int, Header()] = -1
) -> AsyncIterator[ServerSentEvent]:
    async for number, event in run.follow(max(0, last_event_id + 1)):
        yield ServerSentEvent(raw_data=json.dumps(event, ensure_ascii=False, default=str), id=str(number))

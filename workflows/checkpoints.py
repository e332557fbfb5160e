"""Checkpoints in one SQLite file, for runs of either kind: LangGraph's saver, with its async half."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR
from langgraph.checkpoint.sqlite import SqliteSaver

from descant.runtime.errors import DescantError


class SqliteCheckpoints(SqliteSaver):
    """`SqliteSaver`, whose async methods are there too: each does the same in a thread.

    LangGraph's own async saver serves async runs alone; graphs of agents are run both ways, on the same file.

    Raises:
        DescantError: the file cannot be opened, or is no SQLite database.
    """

    def __init__(self, path: Path | str) -> None:
        try:
            super().__init__(sqlite3.connect(path, check_same_thread=False))
            self.setup()
        except sqlite3.Error as error:
            raise DescantError(f"The checkpoints {path} cannot be used ({error}): name another file.") from error

    def threads(self, limit: int) -> list[tuple[str, str, CheckpointTuple]]:
        """The threads that began last, newest first: each with when it began (ISO 8601), and its newest checkpoint."""
        query = (
            "SELECT thread_id, MIN(checkpoint_id) FROM checkpoints WHERE checkpoint_ns = '' "
            "GROUP BY thread_id ORDER BY MIN(checkpoint_id) DESC LIMIT ?"  # ids grow with time
        )
        with self.cursor(transaction=False) as cursor:
            rows = cursor.execute(query, (limit,)).fetchall()
        found = []
        for thread, first in rows:
            oldest = self.get_tuple({"configurable": {"thread_id": thread, "checkpoint_id": first}})
            newest = self.get_tuple({"configurable": {"thread_id": thread}})
            if oldest is not None and newest is not None:
                found.append((thread, oldest.checkpoint["ts"], newest))
        return found

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Of a task that failed or was cancelled, keep that alone.

        LangGraph hands over what a cancelled task had written so far as well. Cut off between a node and its
        conditional edge, that is a state that leads nowhere, and a resumption would take it for the end of the run.
        """
        failed = [write for write in writes if write[0] == ERROR]
        super().put_writes(config, failed or writes, task_id, task_path)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        for found in await asyncio.to_thread(
            lambda: list(self.list(config, filter=filter, before=before, limit=limit))
        ):
            yield found

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.delete_thread, thread_id)

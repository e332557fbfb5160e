"""Fixtures that several test files share: saved tiny models, their reference, and one running server at a time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import cache

import engine
import pytest
import tiny
import torch
import transformers
from deployments import DEPLOYMENTS, MODELS
from reference import Reference

os.environ["HF_HUB_OFFLINE"] = "1"  # every checkpoint is a local folder
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with Ctrl-C ignored
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)

_SERVERS = engine.Pool()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tiny.Checkpoint]:
    """A family's tiny model and adapters, or a deployment's, saved once."""
    root = tmp_path_factory.mktemp("tiny")

    @cache
    def save(name: str) -> tiny.Checkpoint:
        family, changes = MODELS.get(name, (name, {}))
        return tiny.save_checkpoint(family, root / name, **changes)

    return save


@pytest.fixture(scope="session")
def reference(checkpoint: Callable[[str], tiny.Checkpoint]) -> Callable[[str], Reference]:
    """The reference for a family's tiny model, with its adapters, loaded once."""
    return cache(lambda family: Reference(checkpoint(family).model, checkpoint(family).adapters))


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., engine.Server]]:
    """`serve(checkpoint, **server_args)`: a running server for these arguments, its cache empty.

    Only the last one runs: asking for other arguments stops it.
    """
    _SERVERS.logs = tmp_path_factory.mktemp("servers")
    yield _SERVERS.get
    _SERVERS.stop()


@pytest.fixture
def server(
    deployment: str, serve: Callable[..., engine.Server], checkpoint: Callable[[str], tiny.Checkpoint]
) -> engine.Server:
    """The running ICaRus server of a test marked `@on(deployment)`, its cache empty."""
    return serve(checkpoint(deployment), kv_sharing="icarus", **DEPLOYMENTS[deployment])


@pytest.fixture
def page(deployment: str) -> int:
    """Tokens in a page of that server's KV pool: only whole pages are shared."""
    return DEPLOYMENTS[deployment].get("page_size", 1)


@pytest.fixture
def ours(deployment: str, reference: Callable[[str], Reference]) -> Reference:
    """The reference for what that server serves."""
    return reference(deployment)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of one deployment after one another, whatever file they are in: each server then starts once."""

    def place(item: pytest.Item) -> int:
        callspec = getattr(item, "callspec", None)
        deployment = callspec.params.get("deployment") if callspec is not None else None
        return list(DEPLOYMENTS).index(deployment) if deployment is not None else -1

    items.sort(key=place)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Stop the running server before a test that does not use it, since that one may start its own."""
    if "serve" not in getattr(item, "fixturenames", ()):
        _SERVERS.stop()

"""Every hook takes, and a process in which one did not take, or which has another SGLang, ends with one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from descant.sglang_ext import plugin


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    from sglang.srt.plugins import load_plugins

    load_plugins()


@pytest.fixture
def unhooked(request: pytest.FixtureRequest) -> Iterator[plugin.Hook]:
    """One hook of the table, undone for the length of a test."""
    hook: plugin.Hook = request.param
    parent_name, name = hook.target.rsplit(".", 1)
    import pkgutil

    parent = pkgutil.resolve_name(parent_name)
    ours = getattr(parent, name)
    setattr(parent, name, object() if hook.kind == "replace" else ours.__wrapped__)
    yield hook
    setattr(parent, name, ours)


def test_every_hook_took() -> None:
    assert [hook.target for hook, took in plugin.hooks_taken() if not took] == []
    plugin.verify_or_exit()


@pytest.mark.parametrize("unhooked", plugin.hooks(), indirect=True, ids=lambda hook: hook.target.rsplit(".", 1)[-1])
def test_a_hook_that_did_not_take_ends_the_process_by_name(unhooked: plugin.Hook) -> None:
    with pytest.raises(SystemExit, match=f"descant: no hook on {unhooked.target}, without which") as ended:
        plugin.verify_or_exit()
    assert "\n" not in str(ended.value)


def test_every_hook_has_its_reason() -> None:
    assert all(hook.reason and not hook.reason.endswith(".") for hook in plugin.hooks())


def test_another_sglang_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "SGLANG_VERSION", "0.0.1")
    with pytest.raises(SystemExit, match=r"descant: .* sglang 0\.0\.1 and found 0\.5\.23; run `pip install"):
        plugin.register()


def test_a_target_that_is_gone_stops_the_command_with_one_line(tmp_path: Path) -> None:
    """In a process of its own: what a user sees whose SGLang lacks a place that a hook needs."""
    script = tmp_path / "gone.py"
    script.write_text(
        "from sglang.srt.managers.scheduler import Scheduler\n"
        "del Scheduler.get_output_streamer_class\n"
        "from sglang.srt.plugins import load_plugins\n"
        "load_plugins()\n"
        "print('served')\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=180)
    assert done.returncode == 1
    assert "served" not in done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("descant: no hook on sglang.srt.managers.scheduler.Scheduler.get_output_streamer_class")


def test_help_lists_the_flag() -> None:
    sglang = Path(sys.executable).with_name("sglang")
    done = subprocess.run([str(sglang), "serve", "--help"], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0
    assert "--kv-sharing {nonshared,icarus,fullshared}" in done.stdout
    assert "--allow-kv-adapters" in done.stdout

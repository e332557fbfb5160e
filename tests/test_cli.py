"""The command line, as a user runs it; the demo has test_demo.py, adapters check has test_adapters_check.py."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import refused
from rich.console import Console, RenderableType

from descant import __version__
from descant.runtime.doctor import render
from descant.runtime.serve import added_options, serve_arguments

DESCANT = Path(sys.executable).with_name("descant")


def descant(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([DESCANT, *arguments], capture_output=True, text=True, timeout=240)


def test_version() -> None:
    result = descant("--version")
    assert (result.returncode, result.stdout.strip()) == (0, f"descant {__version__}")


def test_help_lists_the_commands() -> None:
    result = descant("--help")
    assert result.returncode == 0
    assert all(command in result.stdout for command in ("serve", "doctor", "adapters", "demo", "run", "bench", "eval"))


def test_an_unknown_command_is_refused() -> None:
    result = descant("sing")
    assert result.returncode == 2
    assert "No such command 'sing'" in result.stderr


def test_serve_adds_its_defaults_behind_the_model() -> None:
    line = serve_arguments(["some/model", "--port", "1"])
    assert line[:3] == ["some/model", "--kv-sharing", "icarus"]
    assert line[-2:] == ["--port", "1"]
    assert {"--enable-cache-report", "--enable-metrics", "--enable-lora", "--lora-target-modules"} <= set(line)


def test_serve_keeps_room_for_later_adapters_only_if_none_are_given() -> None:
    line = serve_arguments(["--model-path", "m", "--lora-paths", "a=b"])
    assert "--enable-lora" in line
    assert "--max-lora-rank" not in line


@pytest.mark.parametrize("given", [["--kv-sharing", "nonshared"], ["--kv-sharing=nonshared"]])
def test_a_users_option_wins(given: list[str]) -> None:
    line = serve_arguments(["m", *given])
    assert "icarus" not in line
    assert line[-len(given) :] == given


def test_an_option_in_the_config_file_wins(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("kv-sharing: fullshared\nenable_metrics: true\nlora-paths: [a=b]\n")
    assert added_options(["--config", str(config)]) == ["--enable-cache-report", "--enable-lora"]


@pytest.mark.parametrize(
    "given",
    [[], ["--port", "1"], ["--port", "1", "--model-path"], ["--config", "server.yaml"], ["--model-type", "llm"]],
)
def test_serve_without_a_model_is_one_sentence(given: list[str]) -> None:
    wanted = "Name the model to serve on the command line: descant serve --model-path BASE, or --demo for the demo's."
    assert refused("serve", *given) == wanted


@pytest.mark.parametrize("given", [["m"], ["--model", "m"], ["--port", "1", "--model-path=m"]])
def test_a_model_is_named_where_sglang_looks_for_it(given: list[str]) -> None:
    assert set(given) <= set(serve_arguments(given))


def test_serve_help_is_sglangs_with_our_defaults_on_top() -> None:
    result = descant("serve", "--help")
    assert result.returncode == 0
    assert result.stderr.startswith("descant serve adds, where you do not say otherwise: --kv-sharing icarus")
    assert "usage: sglang serve" in result.stdout
    assert "--kv-sharing {nonshared,icarus,fullshared}" in result.stdout


def test_doctor_finds_this_installation_well() -> None:
    result = descant("doctor", "--json")
    found = json.loads(result.stdout)
    assert result.returncode == 0, found["problems"]
    assert found["sglang"] == found["sglang_expected"]
    assert all(hook["took"] for hook in found["hooks"])
    narrow, wide = (_shown(render(found), width) for width in (40, 400))
    assert "…" not in narrow
    assert sorted("".join(narrow.split())) == sorted("".join(wide.split()))  # folded, and nothing lost


def _shown(what: RenderableType, width: int) -> str:
    shown = io.StringIO()
    Console(width=width, file=shown).print(what, highlight=False)
    return shown.getvalue()


def test_doctor_reports_a_problem_with_status_1(tmp_path: Path) -> None:
    # Another SGLang version, as package metadata would say it.
    fake = tmp_path / "sglang-0.0.1.dist-info"
    fake.mkdir()
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.0.1\n")
    result = subprocess.run(
        [DESCANT, "doctor"],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert result.returncode == 1
    assert "0.0.1" in result.stdout
    assert "Traceback" not in result.stderr


def test_demo_with_a_folder_that_is_no_model(tmp_path: Path) -> None:
    result = descant("demo", "--model", str(tmp_path))
    assert result.returncode == 1
    assert result.stderr.startswith(f"{tmp_path} is no checkpoint (config.json: No such file or directory)")
    assert len(result.stderr.splitlines()) == 1

"""The layout of the repository: who may import whom, and what keeps a checkout from hiding public packages."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("kernels", "sglang_ext", "runtime", "agents", "workflows")

# What each folder may import of ours; a dotted name allows that module and those below it alone.
ARROWS: dict[str, tuple[str, ...]] = {
    "kernels": ("kernels",),
    "sglang_ext": ("sglang_ext", "kernels", "_version"),
    "runtime": ("runtime", "_version"),
    "agents": ("agents", "runtime", "sglang_ext.schemes", "sglang_ext.fingerprint", "_version"),
    "workflows": ("workflows", "agents", "runtime", "_version"),
}
# The command line stands above the rest: its commands import what they run.
COMMANDS = ("cli", "cli_bench", "cli_graphs", "cli_train", "cli_ui")
ABOVE = {Path(f"runtime/{name}.py"): ("agents", "workflows") for name in COMMANDS}
SCHEMES_MAY_IMPORT = ("__future__", "abc", "collections", "dataclasses", "json", "pathlib", "re", "typing", "descant")


def _imports(path: Path) -> list[str]:
    """Every module that `path` imports, at any depth of its syntax tree."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the arrows"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def _sources() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def _within(name: str, allowed: str) -> bool:
    return name == allowed or name.startswith(allowed + ".")


@pytest.mark.parametrize("path", _sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_arrows(path: Path) -> None:
    relative = path.relative_to(ROOT)
    allowed = ARROWS[relative.parts[0]] + ABOVE.get(relative, ())
    for name in _imports(path):
        if _within(name, "descant") and name != "descant.__version__":
            ours = name.removeprefix("descant.")
            assert any(_within(ours, arrow) for arrow in allowed), f"{relative} may not import {name}"
        if _within(name, "sglang.srt"):
            assert relative.parts[0] == "sglang_ext", f"{relative} may not import {name}: only sglang_ext does"


def test_an_arrow_that_is_not_allowed_is_seen(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def f():\n    from descant.sglang_ext import rows\n    import sglang.srt.utils\n")
    assert _imports(wrong) == ["descant.sglang_ext.rows", "sglang.srt.utils"]


@pytest.mark.parametrize("path", [*sorted((ROOT / "sglang_ext/schemes").glob("*.py")), ROOT / "sglang_ext/rows.py"])
def test_schemes_need_no_engine(path: Path) -> None:
    """They are asked by tools that start no engine, so they import neither torch nor SGLang."""
    for name in _imports(path):
        assert name.split(".")[0] in SCHEMES_MAY_IMPORT, f"{path.name} may not import {name}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_hide_no_public_package(folder: str) -> None:
    """With an __init__.py, a checkout on sys.path would hide the public packages `kernels` and `agents`."""
    assert not (ROOT / folder / "__init__.py").exists()
    link = ROOT / "descant" / folder
    assert link.is_symlink()
    assert link.resolve() == ROOT / folder

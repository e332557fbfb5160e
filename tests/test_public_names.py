"""`import descant`: the public names, and how little it imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import descant

HEAVY = ("sglang", "torch", "langgraph", "langchain_core", "httpx", "descant.runtime.session", "descant.agents.agent")


def _typed() -> dict[str, str]:
    """What the type checker sees: each name that the TYPE_CHECKING block imports, with its module."""
    tree = ast.parse(Path(descant.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    return {a.name: str(node.module) for node in block.body if isinstance(node, ast.ImportFrom) for a in node.names}


def test_importing_it_imports_nothing_heavy() -> None:
    program = f"import sys, descant; print([name for name in {HEAVY} if name in sys.modules], descant.__version__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["[]", descant.__version__], done.stderr


def test_a_name_brings_only_what_it_needs() -> None:
    program = "import sys; from descant import Agent, Session; print([n for n in sys.argv[1:] if n in sys.modules])"
    heavy = ["sglang", "torch", "langgraph", "langchain_core"]
    done = subprocess.run([sys.executable, "-c", program, *heavy], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_each_name_is_its_modules_own() -> None:
    assert set(_typed()) == set(descant.__all__) - {"__version__"}
    for name, module in _typed().items():
        assert getattr(descant, name) is getattr(import_module(module), name)
        assert name in dir(descant)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'descant' has no attribute 'Agnet'"):
        _ = descant.Agnet

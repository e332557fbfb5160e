"""A graph in a user's file, `FILE.py:NAME`."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path

from descant.runtime.errors import DescantError
from descant.workflows.graph import AgentGraph


def is_user_graph(workflow: str) -> bool:
    return ".py" in workflow


def user_graph(workflow: str) -> AgentGraph:
    """The AgentGraph that `FILE.py:NAME` names, or that the function NAME returns.

    The file is run as `python FILE.py` would, with its folder on sys.path.

    Raises:
        DescantError: there is no such file or name, it cannot be imported, or it is no graph.
    """
    file, _, name = workflow.rpartition(":")
    path = Path(file or workflow)
    if not file or not name.isidentifier():
        raise DescantError(f"{workflow} names no graph: write {path}:NAME.")
    if not path.is_file():
        raise DescantError(f"There is no file {path}: give the path of a Python file with an AgentGraph in it.")
    module_name = f"descant_graph_{path.stem}"  # a file may be called json.py
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise DescantError(f"{path} is no Python file: its name has to end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
        graph = getattr(module, name, None)
        if callable(graph):
            graph = graph()
    except DescantError:
        raise
    except (Exception, SystemExit) as error:
        where = next((f.lineno for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename == file), 0)
        line = f", line {where}," if where else ""
        raise DescantError(f"{path}{line} cannot be run ({type(error).__name__}: {error}).") from error
    if graph is None:
        raise DescantError(f"{path} has no {name}: name a module variable that holds an AgentGraph.")
    if not isinstance(graph, AgentGraph):
        raise DescantError(
            f"{name} in {path} is no AgentGraph but {type(graph).__name__}: name a graph, or what makes one."
        )
    return graph

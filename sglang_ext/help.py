"""Our flags in `sglang serve --help`, which SGLang answers before it loads plugins.

Only for help: a server gets its flags from the hook in plugin.py, where it is verified.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

TARGET = "sglang.srt.server_args"


def offer_flags() -> None:
    """If this process was asked for help, let the arguments that it will list be ours, once they are imported."""
    if any(argument in ("-h", "--help") for argument in sys.argv[1:]) and TARGET not in sys.modules:
        sys.meta_path.insert(0, _AfterServerArgs())


class _AfterServerArgs(importlib.abc.MetaPathFinder):
    """Finds sglang.srt.server_args, once, as Python would, and replaces its ServerArgs when it has been imported."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_replace(module: ModuleType) -> None:
            execute(module)
            from descant.sglang_ext.server_args import SharingServerArgs

            module.ServerArgs = SharingServerArgs  # type: ignore[attr-defined]

        spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec

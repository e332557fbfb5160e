"""SGLang's frontend language where there is no torch: `import sglang` alone would ask for all of its server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any


def language_alone() -> None:
    """Without torch, let `sglang` be the package of its frontend language: `sglang.gen`, `sglang.lang.…`.

    SGLang's own `__init__` imports the server's utilities, and those torch. What graphs of agents need of it lies in
    `sglang.lang`, which imports neither. So the package is entered without running its `__init__`, and its names are
    those of `sglang.lang.api`. Nothing is done where torch is there, or SGLang is not, or is imported already.
    """
    if "sglang" in sys.modules or find_spec("torch") is not None:
        return
    spec = find_spec("sglang")
    if spec is None:
        return
    package = module_from_spec(spec)
    package.__getattr__ = _names_of("sglang.lang.api")  # type: ignore[method-assign]
    sys.modules["sglang"] = package


def _names_of(module: str) -> Callable[[str], Any]:
    def get(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(import_module(module), name)
        except AttributeError:
            raise AttributeError(f"sglang.{name} needs torch: pip install 'descant[server]'.") from None

    return get

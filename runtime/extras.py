"""What is installed by which of the package's extras, so that a missing module is a sentence."""

from __future__ import annotations

from importlib.util import find_spec

from descant.runtime.errors import DescantError

SGLANG = "0.5.23"  # as in pyproject.toml
SERVER = ("sglang", "torch", "transformers", "peft", "accelerate", "safetensors", "huggingface_hub")
CLIENT = ("fastapi", "uvicorn", "starlette")
# What SGLang's frontend language imports.
LANGUAGE = ("aiohttp", "IPython", "msgspec", "pybase64", "pydantic", "requests", "tqdm")


class NotInstalled(DescantError):
    """A part of Descant whose dependencies are not there."""


def require(*modules: str) -> None:
    """Raise NotInstalled if one of `modules` cannot be imported."""
    for module in modules:
        if find_spec(module) is None:
            raise not_installed(module)


def not_installed(module: str) -> NotInstalled:
    """The sentence for a module of ours that could not be imported."""
    package = module.split(".")[0]
    extra = "client" if package in (*CLIENT, *LANGUAGE) else "server"
    graphs = f"; for graphs of agents alone, pip install --no-deps sglang=={SGLANG}" if package == "sglang" else ""
    return NotInstalled(f"This needs {package}, which is not installed: pip install 'descant[{extra}]'{graphs}.")


def ours(module: str | None) -> bool:
    """Whether one of the extras brings this module."""
    return module is not None and module.split(".")[0] in (*SERVER, *CLIENT, *LANGUAGE)

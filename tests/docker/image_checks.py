"""What holds for both images."""

from __future__ import annotations

import json
from typing import Any

from buildah import Container, Store


def check_user(container: Container) -> None:
    user = container.run("id", "-u").stdout.strip()
    assert user.isdigit()
    assert user != "0"
    assert container.config["User"].split(":")[0] == user
    assert container.run("sh", "-c", "touch /opt/descant/x /usr/x").returncode != 0


def check_nothing_of_this_machine(store: Store, container: Container, image: str) -> None:
    """Neither a key nor how this machine reaches packages is in the configuration, history or settings of an image."""
    described: dict[str, Any] = store.inspect(image)["Docker"]
    told = json.dumps([described["config"], described["history"]])
    assert not any(word in told for word in ("DESCANT_API_KEY", "PIP_", "index-url", "find-links", "--volume"))
    for source, target in store.mounts.pairs.items():
        assert str(source) not in told
        inside = container.root / target.relative_to("/")
        if source.is_dir() and target != source:
            assert not any(inside.iterdir())
    assert (container.root / "etc/pip.conf").read_text() == ""
    kept = [
        container.root / path for path in ("root/.cache", "root/.config", "var/lib/apt/lists", "src", "wheels", "build")
    ]
    assert not [path for path in kept if path.exists() and any(path.iterdir())]


def size(store: Store, image: str) -> str:
    return store("images", "--format", "{{.Size}}", image).strip()

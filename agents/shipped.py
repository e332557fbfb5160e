"""The trained role adapters of the demo's model that ship with the package, once they do."""

from __future__ import annotations

from pathlib import Path

from descant.agents.standin import ROLES

FOLDER = Path(__file__).with_name("trained")  # one PEFT adapter a role
FILES = ("adapter_config.json", "adapter_model.safetensors")
LABEL = "trained for ICaRus"


def shipped_adapters() -> dict[str, Path] | None:
    """Folders of the adapters `plan`, `act` and `reflect`; None where not all of them are there."""
    folders = {role: FOLDER / role for role in ROLES}
    whole = all((folder / name).is_file() for folder in folders.values() for name in FILES)
    return folders if whole else None

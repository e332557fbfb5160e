"""How this machine reaches Debian's and Python's packages, as mounts for a build: nothing of it enters an image.

What `pip config list` names (settings of pip.conf files and of PIP_* variables alike) becomes one pip.conf; the files
and folders that it names are mounted too. Debian's part is /etc/apt, where this machine is the base's release.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

RELEASE = "bookworm"
# In the built root: settings' files, which may not lie where installed packages want to write.
FILES = Path("/run/pip-files")


class Mounts:
    """Source and target of each mount; the base image must have the targets, lest a build leave them in its layers."""

    def __init__(self, work: Path) -> None:
        self._files = work / "pip-files"
        shutil.rmtree(self._files, ignore_errors=True)
        self._files.mkdir(parents=True)
        self.pairs: dict[Path, Path] = {self._files: FILES}
        config = work / "pip.conf"
        config.write_text(self._pip_config())
        config.chmod(0o644)  # an image's own user reads it
        self.pairs[config] = Path("/etc/pip.conf")
        if f"VERSION_CODENAME={RELEASE}" in Path("/etc/os-release").read_text():
            self.pairs[Path("/etc/apt")] = Path("/etc/apt")

    @property
    def options(self) -> list[str]:
        return [f"--volume={source}:{target}:ro" for source, target in self.pairs.items()]

    def make_targets(self, root: Path) -> None:
        for source, target in self.pairs.items():
            inside = root / target.relative_to("/")
            if source.is_dir():
                inside.mkdir(parents=True, exist_ok=True)
            elif not inside.exists():
                inside.parent.mkdir(parents=True, exist_ok=True)
                inside.touch()

    def _pip_config(self) -> str:
        """Later ones win: pip lists the settings of files first, and each variable's section is ":env:"."""
        config = RawConfigParser()
        settings = sorted(_pip_settings(), key=lambda setting: setting[0] == ":env:")
        for section, key, value in settings:
            section = "global" if section == ":env:" else section
            if not config.has_section(section):
                config.add_section(section)
            config.set(section, key, " ".join(self._inside(word) for word in value.split()))
        lines = []
        for section in config.sections():
            lines += [f"[{section}]", *(f"{key} = {value}" for key, value in config.items(section))]
        return "\n".join(lines) + "\n"

    def _inside(self, word: str) -> str:
        """A word of a setting as it must be inside; the files and folders that it names are mounted."""
        path = Path(unquote(urlsplit(word).path)) if word.startswith("file://") else Path(word)
        if not path.is_absolute() or not path.exists():
            return word
        if path.is_dir():
            # An index links to files beside it.
            folder = path.parent if word.startswith("file://") else path
            self.pairs[folder] = folder
            return word
        copy = self._files / f"{len(os.listdir(self._files))}-{path.name}"
        shutil.copyfile(path, copy)
        return str(FILES / copy.name)


def _pip_settings() -> list[tuple[str, str, str]]:
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True)
    settings = []
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        settings.append((section, key, str(ast.literal_eval(value))))
    return settings

"""The results of an evaluation in a folder: one JSON object a line, so that what was finished stays finished."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from descant.runtime.errors import DescantError


class Results:
    """What has been finished, in memory and in the folder.

    by_id: the records, by their question's id.

    Raises:
        DescantError: the folder cannot be written, or holds something else.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file, self.passages = folder / "results.jsonl", folder / "passages.jsonl"
        self._settings, self._report = folder / "settings.json", folder / "report.json"
        self.by_id: dict[str, dict[str, Any]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.file.touch()
        except OSError as error:
            raise DescantError(f"The results cannot be written to {folder} ({error.strerror}).") from error

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Read what is there, if it was made with these settings.

        Raises:
            DescantError: it was made with others.
        """
        if self._settings.exists():
            try:
                before = dict(json.loads(self._settings.read_text()))
            except (ValueError, TypeError) as error:
                raise DescantError(
                    f"{self._settings} is damaged ({error}): delete it, to go on as asked now."
                ) from error
            if differing := [name for name in settings if before.get(name) != settings[name]]:
                raise DescantError(
                    f"The results in {self.folder} are of another eval (its {', '.join(differing)} differ): choose "
                    "another --output, or delete that folder."
                )
        else:
            scratch = self._settings.with_suffix(".tmp")
            scratch.write_text(json.dumps(settings, indent=1))
            scratch.replace(self._settings)  # whole, or not there
        whole = 0
        data = self.file.read_bytes()
        for number, line in enumerate(data.splitlines(keepends=True), start=1):
            if not line.endswith(b"\n"):  # cut off when the process was killed
                break
            try:
                record = json.loads(line)
                self.by_id[record["id"]] = record
            except (ValueError, KeyError, TypeError) as error:
                raise DescantError(f"{self.file}, line {number} is no result: delete the line.") from error
            whole += len(line)
        if whole < len(data):
            with self.file.open("r+b") as file:
                file.truncate(whole)

    def add(self, record: dict[str, Any]) -> None:
        """Keep a record."""
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self.by_id[record["id"]] = record

    def write_report(self, report: Mapping[str, Any]) -> None:
        self._report.write_text(json.dumps(report, indent=1))

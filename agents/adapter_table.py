"""`descant adapters check`: verdicts on adapters, and how a person reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from descant.agents.adapter import AdapterReport, inspect_adapter, require_scheme
from descant.runtime.errors import DescantError
from descant.sglang_ext.fingerprint import fingerprint


@dataclass(frozen=True)
class Verdict:
    """Whether a scheme can serve the adapter at `path`: `reason` says why not, `report` is None if it is unreadable."""

    path: Path
    report: AdapterReport | None
    reason: str | None

    def as_json(self) -> dict[str, Any]:
        facts = {"path": str(self.path), "served": self.reason is None, "reason": self.reason}
        return facts if self.report is None else facts | self.report.as_json()


def judge(paths: Sequence[Path], scheme: str, model: Path | None = None) -> list[Verdict]:
    """A verdict on each adapter; one that cannot be read does not keep the others from being looked at.

    Args:
        model: the base model's folder, if that is to be judged too.

    Raises:
        DescantError: there is no such scheme, or no checkpoint in `model`.
    """
    require_scheme(scheme)
    base = fingerprint(model.resolve()) if model else None
    if model and base is None:
        raise DescantError(f"{model} holds no safetensors checkpoint: give the base model's folder.")
    verdicts = []
    for path in paths:
        try:
            report = inspect_adapter(path)
            verdicts.append(Verdict(path, report, report.refusal(scheme, base)))
        except DescantError as error:
            verdicts.append(Verdict(path, None, str(error)))
    return verdicts


def render(verdicts: Sequence[Verdict], scheme: str) -> Group:
    """A table of what the adapters are, then the reasons and notes, which are too long for cells."""
    table = Table("adapter", "base model", "method", "rank", "alpha", "updates", scheme, box=box.SIMPLE_HEAD)
    remarks: list[Text] = []
    for verdict in verdicts:
        report = verdict.report
        answer = Text("refused", "bold red") if verdict.reason else Text("can serve", "green")
        if report is None:
            table.add_row(Text(verdict.path.name), "", "", "", "", "", Text("unreadable", "bold red"))
        else:
            updates = ", ".join(f"{u.name} (zero)" if u.zero else u.name for u in report.updates) or "nothing"
            row = (
                report.name,
                report.base_model,
                report.method or "not recorded",
                str(report.rank),
                f"{report.alpha:g}",
                updates,
            )
            table.add_row(*map(Text, row), answer)
        if verdict.reason:
            remarks.append(Text(verdict.reason, "red"))
        if report is not None:
            remarks += [Text(f"{report.name}: {note}", "yellow") for note in report.notes]
    return Group(table, *remarks)

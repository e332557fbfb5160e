"""What a run says of itself: a bar for a person, log.jsonl for learning curves, and what came of it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import TrainerCallback

from descant.runtime.errors import DescantError

LOG = "log.jsonl"


class Report(TrainerCallback):
    """Tells of each step: its loss per token of the role, and tokens read per second of training.

    tokens: tokens read so far by this process; whoever reads them adds to it.
    seconds: what they took, evaluation and saving not counted.

    Args:
        log: file that gets one JSON object for each step and each evaluation.
        emit: takes each of these objects too, in place of the bar; None shows the bar on `console`.
    """

    def __init__(self, log: Path, console: Console, emit: Callable[[Mapping[str, Any]], None] | None) -> None:
        self.tokens, self.seconds = 0, 0.0
        self.events: list[dict[str, Any]] = []
        self._log, self._emit = log, emit
        self._start = 0.0
        self._evaluated = ""
        columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}"))
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        self._bar = Progress(*columns, *times, console=console, disable=emit is not None)
        self._task = self._bar.add_task("", total=None)

    @property
    def speed(self) -> float:
        """Tokens read per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def recall(self, step: int) -> None:
        """A run that goes on from `step` forgets what it had logged beyond."""
        lines = self._log.read_text().splitlines() if self._log.exists() and step else []
        self.events = [event for line in lines if (event := json.loads(line))["step"] <= step]
        self._log.write_text("".join(json.dumps(event) + "\n" for event in self.events))

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.recall(state.global_step)
        self._bar.start()
        self._bar.update(self._task, total=state.max_steps, completed=state.global_step, description="")

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seconds += time.perf_counter() - self._start
        if state.global_step >= state.max_steps and args.eval_strategy == "steps":
            control.should_evaluate = True  # the last weights are candidates too

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_save = True  # so that the best weights are kept

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float], **_: Any) -> None:
        names = ("loss", "grad_norm", "learning_rate", "eval_loss")
        event = {name: logs[name] for name in names if name in logs}
        if not event:
            return
        if not math.isfinite(loss := event.get("loss", event.get("eval_loss", 0.0))):
            raise DescantError(f"The loss at step {state.global_step} is {loss}: give a smaller --learning-rate.")
        event = {"step": state.global_step, "epoch": round(state.epoch or 0, 4), **event}
        if "loss" in event:
            event["tokens_per_second"] = round(self.speed, 1)
        else:
            self._evaluated = f"  eval loss {event['eval_loss']:.4f}"
        self.events.append(event)
        with self._log.open("a") as file:
            file.write(json.dumps(event) + "\n")
        if self._emit is not None:
            self._emit(event)
        elif "loss" in event:
            words = f"loss {event['loss']:.4f}{self._evaluated}  {self.speed:,.0f} tokens read/s"
            self._bar.update(self._task, completed=state.global_step, description=words)

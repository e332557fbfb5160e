"""`descant train`: one role's LoRA adapter, by ICaRus or the conventional way, on Transformers' Trainer and PEFT."""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from rich.console import Console
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    EarlyStoppingCallback,
    PrinterCallback,
    Trainer,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import rotate_checkpoints
from transformers.utils import logging as transformers_logging

from descant.agents.adapter import CONFIG, WEIGHTS
from descant.agents.training.data import Sample, Samples, read_samples
from descant.agents.training.icarus import ATTENTION, Prefix, check_model, logits, pack
from descant.agents.training.progress import Report
from descant.agents.training.saving import checkpoints, replace_files, whole
from descant.runtime.errors import DescantError
from descant.sglang_ext.fingerprint import fingerprint
from descant.sglang_ext.schemes.adapters import RECORD
from descant.sglang_ext.schemes.icarus import HEAD_MODULES, KV_MODULES

ICARUS_TARGETS = ("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TARGETS: Mapping[str, Sequence[str]] = {
    "icarus": ICARUS_TARGETS,
    "lora": ("q_proj", "k_proj", "v_proj", *ICARUS_TARGETS[1:]),
}
SCHEDULES = ("constant", "linear", "cosine")
RECIPE = "recipe.json"
STATE = "trainer_state.json"


@dataclass(frozen=True)
class Recipe:
    """All that decides which adapter comes out.

    alpha: scale of the update, alpha / rank; 2 * rank by default.
    max_steps: optimizer steps, in place of `epochs`.
    warmup: share of the steps in which the learning rate rises.
    batch_size: samples that are read together; `accumulation` such batches make a step.
    eval_every, save_every: steps; once an epoch by default.
    patience: evaluations without a new best one after which training ends; needs an evaluation split.
    """

    method: str
    model: Path
    data: Path
    role: str | None = None
    eval_data: Path | None = None
    eval_share: float = 0.0
    max_length: int | None = None
    rank: int = 8
    alpha: float | None = None
    targets: tuple[str, ...] = ()
    dropout: float = 0.0
    epochs: float = 3.0
    max_steps: int | None = None
    learning_rate: float = 5e-4
    schedule: str = "cosine"
    warmup: float = 0.03
    batch_size: int = 8
    accumulation: int = 1
    seed: int = 0
    bf16: bool = False
    checkpointing: bool = False
    eval_every: int | None = None
    save_every: int | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        """Raises DescantError for what cannot be trained."""
        if self.method not in TARGETS:
            raise DescantError(f"There is no method {self.method!r}: choose one of {', '.join(TARGETS)}.")
        if self.schedule not in SCHEDULES:
            raise DescantError(f"There is no schedule {self.schedule!r}: choose one of {', '.join(SCHEDULES)}.")
        if self.method == "icarus" and (fixed := KV_MODULES.intersection(self.modules)):
            raise DescantError(
                f"{', '.join(sorted(fixed))} cannot be trained by icarus, because the base model writes K and V: "
                f"leave it out of --targets, or train with --method lora and serve with --kv-sharing nonshared."
            )
        if head := HEAD_MODULES.intersection(self.modules):
            raise DescantError(f"{', '.join(head)} cannot be served with an adapter: leave it out of --targets.")
        if self.eval_data is not None and self.eval_share:
            raise DescantError("--eval-data and --eval-share are two ways to say the same: give one of them.")
        if (self.patience or self.eval_every) and not self.evaluates:
            raise DescantError("--patience and --eval-every need something to evaluate on: give --eval-share 0.1.")

    @property
    def modules(self) -> tuple[str, ...]:
        return self.targets or tuple(TARGETS[self.method])

    @property
    def evaluates(self) -> bool:
        return self.eval_data is not None or self.eval_share > 0


@dataclass(frozen=True)
class Trained:
    """What came of a run.

    early: whether it ended because evaluation no longer improved.
    eval_loss: of the weights that were kept, the best ones; None without evaluation.
    tokens_per_second: tokens read, by this process.
    """

    adapter: Path
    steps: int
    loss: float
    eval_loss: float | None
    tokens_per_second: float
    early: bool


class PackedTrainer(Trainer):
    """Trainer, for packed samples and the two-path forward, with checkpoints that are whole or not there."""

    def __init__(self, *args: Any, method: str, prefix: Prefix, report: Report, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._method, self._prefix, self._report = method, prefix, report
        self.control: Any = self.control
        self.loss_is_scaled_for_ga = True

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Cross entropy, summed over this batch's rows and divided by the step's: the mean over its tokens."""
        self._report.tokens += inputs["input_ids"].numel()
        rows = inputs["labels"].numel()
        return self._loss_sum(model, inputs) / (rows if num_items_in_batch is None else num_items_in_batch)

    @torch.no_grad()
    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """The mean loss over all rows of the evaluation split."""
        self.model.eval()
        total, rows = 0.0, 0
        for batch in self.get_eval_dataloader():
            total += self._loss_sum(self.model, self._prepare_inputs(batch)).item()
            rows += batch["labels"].numel()
        metrics = {"eval_loss": total / rows}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _loss_sum(self, model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        found = logits(model, batch, self._method, self._prefix)
        return cross_entropy(found.float(), batch["labels"], reduction="sum")

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self.args.output_dir)
        target = folder / f"checkpoint-{self.state.global_step}"
        best = folder / f"checkpoint-{self.state.best_global_step}"
        if best == target or best.exists():
            self.state.best_model_checkpoint = str(best)
        for part in (*self.callback_handler.callbacks, self.control):
            if isinstance(part, ExportableState):
                self.state.stateful_callbacks[type(part).__name__] = part.state()
        with whole(target) as scratch:
            self.save_model(str(scratch), _internal_call=True)
            self._save_optimizer_and_scheduler(str(scratch))
            self._save_rng_state(str(scratch))
            self.state.save_to_json(str(scratch / STATE))
        rotate_checkpoints(str(folder), save_total_limit=1, best_model_checkpoint=self.state.best_model_checkpoint)


def train(
    recipe: Recipe,
    output: Path,
    console: Console,
    *,
    resume: bool = False,
    note: Callable[[str], None] = lambda _: None,
    emit: Callable[[Mapping[str, Any]], None] | None = None,
) -> Trained:
    """Train an adapter and leave it in `output`, a plain PEFT folder with the log and the recipe beside it.

    Args:
        resume: go on from the last checkpoint in `output`.
        note: takes sentences worth knowing.
        emit: see Report.

    Raises:
        DescantError: one sentence on what cannot be read, trained or saved.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    recorded = _recorded(recipe)
    saved = _checkpoint(recorded, output, resume)
    tokenizer, context = _tokenizer(recipe.model)
    samples, held_out = _samples(recipe, tokenizer, min(recipe.max_length or context, context), note)
    set_seed(recipe.seed)
    model = _model(recipe, max(len(sample.ids) for sample in (*samples, *held_out)))
    if saved is None:  # here, so that a refusal leaves nothing
        _begin(recorded, output)
    with Report(output / "log.jsonl", console, emit) as report:
        trainer = PackedTrainer(
            model=model,
            args=_arguments(recipe, output / "checkpoints"),
            train_dataset=samples,
            eval_dataset=held_out or None,
            data_collator=pack,
            callbacks=[report, *([EarlyStoppingCallback(recipe.patience)] if recipe.patience else [])],
            method=recipe.method,
            prefix=Prefix.of([*samples, *held_out]),
            report=report,
        )
        trainer.remove_callback(PrinterCallback)
        if trainer.args.world_size > 1:
            raise DescantError("descant train runs in one process: start it without torchrun or accelerate launch.")
        try:
            if saved and _is_over(state := TrainerState.load_from_json(str(saved / STATE))):
                # Only the adapter was not out yet; Trainer would take another step.
                trainer.state = state
                report.recall(state.global_step)
                set_peft_model_state_dict(model, load_file(saved / WEIGHTS))
            else:
                trainer.train(resume_from_checkpoint=str(saved) if saved else None)
        except torch.OutOfMemoryError as error:
            raise DescantError(
                "The device has too little memory for this batch: give a smaller --batch-size with more "
                "--accumulation, --checkpointing, --bf16, or a smaller --max-length."
            ) from error
        except OSError as error:
            raise DescantError(
                f"{output} cannot be written ({error.strerror or error}): make room and go on with --resume."
            ) from error
    losses = [event["loss"] for event in report.events if "loss" in event]
    if best := trainer.state.best_model_checkpoint:
        set_peft_model_state_dict(model, load_file(Path(best) / WEIGHTS))
    _save(model, recipe, output)
    return Trained(
        adapter=output,
        steps=trainer.state.global_step,
        loss=losses[-1],
        eval_loss=trainer.state.best_metric,
        tokens_per_second=report.speed,
        early=trainer.state.global_step < trainer.state.max_steps,
    )


def _is_over(state: TrainerState) -> bool:
    return bool(state.stateful_callbacks["TrainerControl"]["args"]["should_training_stop"])


def _checkpoint(recorded: Mapping[str, Any], output: Path, resume: bool) -> Path | None:
    """The checkpoint in `output` to go on from; None to begin there."""
    if (output / CONFIG).exists():
        raise DescantError(f"{output} holds an adapter already: give another --output, or remove it.")
    saved = checkpoints(output / "checkpoints")
    if not resume:
        if saved:
            raise DescantError(f"{output} holds {saved[-1].name} of a run: go on with --resume, or remove it.")
        return None
    if not saved:
        raise DescantError(f"{output} holds no checkpoint to go on from: begin without --resume.")
    try:
        begun = json.loads((output / RECIPE).read_text())
    except OSError as error:
        raise DescantError(f"{output} cannot be used ({error.strerror}): give another --output.") from error
    if other := [name for name, value in recorded.items() if begun.get(name) != value]:
        names = ", ".join("--" + name.replace("_", "-") for name in other)
        raise DescantError(f"The run in {output} was begun with another {names}: resume it as it was begun.")
    return saved[-1]


def _begin(recorded: Mapping[str, Any], output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
        (output / RECIPE).write_text(json.dumps(recorded, indent=1))
    except OSError as error:
        raise DescantError(f"{output} cannot be used ({error.strerror}): give another --output.") from error


def _recorded(recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON, with the model and the data by what they hold, wherever they lie."""

    def digest(file: Path) -> str:
        if not file.is_file():
            raise DescantError(f"{file} cannot be read (no such file): check the path.")
        with file.open("rb") as stream:
            return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"

    model = fingerprint(recipe.model.resolve())
    if model is None:
        raise DescantError(f"{recipe.model} holds no safetensors checkpoint: give the folder of a Hugging Face model.")
    held = {"model": model, "data": digest(recipe.data), "targets": list(recipe.modules)}
    return {**asdict(recipe), **held, "eval_data": recipe.eval_data and digest(recipe.eval_data)}


def _tokenizer(folder: Path) -> tuple[Any, int]:
    """The base model's tokenizer, and the tokens that its context holds."""
    try:
        context = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config().max_position_embeddings
        return AutoTokenizer.from_pretrained(folder, local_files_only=True), context
    except (OSError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise DescantError(
            f"{folder} is no checkpoint with a tokenizer ({reason}): give the folder of a Hugging Face model."
        ) from error


def _samples(
    recipe: Recipe, tokenizer: Any, max_length: int, note: Callable[[str], None]
) -> tuple[list[Sample], list[Sample]]:
    """The samples to train on and those to evaluate on."""

    def read(file: Path) -> Samples:
        found = read_samples(file, tokenizer, recipe.role, max_length)
        if found.truncated:
            note(f"{file}: {found.truncated} samples were cut at {max_length} tokens.")
        if found.silent:
            note(f"{file}: {found.silent} samples are left out, in which nothing counts in the loss.")
        return found

    samples = read(recipe.data).samples
    if recipe.eval_data is not None:
        return samples, read(recipe.eval_data).samples
    held_out = math.ceil(recipe.eval_share * len(samples))
    if held_out >= len(samples):
        raise DescantError(f"--eval-share {recipe.eval_share} of {len(samples)} samples leaves none to train on.")
    random.Random(recipe.seed).shuffle(samples)
    return samples[held_out:], samples[:held_out]


def _model(recipe: Recipe, longest: int) -> Any:
    """The base model with a fresh adapter in float32, which records the method and the base model's fingerprint."""
    dtype = torch.bfloat16 if recipe.bf16 else torch.float32
    try:
        base = AutoModelForCausalLM.from_pretrained(
            recipe.model, dtype=dtype, attn_implementation=ATTENTION, local_files_only=True
        )
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DescantError(f"{recipe.model} cannot be loaded to be trained ({reason}).") from error
    check_model(base, longest)
    held = {name.rsplit(".", 1)[-1] for name, _ in base.named_modules()}
    if missing := set(recipe.modules) - held:
        raise DescantError(
            f"{type(base).__name__} has no {', '.join(sorted(missing))}: name modules that it has with --targets."
        )
    config = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha if recipe.alpha is not None else 2 * recipe.rank,
        lora_dropout=recipe.dropout,
        target_modules=list(recipe.modules),
        task_type="CAUSAL_LM",
        auto_mapping={RECORD: {"method": recipe.method, "base": fingerprint(recipe.model.resolve())}},
    )
    return get_peft_model(base, config)


def _arguments(recipe: Recipe, folder: Path) -> TrainingArguments:
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=recipe.batch_size,
        per_device_eval_batch_size=recipe.batch_size,
        gradient_accumulation_steps=recipe.accumulation,
        num_train_epochs=recipe.epochs,
        max_steps=recipe.max_steps or -1,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type=recipe.schedule if recipe.schedule != "constant" else "constant_with_warmup",
        warmup_steps=recipe.warmup,
        seed=recipe.seed,
        bf16=recipe.bf16,
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=recipe.checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        eval_strategy=_strategy(recipe.eval_every) if recipe.evaluates else "no",
        eval_steps=recipe.eval_every,
        save_strategy=_strategy(recipe.save_every),
        save_steps=recipe.save_every or 500,
        metric_for_best_model="eval_loss" if recipe.evaluates else None,
        greater_is_better=False,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # several would split the packed row
    return arguments


def _strategy(every: int | None) -> str:
    return "steps" if every else "epoch"


def _save(model: Any, recipe: Recipe, output: Path) -> None:
    """The adapter, its config last: a folder without one is no adapter. The checkpoints have then served."""
    # A path of this machine would tell nobody else anything; the fingerprint says which model it is.
    model.peft_config["default"].base_model_name_or_path = recipe.model.resolve().name
    saved = output / "checkpoints" / "adapter"
    with whole(saved) as scratch:
        model.save_pretrained(scratch, save_embedding_layers=False)
    replace_files(saved, output, [WEIGHTS, CONFIG])
    shutil.rmtree(output / "checkpoints")

"""Whole runs of `descant train` on tiny models: reproducible, resumable, and what is saved stays whole."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from commands import DESCANT, descant, environment, refused
from peft import PeftModel
from training import furthest, load, log, recipe, run, weights, write_trajectories
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from descant.agents.adapter import inspect_adapter
from descant.agents.training import train as training_module
from descant.agents.training.icarus import logits, pack
from descant.agents.training.saving import checkpoints
from descant.runtime.cli import app
from descant.runtime.errors import DescantError

# |difference of weights| in float32 that counts as none. Another process may add up in another order (3e-6 was seen); a
# step too many or too few at this learning rate, 1e-2, is a thousand times more.
SAME = 1e-5


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], tiny.Checkpoint]) -> Path:
    return checkpoint("llama").model


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trajectories(tmp_path_factory.mktemp("data") / "train.jsonl", 16)


def interrupt(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Ctrl-C at a run's `at`-th step."""
    step, steps = training_module.PackedTrainer.training_step, iter(range(1, 100))

    def interrupted(self: Any, *args: Any, **kwargs: Any) -> Any:
        if next(steps) == at:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    monkeypatch.setattr(training_module.PackedTrainer, "training_step", interrupted)


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, and across the border of an epoch, so that the random state and the place in the data count."""
    wanted = recipe(model, data, dropout=0.2, batch_size=3, max_steps=8, save_every=2, eval_share=0.2, eval_every=3)
    straight = run(wanted, tmp_path / "straight")
    interrupt(monkeypatch, at=6)
    with pytest.raises(KeyboardInterrupt):
        run(wanted, tmp_path / "resumed")
    monkeypatch.undo()
    assert checkpoints(tmp_path / "resumed/checkpoints")[-1].name == "checkpoint-4"
    assert log(tmp_path / "resumed")[-1]["step"] == 5
    resumed = run(wanted, tmp_path / "resumed", resume=True)
    assert furthest(weights(straight.adapter), weights(resumed.adapter)) < SAME
    losses, again = ([e.get("loss") or e["eval_loss"] for e in log(t.adapter)] for t in (straight, resumed))
    assert again == pytest.approx(losses)
    assert len(losses) == 8 + 3
    assert not (resumed.adapter / "checkpoints").exists()


@pytest.mark.parametrize(("at", "said"), [(2, "Nothing is saved yet."), (4, "To go on from checkpoint-2: ")])
def test_ctrl_c_says_what_is_saved(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, said: str
) -> None:
    interrupt(monkeypatch, at)
    result = CliRunner().invoke(app, [*map(str, arguments(model, data, tmp_path / "out"))])
    assert result.exit_code == 130, result.output
    assert said in result.stderr


def test_a_run_that_ended_before_its_adapter_was_out_goes_on(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training_module, "_save", killed)
    with pytest.raises(KeyboardInterrupt):
        run(recipe(model, data), tmp_path / "out")
    monkeypatch.undo()
    moved = data.rename(tmp_path / "moved.jsonl")  # it is known by what it holds
    resumed = run(recipe(model, moved), tmp_path / "out", resume=True)
    moved.rename(data)
    straight = run(recipe(model, data), tmp_path / "straight")
    assert furthest(weights(straight.adapter), weights(resumed.adapter)) < SAME
    assert (resumed.steps, resumed.early, resumed.loss) == (6, False, pytest.approx(straight.loss))


def test_a_seed_gives_the_same_adapter_again(model: Path, data: Path, tmp_path: Path) -> None:
    first, again, other = (
        run(recipe(model, data, seed=seed, dropout=0.1, max_steps=3), tmp_path / name).adapter
        for name, seed in (("first", 7), ("again", 7), ("other", 8))
    )
    assert furthest(weights(first), weights(again)) < SAME
    assert furthest(weights(first), weights(other)) > 1e-3


@pytest.mark.parametrize("method", ["icarus", "lora"])
def test_accumulated_batches_are_one_larger_batch(model: Path, data: Path, tmp_path: Path, method: str) -> None:
    large = run(recipe(model, data, method=method, batch_size=4, max_steps=4), tmp_path / "large")
    parts = run(recipe(model, data, method=method, batch_size=1, accumulation=4, max_steps=4), tmp_path / "parts")
    assert furthest(weights(large.adapter), weights(parts.adapter)) < 1e-4
    assert [event["loss"] for event in log(parts.adapter)] == pytest.approx(
        [event["loss"] for event in log(large.adapter)], rel=1e-4
    )
    checkpointed = run(recipe(model, data, method=method, max_steps=4, checkpointing=True), tmp_path / "checkpointed")
    assert furthest(weights(large.adapter), weights(checkpointed.adapter)) < 1e-4


def test_it_ends_early_and_keeps_the_best(model: Path, data: Path, tmp_path: Path) -> None:
    still = recipe(model, data, learning_rate=0.0, max_steps=10, eval_share=0.25, eval_every=1, patience=2)
    trained = run(still, tmp_path / "still")
    assert (trained.steps, trained.early) == (3, True)

    held_out = tmp_path / "held_out.jsonl"  # other tokens: the better the training data is known, the worse these are
    spans = [{"role": "plan", "ids": tiny.random_tokens(40, seed=5)}]
    held_out.write_text(json.dumps({"opening": "x", "spans": spans}))
    wanted = recipe(model, data, learning_rate=0.1, max_steps=8, eval_data=held_out, eval_every=2)
    trained = run(wanted, tmp_path / "best")
    losses = [event["eval_loss"] for event in log(trained.adapter) if "eval_loss" in event]
    assert len(losses) == 4
    assert trained.eval_loss == min(losses) < losses[-1]
    tokenizer, context = training_module._tokenizer(model)
    batch = pack(training_module.read_samples(held_out, tokenizer, "plan", context).samples)
    with torch.no_grad():
        found = logits(load(model, trained.adapter), batch, "icarus")
    assert torch.nn.functional.cross_entropy(found, batch["labels"]).item() == pytest.approx(min(losses), rel=1e-4)


def test_bfloat16_trains_a_float32_adapter(model: Path, data: Path, tmp_path: Path) -> None:
    trained = run(recipe(model, data, bf16=True, max_steps=8), tmp_path / "out")
    assert {tensor.dtype for tensor in weights(trained.adapter).values()} == {torch.float32}
    losses = [event["loss"] for event in log(trained.adapter)]
    assert losses[-1] < losses[0]


# Saving.

KILL = """
import os, signal, sys
from pathlib import Path
from descant.agents.training import train
from training import recipe, run
save = train.PackedTrainer._save_rng_state
def killed(self, folder):
    if "checkpoint-4" in folder:
        os.kill(os.getpid(), signal.SIGKILL)
    save(self, folder)
train.PackedTrainer._save_rng_state = killed
run(recipe(Path(sys.argv[1]), Path(sys.argv[2])), Path(sys.argv[3]))
"""


def test_a_kill_while_saving_leaves_the_checkpoint_before(model: Path, data: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    command = [sys.executable, "-c", KILL, str(model), str(data), str(output)]
    tests = Path(__file__).parent
    child = subprocess.run(command, cwd=tests, capture_output=True, text=True, timeout=120)
    assert child.returncode == -9, child.stderr
    assert [path.name for path in checkpoints(output / "checkpoints")] == ["checkpoint-2"]
    assert (output / "checkpoints/.checkpoint-4").exists()
    resumed = run(recipe(model, data), output, resume=True)
    straight = run(recipe(model, data), tmp_path / "straight")
    assert furthest(weights(resumed.adapter), weights(straight.adapter)) < SAME


def test_a_full_disk_leaves_the_checkpoint_before(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file may grow beyond 20 kB, which a checkpoint's do and a line of the log does not."""
    output = tmp_path / "out"
    interrupt(monkeypatch, at=3)
    with pytest.raises(KeyboardInterrupt):
        run(recipe(model, data), output)
    monkeypatch.undo()
    before = {path.name: path.read_bytes() for path in (output / "checkpoints/checkpoint-2").iterdir()}
    command = [DESCANT, *arguments(model, data, output), "--resume"]
    child = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(tmp_path),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    assert child.returncode == 1, child.stdout + child.stderr
    last = child.stderr.splitlines()[-1]
    assert "checkpoint-4 could not be saved (" in last
    assert "--resume from checkpoint-2" in last
    assert "Traceback" not in child.stderr
    assert {path.name: path.read_bytes() for path in (output / "checkpoints/checkpoint-2").iterdir()} == before
    assert [path.name for path in (output / "checkpoints").iterdir()] == ["checkpoint-2"]
    resumed = run(recipe(model, data), output, resume=True)
    straight = run(recipe(model, data), tmp_path / "straight")
    assert furthest(weights(resumed.adapter), weights(straight.adapter)) < SAME


# The command, and what the adapter says of its training.


def arguments(model: Path, data: Path, output: Path, *more: object) -> Sequence[object]:
    """The command's words for `recipe(model, data)`."""
    words = f"--role plan --rank 4 --max-steps 6 --batch-size 4 --learning-rate 1e-2 --save-every 2 --output {output}"
    return ("train", "--model", model, "--data", data, *words.split(), *more)


@pytest.fixture(scope="module")
def adapter(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained by the command, whose words it checks."""
    root = tmp_path_factory.mktemp("command")
    output = root / "plan"
    result = descant(*arguments(model, data, output, "--json", "--eval-share", "0.2"), cache=root)
    *steps, last = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event["step"] for event in steps if "loss" in event] == [1, 2, 3, 4, 5, 6]
    assert all(event["tokens_per_second"] > 0 for event in steps if "loss" in event)
    assert last["adapter"] == str(output)
    assert last["steps"] == 6
    assert last["eval_loss"] == min(event["eval_loss"] for event in steps if "eval_loss" in event)
    assert log(output) == steps
    return output


@pytest.fixture(scope="module")
def other(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fine-tuned copy of the model: the same shapes, other weights in one layer."""
    path = tmp_path_factory.mktemp("other") / "other"
    tuned = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        tuned.model.layers[1].mlp.up_proj.weight *= 1.001
    tuned.save_pretrained(path)
    return path


def test_peft_loads_what_the_command_trained(adapter: Path, model: Path) -> None:
    assert {path.name for path in adapter.iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "log.jsonl", "recipe.json",
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PEFT warns of keys that it does not know
        loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), adapter)
    assert loaded.peft_config["default"].auto_mapping["descant"]["method"] == "icarus"
    assert loaded.peft_config["default"].base_model_name_or_path == model.name
    report = inspect_adapter(adapter)
    assert [update.name for update in report.updates] == ["down_proj", "gate_proj", "o_proj", "q_proj", "up_proj"]
    assert not any(update.zero for update in report.updates)
    assert report.notes == ()


def test_adapters_check_tells_the_method_and_whether_the_base_fits(
    adapter: Path, model: Path, other: Path, tmp_path: Path
) -> None:
    shutil.copytree(model, tmp_path / "copy")
    fits = descant("adapters", "check", adapter, "--model", tmp_path / "copy", cache=tmp_path)
    assert "icarus" in fits.stdout
    assert "can serve" in fits.stdout
    result = descant("adapters", "check", adapter, "--model", other, "--json", cache=tmp_path, status=1)
    (found,) = json.loads(result.stdout)["adapters"]
    assert found["method"] == "icarus"
    assert found["reason"].startswith(f"Adapter 'plan' was trained on another base model, {model.name} (sha256:")
    assert "holds no safetensors checkpoint" in refused("adapters", "check", adapter, "--model", adapter.parent)


def test_a_conventional_adapter_is_judged_by_its_modules(model: Path, data: Path, tmp_path: Path) -> None:
    both = run(recipe(model, data, method="lora", max_steps=2), tmp_path / "both").adapter
    reason = inspect_adapter(both).refusal("icarus") or ""
    assert reason.startswith("Adapter 'both' updates k_proj, v_proj, which has no effect under --kv-sharing icarus")
    assert reason.endswith(" (it was trained with --method lora).")
    assert inspect_adapter(both).refusal("nonshared") is None
    query = run(recipe(model, data, method="lora", targets=("q_proj",), max_steps=2), tmp_path / "query").adapter
    report = inspect_adapter(query)
    assert report.refusal("icarus") is None
    assert any("trained with --method lora" in note for note in report.notes)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--targets q_proj,k_proj", "k_proj cannot be trained by icarus, because the base model writes K and V"),
        ("--targets lm_head", "lm_head cannot be served"),
        ("--targets q_proj,nothing", "LlamaForCausalLM has no nothing"),
        ("--method dora", "There is no method 'dora'"),
        ("--schedule steps", "There is no schedule 'steps'"),
        ("--role critic", "--role critic has no span in"),
        ("--patience 2", "need something to evaluate on"),
        ("--eval-share 0.99", "leaves none to train on"),
        ("--max-length 4", "raise --max-length"),
        ("--resume", "holds no checkpoint to go on from"),
        ("--data /nowhere.jsonl", "cannot be read"),
        ("--model .", "holds no safetensors checkpoint"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(
    model: Path, data: Path, tmp_path: Path, words: str, sentence: str
) -> None:
    assert sentence in refused(*arguments(model, data, tmp_path / "out", *words.split()))
    assert not (tmp_path / "out").exists()


def test_a_folder_in_use_is_not_written_over(model: Path, data: Path, adapter: Path, tmp_path: Path) -> None:
    assert "holds an adapter already" in refused(*arguments(model, data, adapter))
    output = tmp_path / "out"
    (output / "checkpoints/checkpoint-2").mkdir(parents=True)
    assert "holds checkpoint-2 of a run: go on with --resume" in refused(*arguments(model, data, output))
    shutil.copy(adapter / "recipe.json", output)
    said = refused(*arguments(model, data, output, "--resume", "--rank", "2"))
    assert "begun with another --eval-share, --rank" in said or "begun with another --rank, --eval-share" in said
    (tmp_path / "file").touch()
    assert "cannot be used" in refused(*arguments(model, data, tmp_path / "file"))


def test_a_loss_that_is_no_number_ends_the_run(model: Path, data: Path, tmp_path: Path) -> None:
    broken = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        broken.model.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
    shutil.copytree(model, tmp_path / "broken")
    broken.save_pretrained(tmp_path / "broken")
    with pytest.raises(DescantError, match=r"^The loss at step 1 is nan: give a smaller --learning-rate\.$"):
        run(recipe(tmp_path / "broken", data), tmp_path / "out")

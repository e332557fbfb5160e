"""A trained adapter on the real server: training's log-probabilities, and another base model's adapter refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tiny
import torch
from check import TOLERANCE
from deployments import on
from engine import Server
from training import load, logprobs, recipe, run, sample, write_trajectories

from descant.sglang_ext.server_args import Refused, SharingServerArgs, validate_sharing

Checkpoints = Callable[[str], tiny.Checkpoint]
FAMILIES = ("llama", "qwen3")


@pytest.fixture
def trained(deployment: str, checkpoint: Checkpoints, tmp_path: Path) -> Path:
    """An adapter that has learned a little."""
    data = write_trajectories(tmp_path / "data.jsonl", 12)
    return run(recipe(checkpoint(deployment).model, data, max_steps=4), tmp_path / "trained").adapter


@pytest.fixture
def loaded(server: Server, trained: Path) -> Iterator[Server]:
    answer = server.load_adapter("trained", trained)
    assert answer.status_code == 200, answer.text
    yield server
    server.unload_adapter("trained")


@on(*FAMILIES)
def test_the_server_gives_what_training_computed(
    loaded: Server, trained: Path, deployment: str, checkpoint: Checkpoints
) -> None:
    """On sequences that it was not trained on, given whole and given after an agent has already filled the cache."""
    model = load(checkpoint(deployment).model, trained)
    for seed, start in ((21, 1), (22, 30)):
        tokens = tiny.random_tokens(60, seed=seed)
        with torch.no_grad():
            expected = logprobs(model, [sample(tokens, list(range(start, 59)))])
            base = logprobs(model, [sample(tokens, list(range(start, 59)))], method="lora")
        wanted = expected[torch.arange(59 - start), tokens[start + 1 :]]
        assert (expected - base).abs().max() > 10 * TOLERANCE  # a forward of one path would be found out
        loaded.generate(tokens[:40], "act", new_tokens=1)
        meta = loaded.generate(tokens, "trained", new_tokens=1, logprob_start_len=start)["meta_info"]
        reported = torch.tensor([entry[0] for entry in meta["input_token_logprobs"][1:]])
        assert (reported - wanted).abs().max() < TOLERANCE


def of_another_base(adapter: Path, folder: Path) -> Path:
    shutil.copytree(adapter, folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["auto_mapping"]["descant"]["base"] = "sha256:" + 64 * "0"
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@on("llama")
def test_an_adapter_of_another_base_model_is_refused(server: Server, trained: Path, tmp_path: Path) -> None:
    answer = server.load_adapter("stranger", of_another_base(trained, tmp_path / "stranger"))
    assert answer.status_code == 400
    assert "Adapter 'stranger' was trained on another base model" in answer.text


@pytest.mark.parametrize("deployment", ["llama"])
def test_it_is_refused_before_a_worker_starts(trained: Path, checkpoint: Checkpoints, tmp_path: Path) -> None:
    stranger = of_another_base(trained, tmp_path / "stranger")
    model = str(checkpoint("llama").model)

    def given(path: Path, scheme: str) -> SharingServerArgs:
        return SharingServerArgs(model_path=model, kv_sharing=scheme, lora_paths=[f"plan={path}"])

    validate_sharing(given(trained, "icarus"))
    validate_sharing(given(stranger, "nonshared"))
    with pytest.raises(
        Refused, match=r"^Adapter 'plan' was trained on another base model, llama \(sha256:0{12}…, this"
    ):
        validate_sharing(given(stranger, "icarus"))

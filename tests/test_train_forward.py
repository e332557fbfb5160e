"""The forward that adapters are trained with: exact, causal, packed without leaks, a gradient for adapters alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import torch
from peft import PeftModel
from reference import Reference
from torch.nn.functional import cross_entropy
from training import load, logprobs, sample
from transformers import AutoModelForCausalLM

from descant.agents.training.data import Sample
from descant.agents.training.icarus import ATTENTION, Prefix, check_model, logits, pack
from descant.runtime.errors import DescantError

Checkpoints = Callable[[str], tiny.Checkpoint]
# Rows from the very first token to the last, with gaps, and samples of one row and of one token.
SAMPLES = [
    sample(tiny.random_tokens(40, seed=1), [3, 4, 5, 20, 38]),
    sample(tiny.random_tokens(30, seed=2), [28]),
    sample(tiny.random_tokens(2, seed=3), [0]),
    sample(tiny.random_tokens(25, seed=4), [0, 7, 8, 9]),
]
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def llama(checkpoint: Checkpoints) -> PeftModel:
    saved = checkpoint("llama")
    return load(saved.model, saved.adapters["plan"])


def loss_sum(model: PeftModel, samples: list[Sample], method: str = "icarus") -> torch.Tensor:
    batch = pack(samples)
    return cross_entropy(logits(model, batch, method), batch["labels"], reduction="sum")


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("method", ["icarus", "lora"])
def test_it_is_the_reference(
    checkpoint: Checkpoints, reference: Callable[[str], Reference], family: str, method: str
) -> None:
    saved, ours = checkpoint(family), reference(family)
    model = load(saved.model, saved.adapters["act"])
    forward = ours.icarus if method == "icarus" else ours.conventional
    with torch.no_grad():
        found = logprobs(model, SAMPLES, method)
    expected = torch.cat([forward(each.ids, "act")[each.rows] for each in SAMPLES])
    assert (found - expected).abs().max() < TOLERANCE
    assert (found - torch.cat([ours.icarus(each.ids, None)[each.rows] for each in SAMPLES])).abs().max() > 0.1


@pytest.mark.parametrize("method", ["icarus", "lora"])
def test_packed_samples_do_not_see_each_other(llama: PeftModel, method: str) -> None:
    with torch.no_grad():
        alone = torch.cat([logprobs(llama, [each], method) for each in SAMPLES])
        assert (logprobs(llama, SAMPLES, method) - alone).abs().max() < TOLERANCE
        neighbours = [sample(tiny.random_tokens(60, seed=9), [50]), SAMPLES[0], sample(tiny.random_tokens(5, 8), [3])]
        assert (
            logprobs(llama, neighbours, method)[1:-1] - logprobs(llama, SAMPLES[:1], method)
        ).abs().max() < TOLERANCE


def test_what_all_samples_begin_with_is_read_once_and_changes_nothing(llama: PeftModel) -> None:
    """Rows within it, at its end and behind it; a sample that is but one token longer."""
    alike = tiny.random_tokens(20, seed=7)
    samples = [
        sample(alike + tiny.random_tokens(30, seed=8), [4, 19, 20, 45]),
        sample(alike + tiny.random_tokens(2, seed=9), [20]),
        sample(alike + tiny.random_tokens(9, seed=10), [25]),
    ]
    prefix = Prefix.of(samples)
    assert prefix.tokens == alike
    assert not Prefix.of([*samples, *SAMPLES]).tokens
    batch = pack(samples)
    with torch.no_grad():
        plain = logits(llama, batch, "icarus")
        for _ in range(2):  # read anew, and reused
            assert (logits(llama, batch, "icarus", prefix) - plain).abs().max() < TOLERANCE
    gradients = []
    for each in (None, prefix):
        llama.zero_grad()
        cross_entropy(logits(llama, batch, "icarus", each), batch["labels"]).backward()
        gradients.append([p.grad.clone() for p in llama.parameters() if p.grad is not None])
    for without, reused in zip(*gradients, strict=True):
        torch.testing.assert_close(without, reused, rtol=1e-3, atol=1e-5)


def test_a_row_sees_nothing_behind_it(llama: PeftModel) -> None:
    tokens = tiny.random_tokens(40, seed=5)
    changed = tokens[:21] + tiny.random_tokens(19, seed=6)
    with torch.no_grad():
        first = logprobs(llama, [sample(tokens, [10, 20, 38])])
        second = logprobs(llama, [sample(changed, [10, 20, 38])])
    assert (first[:2] - second[:2]).abs().max() < TOLERANCE
    assert (first[2] - second[2]).abs().max() > 0.1


def test_the_gradient_is_that_of_the_loss_and_reaches_adapters_alone(checkpoint: Checkpoints) -> None:
    """Each tensor of the adapter is moved a little, in float64 but for norms: the loss moves as its gradient says."""
    saved = checkpoint("qwen3")
    model = load(saved.model, saved.adapters["plan"]).double()
    loss_sum(model, SAMPLES).backward()
    generator = torch.Generator().manual_seed(0)
    adapted = 0
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            assert parameter.grad is None, name
            continue
        adapted += 1
        gradient = parameter.grad
        assert gradient is not None, name
        assert gradient.abs().max() > 0, name
        step = 1e-3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        moved = []
        for sign in (1, -2, 1):  # there, to the other side, and back
            with torch.no_grad():
                parameter += sign * step
                moved.append(loss_sum(model, SAMPLES).item())
        assert moved[0] - moved[1] == pytest.approx(2 * (gradient * step).sum().item(), rel=1e-2, abs=1e-5), name
    assert adapted == 2 * 5 * 3  # A and B of five modules in three layers


@pytest.mark.parametrize("method", ["icarus", "lora"])
def test_checkpointed_activations_give_the_same_gradient(checkpoint: Checkpoints, method: str) -> None:
    saved = checkpoint("llama")
    model = load(saved.model, saved.adapters["plan"]).train()
    gradients, losses = [], []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        loss = loss_sum(model, SAMPLES, method)
        loss.backward()
        losses.append(loss.item())
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        model.zero_grad()
    assert losses[0] == pytest.approx(losses[1])
    assert len(gradients[0]) == 30
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, again)


def test_models_whose_attention_is_another_are_refused(checkpoint: Checkpoints, tmp_path: Path) -> None:
    path = checkpoint("mistral").model
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation=ATTENTION)
    check_model(model, longest=1000)
    model.config.sliding_window = 16
    check_model(model, longest=16)
    with pytest.raises(
        DescantError, match=r"window of 16 tokens and the longest sample has 17: give --max-length 16\.$"
    ):
        check_model(model, longest=17)
    model.config.layer_types = ["full_attention", "chunked_attention", "full_attention"]
    with pytest.raises(DescantError, match="layers of chunked_attention"):
        check_model(model, longest=2)

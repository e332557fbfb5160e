"""A recorded forward replays what was recorded, on other inputs of the same shapes, and refuses what it could not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from descant.kernels.cpu.tape import Tape, Unrecordable

WEIGHT = torch.randn(4, 4)
CACHE = torch.zeros(9, 4)


def lasting(tensor: torch.Tensor) -> bool:
    return tensor is WEIGHT or tensor is CACHE


def step(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """Views, results in pairs, writes in place into an intermediate and into a lasting tensor, floats and dtypes."""
    y = F.linear(x, WEIGHT)
    a, b = y.split([1, 3], dim=-1)
    y = y.clone()
    y[0] += 1.5
    CACHE[place] = x
    wide = torch.cat([b, a], dim=-1).to(torch.float64) * 0.25
    return wide.float() + y + CACHE.sum(0)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_replay_computes_what_the_function_would(mode: Callable[[], object]) -> None:
    with mode():  # type: ignore[attr-defined]
        tape = Tape(step, [torch.randn(3, 4), torch.tensor([0, 1, 2])], lasting)
        for seed in range(3):
            x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
            place = torch.tensor([seed, 5, 8])
            before = CACHE.clone()
            wanted, written = step(x, place), CACHE.clone()
            CACHE.copy_(before)
            assert torch.equal(tape.replay(x, place), wanted)
            assert torch.equal(CACHE, written)


def test_the_first_result_is_the_function_s_own() -> None:
    x, place = torch.randn(3, 4), torch.tensor([0, 1, 2])
    assert torch.equal(Tape(step, [x, place], lasting).first, step(x, place))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x * x.sum().item(), "depends on more than the shapes"),
        (lambda x: x[x > 0], "depends on more than the shapes"),
        (lambda x: x + torch.rand(3, 4), "depends on more than the shapes"),
        (lambda x: x + OTHER, "neither an input nor lasting"),
        (lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]), "neither an input nor lasting"),
        (lambda x: x * x.tolist()[0][0], "Tensor.tolist depends"),
        (lambda x: x * x.numpy()[0, 0].item(), "Tensor.numpy depends"),
        (lambda x: [x], "returns list"),
    ],
    ids=["item", "mask", "random", "foreign", "made", "tolist", "numpy", "list"],
)
def test_what_could_not_be_replayed_is_refused(function: Callable[[torch.Tensor], torch.Tensor], why: str) -> None:
    with pytest.raises(Unrecordable, match=why):
        Tape(function, [torch.randn(3, 4)], lasting)


OTHER = torch.randn(3, 4)

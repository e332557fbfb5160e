"""The CPU platform: it takes the machine only where nothing else would."""

from __future__ import annotations

import pytest
import torch
from sglang.srt.platforms import current_platform  # first: it loads our platform as a server does

from descant.sglang_ext.platform import CpuPlatform, activate


def test_without_an_accelerator_it_takes_the_machine() -> None:
    assert torch.accelerator.current_accelerator(check_available=True) is None, "this test needs a machine without one"
    assert activate() == "descant.sglang_ext.platform.CpuPlatform"


def test_it_stays_out_of_the_way_of_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    assert activate() is None


def test_it_stays_out_of_the_way_of_sglangs_own_cpu_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    assert activate() is None


def test_sglang_finds_it() -> None:
    assert isinstance(current_platform, CpuPlatform)
    assert current_platform.is_out_of_tree()
    assert current_platform.get_device() == "cpu"  # a string: SGLang splits it
    assert current_platform.get_default_attention_backend() == "descant_cpu"


def test_lora_code_asks_for_no_pinned_memory() -> None:
    import sglang.srt.lora.layers as layers

    from descant.sglang_ext.platform import unpin_lora_code

    unpin_lora_code()
    pinned = layers.torch.tensor([1, 2], dtype=torch.int32, pin_memory=True)
    assert pinned.tolist() == [1, 2]
    assert torch.ones(2).pin_memory().tolist() == [1, 1]
    assert layers.torch.int32 is torch.int32

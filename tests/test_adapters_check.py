"""`descant adapters check`: what adapters update, and whether a scheme can serve them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import save_file

from descant.agents.adapter import inspect_adapter
from descant.agents.standin import standin_adapters
from descant.runtime.errors import DescantError

Q, K, OUT, DOWN = "self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.down_proj"
RANK, WIDTH, LAYERS = 4, 16, 2

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes an adapter as PEFT would: `modules` are paths in a layer, `zero` those whose B stays zero."""

    def write(
        name: str = "agent",
        modules: tuple[str, ...] = (Q, OUT),
        zero: tuple[str, ...] = (),
        extra: dict[str, torch.Tensor] | None = None,
        dtype: torch.dtype = torch.float32,
        **config: Any,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        tensors = dict(extra or {})
        for layer in range(LAYERS):
            for module in modules:
                stem = f"base_model.model.model.layers.{layer}.{module}"
                tensors[f"{stem}.lora_A.weight"] = torch.randn(RANK, WIDTH, dtype=dtype)
                b = torch.zeros if module in zero else torch.ones
                tensors[f"{stem}.lora_B.weight"] = b(WIDTH, RANK, dtype=dtype)
        save_file(tensors, folder / "adapter_model.safetensors")
        defaults = {
            "peft_type": "LORA",
            "r": RANK,
            "lora_alpha": 8,
            "target_modules": [module.split(".")[-1] for module in modules],
            "base_model_name_or_path": "some/base",
        }
        (folder / "adapter_config.json").write_text(json.dumps(defaults | config))
        return folder

    return write


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "descant.runtime.cli", "adapters", "check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_reports_what_the_tensors_hold(make: Make) -> None:
    report = inspect_adapter(make(modules=(Q, OUT, DOWN), zero=(OUT,)))
    assert (report.rank, report.alpha, report.base_model) == (RANK, 8.0, "some/base")
    assert [(u.name, u.layers, u.zero) for u in report.updates] == [
        ("down_proj", LAYERS, False),
        ("o_proj", LAYERS, True),
        ("q_proj", LAYERS, False),
    ]
    assert report.notes == ("Every B of o_proj is zero: that part changes nothing.",)
    assert report.refusal("icarus") is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_minus_zero_is_zero_in_every_dtype(make: Make, dtype: torch.dtype) -> None:
    stem = "base_model.model.model.layers.0.self_attn.o_proj"
    report = inspect_adapter(
        make(
            modules=(Q,),
            dtype=dtype,
            extra={
                f"{stem}.lora_A.weight": torch.ones(RANK, WIDTH, dtype=dtype),
                f"{stem}.lora_B.weight": -torch.zeros(WIDTH, RANK, dtype=dtype),
            },
        )
    )
    assert {u.name: u.zero for u in report.updates} == {"o_proj": True, "q_proj": False}


def test_icarus_refuses_kv_adapters_and_nonshared_serves_them(make: Make) -> None:
    report = inspect_adapter(make(modules=(Q, K)))
    reason = report.refusal("icarus")
    assert reason is not None
    assert "'agent'" in reason
    assert "k_proj" in reason
    assert report.refusal("nonshared") is None


def test_k_proj_in_the_weights_alone_is_found(make: Make) -> None:
    report = inspect_adapter(make(modules=(Q, K), target_modules=["q_proj"]))
    assert "k_proj" in (report.refusal("icarus") or "")
    assert "There are weights for k_proj, which adapter_config.json does not name." in report.notes


def test_config_without_weights_is_noted(make: Make) -> None:
    report = inspect_adapter(make(target_modules=["q_proj", "o_proj", "up_proj"]))
    assert "adapter_config.json names up_proj, but there are no weights for it." in report.notes


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"r": 8}, "rank 4"),
        ({"r": None}, "no rank"),
    ],
)
def test_what_no_scheme_can_serve(make: Make, config: dict[str, Any], word: str) -> None:
    report = inspect_adapter(make(**config))
    for scheme in ("icarus", "nonshared"):
        assert word in (report.refusal(scheme) or "")


@pytest.mark.parametrize(
    "config", [{"modules_to_save": ["lm_head"]}, {"bias": "all"}, {"lora_bias": True}, {"rank_pattern": {"q_proj": 2}}]
)
def test_options_that_the_server_refuses_are_refused(make: Make, config: dict[str, Any]) -> None:
    reason = inspect_adapter(make(**config)).refusal("icarus")
    assert next(iter(config)) in (reason or "")


def test_added_tokens_are_judged_by_the_base_models_vocabulary(make: Make, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text('{"vocab_size": 100}')
    adapter = make(base_model_name_or_path=str(tmp_path / "base"))
    (adapter / "added_tokens.json").write_text('{"<old>": 99}')
    assert inspect_adapter(adapter).refusal("icarus") is None
    (adapter / "added_tokens.json").write_text('{"<old>": 99, "<new>": 100}')
    assert "adds 1 tokens" in (inspect_adapter(adapter).refusal("icarus") or "")


def test_weights_that_are_no_lora_pairs_are_noted(make: Make) -> None:
    (note,) = inspect_adapter(make(extra={"base_model.model.lm_head.weight": torch.ones(2, 2)})).notes
    assert "lm_head" in note


@pytest.mark.parametrize(
    "damage", ["missing", "no config", "bad config", "a list", "no weights", "cut", "garbage", "empty"]
)
def test_damaged_folders_give_one_sentence(make: Make, damage: str) -> None:
    adapter = make()
    config, weights = adapter / "adapter_config.json", adapter / "adapter_model.safetensors"
    match damage:
        case "missing":
            adapter = adapter / "nowhere"
        case "no config":
            config.unlink()
        case "bad config":
            config.write_text("{")
        case "a list":
            config.write_text(f"[{config.read_text()}]")
        case "no weights":
            weights.unlink()
        case "cut":
            weights.write_bytes(weights.read_bytes()[:-8])
        case "garbage":
            weights.write_bytes(b"\x40" + b"\0" * 7 + b"x" * 100)
        case "empty":
            weights.write_bytes(b"")
    with pytest.raises(DescantError) as error:
        inspect_adapter(adapter)
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")


def test_the_command_shows_all_and_fails_if_one_is_refused(make: Make, tmp_path: Path) -> None:
    good, bad = make("good"), make("bad", modules=(Q, K))
    fine = check(str(good), "--scheme", "icarus")
    assert fine.returncode == 0, fine.stderr
    assert "can serve" in fine.stdout
    mixed = check(str(good), str(bad), str(tmp_path / "nowhere"))
    assert mixed.returncode == 1
    assert "Traceback" not in mixed.stderr + mixed.stdout
    assert all(word in mixed.stdout for word in ("can serve", "refused", "unreadable", "k_proj", "nowhere does not"))
    assert check(str(bad), "--scheme", "nonshared").returncode == 0


def test_the_command_in_json(make: Make) -> None:
    result = check(str(make(modules=(Q, K))), "--json")
    assert result.returncode == 1
    (adapter,) = json.loads(result.stdout)["adapters"]
    assert adapter["served"] is False
    assert [update["name"] for update in adapter["updates"]] == ["k_proj", "q_proj"]


def test_stand_ins_name_the_checkpoint_that_they_were_made_for(
    checkpoint: Callable[[str], tiny.Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not another one with the same config, which may be gone, nor the folder that a command was given in."""
    monkeypatch.setenv("DESCANT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        shutil.copytree(checkpoint("llama").model, tmp_path / name)
        adapters = standin_adapters(Path(name))
        assert [inspect_adapter(folder).base_model for folder in adapters.values()] == [str(tmp_path / name)] * 3
        assert standin_adapters(tmp_path / name) == adapters


def test_an_unknown_scheme_is_one_sentence(make: Make) -> None:
    result = check(str(make()), "--scheme", "sharing")
    assert result.returncode == 1
    assert result.stderr.strip() == "There is no scheme 'sharing': choose one of nonshared, icarus, fullshared."

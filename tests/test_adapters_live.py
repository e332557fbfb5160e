"""Loading, unloading and reloading adapters while others run, and adapters of every shape a user may bring."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import check
import pytest
import tiny
from deployments import on
from engine import Server
from reference import Reference

pytestmark = on("llama")

PROMPT = tiny.random_tokens(45, seed=9)


@pytest.fixture
def base(checkpoint: Callable[[str], tiny.Checkpoint]) -> Path:
    return checkpoint("llama").model


@pytest.fixture
def ours(checkpoint: Callable[[str], tiny.Checkpoint]) -> Reference:
    """A reference of its own, since these tests add adapters to it."""
    return Reference(checkpoint("llama").model, checkpoint("llama").adapters)


def test_a_reload_takes_the_new_weights_and_keeps_the_cache(
    server: Server, base: Path, ours: Reference, tmp_path: Path
) -> None:
    """Two agents generate all the while. Each version of `late` is exact, and finds what was cached before it came."""
    versions = [tiny.save_adapter(base, tmp_path / f"late-{i}", seed=30 + i, rank=4 * (i + 1)) for i in range(3)]
    over = threading.Event()
    background: list[tuple[str | None, list[int], Any]] = []

    def keep_running(agent: str | None, seed: int) -> None:
        while not over.is_set():
            prompt = tiny.random_tokens(20, seed=seed + len(background))
            background.append((agent, prompt, server.generate(prompt, agent, new_tokens=20)))

    others = [threading.Thread(target=keep_running, args=args) for args in [("plan", 1000), (None, 2000)]]
    server.generate(PROMPT, "plan")
    for thread in others:
        thread.start()
    try:
        for version in versions:
            answer = server.load_adapter("late", version)
            assert answer.status_code == 200, answer.text
            ours.add_adapter("late", version)
            response = server.generate(PROMPT, "late", new_tokens=20)
            check.output_is_exact(ours, PROMPT, "late", response)
            assert response["meta_info"]["cached_tokens"] == len(PROMPT) - 1

            answer = server.unload_adapter("late")
            assert answer.status_code == 200, answer.text
            response = server.generate([*PROMPT, *response["output_ids"], 5], "act")
            assert response["meta_info"]["cached_tokens"] == len(PROMPT) + 19
    finally:
        over.set()
        for thread in others:
            thread.join()

    assert len({agent for agent, *_ in background}) == 2
    for agent, prompt, response in background:
        check.output_is_exact(ours, prompt, agent, response)


@pytest.mark.parametrize(
    "shape",
    [
        {"modules": ("q_proj",)},
        {"modules": ("o_proj", "down_proj")},
        {"modules": ("gate_proj",)},
        {"modules": ("up_proj",)},
        {"rank": 1, "alpha": 3},
        {"rank": 32, "alpha": 64, "strength": 1.0},
        {"layers_to_transform": [0]},
    ],
    ids=str,
)
def test_a_shape_that_sglang_serves(
    server: Server, base: Path, ours: Reference, tmp_path: Path, shape: dict[str, Any]
) -> None:
    path = tiny.save_adapter(base, tmp_path / "shape", seed=40, **shape)
    answer = server.load_adapter("shape", path)
    assert answer.status_code == 200, answer.text
    ours.add_adapter("shape", path)
    try:
        for prompt in (PROMPT, PROMPT[:20] + PROMPT[:10]):
            response = server.generate(prompt, "shape", logprob_start_len=5)
            check.output_is_exact(ours, prompt, "shape", response)
            check.input_is_exact(ours, prompt, "shape", response, start=5)
    finally:
        server.unload_adapter("shape")


@pytest.mark.parametrize(
    "shape",
    [
        {"use_rslora": True},
        {"rank_pattern": {"o_proj": 2}},
        {"alpha_pattern": {"o_proj": 64}},
        {"bias": "lora_only", "lora_bias": True},
        {"use_dora": True},
    ],
    ids=str,
)
def test_a_shape_that_sglang_would_get_wrong_is_refused(
    server: Server, base: Path, ours: Reference, tmp_path: Path, shape: dict[str, Any]
) -> None:
    """SGLang scales every module by alpha / r of the whole adapter and knows no DoRA and no biases. Such an adapter is
    refused with a reason, and the server goes on; serving it exactly would be as good."""
    path = tiny.save_adapter(base, tmp_path / "shape", seed=41, **shape)
    answer = server.load_adapter("odd", path)
    if answer.status_code == 200:
        ours.add_adapter("odd", path)
        try:
            check.output_is_exact(ours, PROMPT, "odd", server.generate(PROMPT, "odd"))
        finally:
            server.unload_adapter("odd")
    else:
        assert 400 <= answer.status_code < 500
        assert "odd" in answer.text
    check.output_is_exact(ours, PROMPT, "plan", server.generate(PROMPT, "plan"))


def test_a_refused_adapter_leaves_nothing_behind(server: Server, base: Path, ours: Reference, tmp_path: Path) -> None:
    """An adapter that updates k_proj cannot be asked for, and its name is free for one that can be served."""
    bad = tiny.save_adapter(base, tmp_path / "bad", seed=42, modules=("q_proj", "k_proj"))
    answer = server.load_adapter("agent", bad)
    assert 400 <= answer.status_code < 500
    assert "agent" in answer.text
    assert "k_proj" in answer.text
    assert 400 <= server.http.post("/generate", json=server.body(PROMPT, "agent")).status_code < 500

    good = tiny.save_adapter(base, tmp_path / "good", seed=43)
    assert server.load_adapter("agent", good).status_code == 200
    ours.add_adapter("agent", good)
    check.output_is_exact(ours, PROMPT, "agent", server.generate(PROMPT, "agent"))
    server.unload_adapter("agent")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("no folder", "does not exist"),
        ("no config", "is no PEFT adapter"),
        ("a list", "holds no JSON object"),
        ("no rank", "does not say r"),
        ("no weights", "holds no weights"),
        ("cut", "is cut short at"),
        ("another rank", "does not fit the base model"),
        ("another width", "does not fit the base model"),
        ("another depth", "does not fit the base model"),
        ("base", "No adapter can be called 'base'"),
    ],
)
def test_an_adapter_that_cannot_be_loaded_is_one_sentence(
    server: Server, base: Path, tmp_path: Path, damage: str, words: str
) -> None:
    """And the server goes on."""
    path = tmp_path / "adapter"
    config, weights = path / "adapter_config.json", path / "adapter_model.safetensors"
    model = base
    if damage in ("another width", "another depth"):
        changes = {"another width": {"intermediate_size": 128}, "another depth": {"num_hidden_layers": 4}}[damage]
        model = tiny.save_model("llama", tmp_path / "model", **changes)
    if damage != "no folder":
        tiny.save_adapter(model, path, seed=44)
    match damage:
        case "no config":
            config.unlink()
        case "a list":
            config.write_text(f"[{config.read_text()}]")
        case "no rank" | "another rank":
            told = json.loads(config.read_text())
            config.write_text(json.dumps(told | {"r": None if damage == "no rank" else 4}))
        case "no weights":
            weights.unlink()
        case "cut":
            weights.write_bytes(weights.read_bytes()[:-8])
    name = "base" if damage == "base" else "bad"
    answer = server.load_adapter(name, path)
    assert answer.status_code == 400
    said = answer.json()["error_message"]
    assert words in said
    assert f"'{name}'" in said
    assert said.endswith(".")
    assert "\n" not in said
    assert server.generate(PROMPT, "plan")["output_ids"]

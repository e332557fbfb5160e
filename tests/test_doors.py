"""The flag in a program: `sglang.Engine(kv_sharing=…)`. One of the DEPLOYMENTS is `python -m sglang.launch_server`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import check
import tiny
from reference import Reference

ENGINE = """
import json, sys

import sglang

if __name__ == "__main__":
    model, adapters, prompt = json.loads(sys.argv[1])
    engine = sglang.Engine(
        model_path=model, lora_paths=adapters, kv_sharing="icarus", max_total_tokens=2048, dtype="float32"
    )
    sampling = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}
    answers = [
        engine.generate(input_ids=prompt, sampling_params=sampling, lora_path=name, return_logprob=True)
        for name in ("plan", "act")
    ]
    scheme = engine.get_server_info()["kv_sharing"]
    engine.shutdown()
    print(json.dumps([scheme, answers]))
"""


def test_the_engine_in_a_program(
    checkpoint: Callable[[str], tiny.Checkpoint], reference: Callable[[str], Reference], tmp_path: Path
) -> None:
    """It names no device and no backend: the CPU platform's choices are exact."""
    saved, prompt = checkpoint("llama"), tiny.random_tokens(20, 70)
    program = tmp_path / "program.py"
    program.write_text(ENGINE)
    given = json.dumps([str(saved.model), {name: str(path) for name, path in saved.adapters.items()}, prompt])
    done = subprocess.run([sys.executable, str(program), given], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    scheme, (plan, act) = json.loads(done.stdout.strip().splitlines()[-1])
    assert scheme == "icarus"
    assert act["meta_info"]["cached_tokens_details"]["cross_agent"] == 19
    check.output_is_exact(reference("llama"), prompt, "plan", plan)
    check.output_is_exact(reference("llama"), prompt, "act", act)

"""Paired attention through SGLang's Triton backend: eager, through a CUDA graph's metadata, and in extend.

It is a process whose Triton interprets; what is checked, and against what, stands in `paired_triton.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("paired_triton.py")


def test_every_row_attends_to_what_the_encoder_wrote() -> None:
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=400, env=env)
    assert done.returncode == 0, done.stdout + done.stderr

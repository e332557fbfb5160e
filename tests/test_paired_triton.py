"""The Triton kernels of paired decode, without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from descant.kernels.paired import PairedShape, paired_decode

TESTS = Path(__file__).resolve().parent


def test_numbers_in_the_interpreter() -> None:
    """`interpreted/` in a process of its own: Triton decides when it is imported whether it interprets."""
    command = [sys.executable, "-m", "pytest", "interpreted", "--confcutdir=interpreted", "-p", "no:cacheprovider"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(TESTS.parent)}
    child = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True, timeout=300)
    assert child.returncode == 0, child.stdout + child.stderr


def test_a_device_without_cuda_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a CUDA device, not 'cpu'"):
        paired_decode("triton", PairedShape(4, 2, 64, 1.0, torch.float16), torch.device("cpu"))

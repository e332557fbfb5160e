"""Tests that need a CUDA device, run by `make test-gpu`. Without one they are refused, not skipped."""

from __future__ import annotations

import pytest
import torch

from descant.kernels.paired import installed


def pytest_configure() -> None:
    if not torch.cuda.is_available():
        raise pytest.UsageError("tests/gpu needs a CUDA device, and PyTorch finds none; `make test` runs without one.")


def pytest_report_header() -> str:
    return f"{torch.cuda.get_device_name()}; paired decode: {', '.join(installed())}"

"""What paired decode plans on FlashInfer compiles, for sm_90a and without a GPU. It needs g++ and pip's nvcc.

One and a half minutes: FlashInfer compiles its kernels where they are first used.
"""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from flashinfer_cpu import flashinfer_on_cpu

from descant.kernels.paired import PairedShape, paired_decode

DTYPE = torch.bfloat16


def _planned_modules(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[object, ...]]]:
    """The modules that paired decode plans with, for 2 and for 16 joined heads a KV head."""
    with flashinfer_on_cpu(monkeypatch) as module:
        for group in (2, 16):
            shape = PairedShape(query_heads=2 * group, kv_heads=2, head_dim=64, scaling=0.125, dtype=DTYPE)
            decode = paired_decode("flashinfer", shape, torch.device("cuda"))
            decode.plan(torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0]))
    return module.built


def _kernels(path: Path) -> str:
    """cuobjdump's resource usage of each kernel in `path`: `Function NAME: REG:n STACK:n ...`, by architecture."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    done = subprocess.run([str(tool), "--dump-resource-usage", str(path)], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.slow
def test_the_planned_kernels_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert shutil.which("g++"), "this test compiles: install g++ (Debian: apt install g++)"
    built = _planned_modules(monkeypatch)
    assert [kind for kind, _ in built] == ["decode", "prefill"]
    modules = tmp_path / "modules"
    modules.write_bytes(pickle.dumps(built))
    script = Path(__file__).with_name("flashinfer_build.py")
    done = subprocess.run(
        [sys.executable, str(script), str(modules), str(tmp_path)], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-4000:]
    library, kernel = (Path(line) for line in done.stdout.split())
    assert library.suffix == ".so"
    for path in (library, kernel):
        assert "arch = sm_90a" in _kernels(path)
    # The group is a kernel's template argument: bdx 8, bdy 2. Tensor cores: 16 rows a tile, whatever the group.
    assert "BatchDecodeWithPagedKVCacheKernelILNS_15PosEncodingModeE0ELj1ELj1ELj8ELj8ELj2E" in _kernels(library)
    assert "BatchPrefillWithPagedKVCacheKernelILb1ENS_12KernelTraitsILNS_8MaskModeE0ELj16E" in _kernels(kernel)

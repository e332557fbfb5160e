"""Run as a script: `flashinfer_build.py MODULES FOLDER` compiles for sm_90a, without a GPU, what FlashInfer would.

MODULES: a pickled list of ("decode" | "prefill", arguments of FlashInfer's get_batch_decode_module or
get_batch_prefill_module). Prints the path of each file made: decode's whole library, and of prefill's, whose library
takes minutes, the one kernel that decode runs.

The CUDA toolkit is put together in FOLDER from pip's nvidia-cuda-nvcc and what it brings (compiler, headers, runtime
library); the driver, which a machine without a GPU lacks, is an empty library for the linker. The host's compiler is
g++.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any


def toolkit(home: Path) -> Path:
    """A CUDA_HOME at `home`, of links to pip's packages."""
    spec = importlib.util.find_spec("nvidia")
    packages = [Path(place) / "cu13" for place in (spec.submodule_search_locations or [])] if spec else []
    found = next((place for place in packages if (place / "bin/nvcc").is_file()), None)
    if found is None:
        raise SystemExit("No nvcc among the installed packages: pip install 'nvidia-cuda-nvcc>=13,<14'.")
    stubs = home / "lib64/stubs"
    stubs.mkdir(parents=True)
    for part in ("bin", "include", "nvvm"):
        (home / part).symlink_to(found / part)
    (home / "lib64/libcudart.so").symlink_to(found / "lib/libcudart.so.13")
    subprocess.run(["g++", "-shared", "-x", "c", os.devnull, "-o", str(stubs / "libcuda.so")], check=True)
    return home


def specs(modules: list[tuple[str, tuple[Any, ...]]]) -> list[Any]:
    """What FlashInfer would build and load for these modules."""
    import flashinfer.decode
    import flashinfer.prefill
    from flashinfer.jit.core import JitSpec

    wanted: list[Any] = []

    class Found(Exception):
        pass

    def build_and_load(spec: Any) -> None:
        wanted.append(spec)
        raise Found

    JitSpec.build_and_load = build_and_load
    get = {
        "decode": flashinfer.decode.get_batch_decode_module,
        "prefill": flashinfer.prefill.get_batch_prefill_module,
    }
    for kind, arguments in modules:
        try:
            get[kind](*arguments)
        except Found:
            continue
        raise SystemExit(f"FlashInfer builds nothing for {kind} {arguments}.")
    return wanted


def main(modules: Path, folder: Path) -> None:
    os.environ.update(
        CUDA_HOME=str(toolkit(folder / "cuda")),
        FLASHINFER_CUDA_ARCH_LIST="9.0a",
        FLASHINFER_WORKSPACE_BASE=str(folder),
        # pip's nvcc may be newer than the runtime headers that torch asks for; NVIDIA keeps them compatible within 13.
        FLASHINFER_EXTRA_CUDAFLAGS="-DCCCL_DISABLE_CTK_COMPATIBILITY_CHECK",
    )
    for (kind, _), spec in zip(wanted := pickle.loads(modules.read_bytes()), specs(wanted), strict=True):
        spec.write_ninja()
        path = spec.jit_library_path
        if kind == "prefill":
            built = re.findall(r"^build (\S*paged_kernel_mask_0\S*\.o):", spec.ninja_path.read_text(), re.MULTILINE)
            path = Path(*built)
        ninja = [sys.executable, "-m", "ninja", "-j", "1", "-f", str(spec.ninja_path), str(path)]
        subprocess.run(ninja, cwd=spec.build_dir, stdout=sys.stderr, check=True)
        print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

"""What a Triton kernel becomes on an NVIDIA GPU, found out on any machine: compiled ahead of time, nothing launched."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

# Shared memory that one block can have, in bytes, by compute capability (CUDA C++ Programming Guide, 20.2).
SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}


@dataclass(frozen=True)
class Variant:
    """A kernel as Triton specialises it: launches with equal variants run the same binary.

    signature: each parameter's type, or "constexpr". constants: the constexprs. aligned: indices of the parameters
    known to be multiples of 16.
    """

    kernel: Any
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    aligned: tuple[int, ...]
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Resources:
    """What one compiled kernel takes: registers a thread; bytes of shared memory a block; bytes spilled a thread."""

    registers: int
    shared: int
    spilled: int


def specialise(kernel: Any, arguments: Mapping[str, Any], *, num_warps: int, num_stages: int) -> Variant:
    """The variant that a launch with `arguments` runs.

    Args:
        kernel: a `triton.jit` function, imported without TRITON_INTERPRET.
        arguments: every argument by name. Tensors may be on the meta device; they are taken to be aligned.
    """
    signature, constants, aligned = [], [], []
    for index, parameter in enumerate(kernel.params):
        argument = arguments[parameter.name]
        number = type(argument) is int and not parameter.do_not_specialize
        if parameter.is_constexpr or (number and argument == 1):
            signature.append((parameter.name, "constexpr"))
            constants.append((parameter.name, argument))
            continue
        signature.append((parameter.name, _type(argument)))
        if isinstance(argument, torch.Tensor) or (number and argument % 16 == 0):
            aligned.append(index)
    return Variant(kernel, tuple(signature), tuple(constants), tuple(aligned), num_warps, num_stages)


def resources(variant: Variant, capability: int) -> Resources:
    """Compile for a compute capability (90 for sm_90), and ask the cuobjdump that Triton carries.

    Raises:
        subprocess.CalledProcessError: cuobjdump refused the binary.
    """
    source = ASTSource(
        variant.kernel,
        dict(variant.signature),
        dict(variant.constants),
        {(index,): [["tt.divisibility", 16]] for index in variant.aligned},
    )
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    usage = _usage(compiled.asm["cubin"])
    # ptxas puts what it spills on the stack, and these kernels have no other use for one.
    return Resources(usage["REG"], compiled.metadata.shared, usage["STACK"] + usage["LOCAL"])


def _type(argument: Any) -> str:
    """Triton's name for the type of a tensor's pointer or of a number."""
    if isinstance(argument, torch.Tensor):
        return "*" + triton.runtime.jit.type_canonicalisation_dict[str(argument.dtype).removeprefix("torch.")]
    return "i32" if isinstance(argument, int) else "fp32"


def _usage(cubin: bytes) -> dict[str, int]:
    """The fields of `cuobjdump --dump-resource-usage` (REG, STACK, SHARED, LOCAL, ...) of a cubin's one kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", text)}

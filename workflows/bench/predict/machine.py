"""A machine as a roofline: a step takes as long as its arithmetic or its memory traffic, whichever is longer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from descant.runtime.errors import DescantError
from descant.workflows.bench.predict.model import DTYPE_BYTES, Model
from descant.workflows.bench.predict.scheme import Scheme
from descant.workflows.bench.predict.step import Step
from descant.workflows.bench.words import counted


@dataclass(frozen=True)
class Gpu:
    """A device by its data sheet, and what is assumed of it.

    flops: dense bfloat16 operations a second at peak, a multiply-add being two.
    bandwidth: of device memory at peak, bytes/s.
    memory: bytes.
    chunk: tokens of a prefill step at most, SGLang's choice for a device of this size.
    flops_share, bandwidth_share: of the peaks, what a step reaches. Assumed.
    overhead: seconds a step takes beside, for launches and the scheduler. Assumed.
    turn: seconds of a turn outside of steps, for the request's way in and out. Assumed.
    memory_share: of the memory, what weights, adapters and KV together may take. Assumed.
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    chunk: int = 8192
    flops_share: float = 0.6
    bandwidth_share: float = 0.8
    overhead: float = 2e-3
    turn: float = 2e-3
    memory_share: float = 0.85


# NVIDIA's data sheets: A100 80GB SXM (312 TFLOPS, 2,039 GB/s); H200 SXM (1,979 TFLOPS with sparsity, hence half of it
# dense; 4.8 TB/s; 141 GB).
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("A100-80GB", flops=312e12, bandwidth=2.039e12, memory=80e9),
        Gpu("H200", flops=989.5e12, bandwidth=4.8e12, memory=141e9),
    )
}


@dataclass(frozen=True)
class Roofline:
    """A model with LoRA adapters of a rank on a device, under a scheme: a `Machine`."""

    gpu: Gpu
    model: Model
    scheme: Scheme
    rank: int

    @property
    def turn(self) -> float:
        return self.gpu.turn

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Parameters of all layers, of the head, and of an adapter."""
        model = self.model
        adapter = model.adapter_parameters(self.rank, self.scheme.targets)
        return model.layer_parameters, model.head_parameters, adapter

    def flops(self, step: Step) -> int:
        """Operations: two a parameter and row, four a head's dimension and (query, key) pair for QK^T and PV."""
        layers, head, adapter = self.sizes
        attention = 2 * step.pairs * self.model.layers * self.model.heads * self.model.head_dim
        return 2 * (step.rows * layers + step.adapted * adapter + step.logits * head + attention)

    def bytes(self, step: Step) -> int:
        """Memory traffic: weights and each adapter once, the KV of each request once, what is written. Activations
        are left out."""
        layers, head, adapter = self.sizes
        weights = layers + step.adapters * adapter + (head if step.logits else 0)
        return weights * DTYPE_BYTES + (step.kv + step.written) * self.model.kv_bytes

    def seconds(self, step: Step) -> float:
        gpu = self.gpu
        arithmetic = self.flops(step) / (gpu.flops * gpu.flops_share)
        traffic = self.bytes(step) / (gpu.bandwidth * gpu.bandwidth_share)
        return gpu.overhead + max(arithmetic, traffic)


def pool_tokens(gpu: Gpu, model: Model, rank: int, agents: int, targets: tuple[str, ...]) -> int:
    """Tokens of KV that fit beside the weights and the adapters of all agents.

    Raises:
        DescantError: the weights and adapters alone do not fit.
    """
    adapters = agents * model.adapter_parameters(rank, targets)
    room = gpu.memory * gpu.memory_share - (model.parameters + adapters) * DTYPE_BYTES
    if room < model.kv_bytes:
        raise DescantError(
            f"{model.name} with {counted(agents, 'adapter')} of rank {rank} does not fit {gpu.name}: "
            "give fewer agents, a lower rank or a larger device."
        )
    return int(room // model.kv_bytes)

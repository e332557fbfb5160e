"""The flags --kv-sharing and --allow-kv-adapters, and what they refuse."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang.srt.arg_groups.arg_utils import NS, A, Arg
from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view
from sglang.srt.server_args import ServerArgs, _rebuild_server_args

from descant.sglang_ext.fingerprint import fingerprint_of
from descant.sglang_ext.schemes import SCHEMES, Scheme, scheme_named
from descant.sglang_ext.schemes.adapter_files import AdapterFileError, on_this_machine, read_adapter
from descant.sglang_ext.schemes.adapters import refusal, refusal_of_name

logger = logging.getLogger(__name__)

RADIX_BACKEND = "descant"  # the name under which AgentRadixCache is registered


class Refused(ValueError):
    """A combination that cannot be served. The message says what, why and the way out; a traceback adds nothing."""


class SharingServerArgs(ServerArgs, dict=True):  # type: ignore[call-arg]
    """SGLang's arguments and ours. Importable by name: spawned workers unpickle it before any plugin loads."""

    kv_sharing: A[
        str,
        Arg(
            help="Who writes and who reads the KV cache when requests use LoRA adapters. "
            + " ".join(f"'{scheme.name}': {scheme.summary}." for scheme in SCHEMES.values()),
            choices=list(SCHEMES),
        ),
        NS("lora"),
    ] = "nonshared"
    allow_kv_adapters: A[
        bool,
        Arg(
            help="Under --kv-sharing icarus, load adapters that update k_proj or v_proj and ignore these updates "
            "(such adapters were not trained for it; expect other answers than theirs)."
        ),
        NS("lora"),
    ] = False

    def __reduce__(self) -> tuple[Any, ...]:
        _rebuild, *rest = super().__reduce__()
        return (_rebuild_in_worker, *rest)


def _rebuild_in_worker(*args: Any) -> ServerArgs:
    """Unpickle the arguments, and make sure that this process has every hook before it can serve with them."""
    from sglang.srt.plugins import load_plugins

    from descant.sglang_ext.plugin import verify_or_exit

    load_plugins()
    verify_or_exit()
    return _rebuild_server_args(*args)


# By device, the attention backends that attend over paired rows; the first is the default (attention_backends/).
ATTENTION_BACKENDS: dict[str, tuple[str, ...]] = {
    "cpu": ("descant_cpu", "torch_native"),
    "cuda": ("triton", "flashinfer"),
}

# Options that a sharing scheme cannot serve yet: name, the values that are fine, what it is.
UNSHARABLE: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("disable_radix_cache", (False,), "sharing happens in the radix cache"),
    ("radix_cache_backend", (None, RADIX_BACKEND), "sharing needs descant's own radix cache"),
    ("enable_hierarchical_cache", (False,), "slots that come back from the host have no recorded writer"),
    ("enable_unified_cache_external_linker", (False,), "slots that come from outside have no recorded writer"),
    ("enable_lmcache", (False,), "it replaces the radix cache"),
    ("enable_flexkv", (False,), "it replaces the radix cache"),
    ("enable_streaming_session", (False,), "sessions keep KV outside the shared tree"),
    ("disaggregation_mode", ("null",), "prefill and decode must share one pool"),
    ("disaggregation_decode_enable_offload_kvcache", (False,), "slots that come back have no recorded writer"),
)

# Options that paired rows cannot serve yet.
UNPAIRABLE: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("speculative_algorithm", (None,), "draft tokens have no decoder rows yet"),
    ("dllm_algorithm", (None,), "diffusion blocks have no decoder rows"),
    ("enable_lora_overlap_loading", (None, False), "the base model's adapter slot must stay resident"),
    ("tp_size", (1,), "tensor parallelism is untested with paired rows"),
    ("pp_size", (1,), "hidden states cross stages between the paired rows"),
    ("dp_size", (1,), "data parallelism is untested with paired rows"),
    ("enable_dp_attention", (False,), "padding and gathering do not know paired rows"),
    ("attn_cp_size", (1,), "context parallelism does not know paired rows"),
    ("dcp_size", (1,), "context parallelism does not know paired rows"),
    ("ep_size", (1,), "expert parallelism does not know paired rows"),
    ("enable_two_batch_overlap", (False,), "it splits a batch's rows"),
    ("enable_single_batch_overlap", (False,), "it splits a batch's rows"),
    ("enable_pdmux", (False,), "it runs two batches at once"),
    ("enable_torch_compile", (False,), "the compiled forward does not know paired rows"),
    ("enable_return_hidden_states", (False,), "a prompt's hidden states would mix encoder and decoder rows"),
    ("enable_return_aux_hidden_states", (False,), "a prompt's hidden states would mix encoder and decoder rows"),
    ("is_embedding", (False,), "embeddings would come from encoder rows"),
    ("enable_mis", (False,), "multi-item scoring reads logits that have no decoder rows"),
    ("enable_deterministic_inference", (False,), "the paired kernels split a request by what else is in the batch"),
    ("enable_unified_memory", (False,), "its page tables are a whole batch's, not its decoder rows'"),
    ("enable_nvidia_megakernel", (False,), "its fused layers do not know paired rows"),
    ("kv_cache_dtype", ("auto", "bf16", "bfloat16"), "quantized KV is untested with paired rows"),
    ("lora_backend", ("csgmv", "triton", "triton_v2", "torch_native"), "it is untested with paired rows"),
    ("device", (None, *ATTENTION_BACKENDS), "rows are paired on these alone: " + ", ".join(ATTENTION_BACKENDS)),
)


def _attention_options(given: Any) -> tuple[tuple[str, tuple[Any, ...], str], ...]:
    """As UNPAIRABLE: one attention backend, which knows paired rows on the device, must serve prefill and decode."""
    device = given.device or "cpu"
    backends = ATTENTION_BACKENDS.get(device, ())
    reason = f"paired rows on {device} need {' or '.join(backends)}, for prefill and decode alike"
    return (
        ("attention_backend", (None, *backends), reason),
        ("prefill_attention_backend", (None, given.attention_backend), reason),
        ("decode_attention_backend", (None, given.attention_backend), reason),
    )


def choose_attention_backend(server_args: Any) -> None:
    """Before SGLang chooses: on some GPUs it would take a backend that cannot attend over paired rows."""
    given = resolving_view(server_args)
    scheme = SCHEMES.get(given.kv_sharing)
    chosen = (given.attention_backend, given.prefill_attention_backend, given.decode_attention_backend)
    if scheme is None or not scheme.pairs_rows or given.device != "cuda" or any(chosen):
        return
    backend = ATTENTION_BACKENDS["cuda"][0]
    logger.info(f"--kv-sharing {scheme.name} attends with --attention-backend {backend} unless another is given.")
    declare_resolution(server_args, "descant", attention_backend=backend)


def validate_sharing(server_args: Any) -> None:
    """Refuse options that the chosen scheme cannot serve, and choose its radix cache.

    Raises:
        Refused: one sentence that names the option, its value, the reason and the way out.
    """
    given = resolving_view(server_args)
    if given.kv_sharing not in SCHEMES:
        raise Refused(f"--kv-sharing {given.kv_sharing} is unknown; choose one of {', '.join(SCHEMES)}.")
    scheme = scheme_named(given.kv_sharing)
    if given.allow_kv_adapters and not scheme.pairs_rows:
        raise Refused(
            "--allow-kv-adapters needs --kv-sharing icarus; other schemes serve k_proj and v_proj as they are."
        )
    if not scheme.shares_namespace:
        return
    _refuse(scheme, given, UNSHARABLE)
    if scheme.pairs_rows:
        _refuse(scheme, given, (*UNPAIRABLE, *_attention_options(given)))
        if given.max_loras_per_batch < 2:
            raise Refused(
                f"--max-loras-per-batch {given.max_loras_per_batch} leaves no slot for an adapter beside the base "
                f"model, which --kv-sharing {scheme.name} runs in every batch; set it to 2 or more."
            )
    for name, path in _named_adapters(given.lora_paths):
        if reason := refusal_of_name(scheme, name):
            raise Refused(reason)
        if on_this_machine(path):  # the workers check the others
            try:
                config, _ = read_adapter(Path(path))
            except AdapterFileError as error:
                raise Refused(f"Adapter '{name}' cannot be loaded: {error}") from None
            if reason := refusal(scheme, name, config, given.allow_kv_adapters, fingerprint_of(given.model_path)):
                raise Refused(reason)
    if scheme.warning:
        logger.warning(scheme.warning)
    declare_resolution(server_args, "descant", radix_cache_backend=RADIX_BACKEND)


def _named_adapters(lora_paths: Any) -> list[tuple[str, str]]:
    """Name and path of each adapter in --lora-paths."""
    if isinstance(lora_paths, Mapping):
        return list(lora_paths.items())
    return [_name_and_path(item) for item in lora_paths or []]


def _name_and_path(item: Any) -> tuple[str, str]:
    """One element of --lora-paths, in any of the forms that SGLang takes."""
    if isinstance(item, str):
        name, _, path = item.rpartition("=")
        return name or path, path
    if isinstance(item, Mapping):
        return item["lora_name"], item["lora_path"]
    return item.lora_name, item.lora_path


def _refuse(scheme: Scheme, given: Any, options: Sequence[tuple[str, tuple[Any, ...], str]]) -> None:
    for name, allowed, reason in options:
        value = getattr(given, name)
        if value not in allowed:
            flag = "--" + name.replace("_", "-")
            shown = flag if value is True else f"{flag} {value}"
            raise Refused(
                f"{shown} cannot be used with --kv-sharing {scheme.name}: {reason}; "
                f"drop the option, or use --kv-sharing nonshared."
            )

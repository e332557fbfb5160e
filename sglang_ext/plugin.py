"""Entry point `sglang.srt.plugins`: every hook into SGLang, in one table, applied and then verified.

SGLang only logs a hook that fails. A server that goes on without one of these would serve unshared, or wrong, in
silence; so a process in which one did not take ends here, with one line.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from types import TracebackType
from typing import Any

SGLANG_VERSION = "0.5.23"


@dataclass(frozen=True)
class Hook:
    """One place in SGLang that descant takes hold of, and why."""

    target: str
    kind: str  # before, after, around, replace: sglang.srt.plugins.hook_registry.HookType
    hook: Callable[..., Any]
    reason: str


def hooks() -> tuple[Hook, ...]:
    """The table. Imports the engine's modules, so it is built when SGLang loads plugins, not when this file is read."""
    from descant.sglang_ext import attention_backends, lora, namespace, output, requests, setup
    from descant.sglang_ext.server_args import SharingServerArgs

    srt = "sglang.srt"
    return (
        Hook(
            f"{srt}.server_args.ServerArgs",
            "replace",
            SharingServerArgs,
            "the flags --kv-sharing and --allow-kv-adapters",
        ),
        Hook(
            f"{srt}.managers.tokenizer_manager.TokenizerManager._validate_one_request",
            "before",
            requests.check_request,
            "a token id outside the vocabulary would end the server",
        ),
        Hook(
            f"{srt}.managers.schedule_batch.Req.__init__",
            "around",
            namespace.init_request,
            "upstream puts each adapter's KV into a namespace of its own",
        ),
        Hook(
            f"{srt}.managers.scheduler.Scheduler._record_kv_event_lora_name",
            "around",
            namespace.record_agent,
            "the only place that has the adapter's name; upstream would label shared KV with it",
        ),
        Hook(
            f"{srt}.managers.scheduler.Scheduler.get_output_streamer_class",
            "after",
            output.streamer_class,
            "responses say how many cached tokens came from another agent",
        ),
        Hook(
            f"{srt}.managers.scheduler_components.internal_state.SchedulerInternalStateController.get_internal_state",
            "after",
            output.add_totals,
            "/server_info shows the totals",
        ),
        Hook(
            f"{srt}.lora.lora_manager.LoRAManager",
            "replace",
            lora.SharingLoRAManager,
            "adapters are checked against the scheme, and rows run under the adapter that the plan gives them",
        ),
        Hook(
            f"{srt}.lora.lora.LoRAAdapter._normalize_weights",
            "before",
            lora.complete_adapter,
            "upstream cannot load an adapter that has q_proj without v_proj",
        ),
        Hook(
            f"{srt}.model_executor.model_runner.ModelRunner.init_lora_manager",
            "after",
            setup.pair_loaded_model,
            "the loaded model's forward computes a plan's rows",
        ),
        Hook(
            f"{srt}.model_executor.model_runner_components.attention_backend_setup._build_full_attention_backend_from_str",
            "around",
            attention_backends.build_backend,
            "upstream's backends of this name have no room for joined heads, and no plan for decoder rows",
        ),
    )


def register() -> None:
    """Called by SGLang in each of its processes. Ends the process (SystemExit) if SGLang is not the version this was
    written for, or if a hook did not take.
    """
    if (found := version("sglang")) != SGLANG_VERSION:
        raise SystemExit(
            f"descant: this version is written for sglang {SGLANG_VERSION} and found {found}; "
            f"run `pip install sglang=={SGLANG_VERSION}`, or uninstall descant."
        )
    try:
        _apply()
    except Exception as error:
        # SGLang would log it and serve without us.
        raise SystemExit(
            f"descant: its hooks into SGLang could not be made ({type(error).__name__}: {error})."
        ) from error
    verify_or_exit()


def _apply() -> None:
    from sglang.srt.arg_groups.choices import add_attention_backend_choices
    from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from descant.sglang_ext.platform import ATTENTION_BACKEND
    from descant.sglang_ext.radix import register_cache
    from descant.sglang_ext.server_args import SharingServerArgs, choose_attention_backend, validate_sharing

    for hook in hooks():
        HookRegistry.register(hook.target, hook.hook, HookType(hook.kind))
    HookRegistry.apply_hooks()
    # A class attribute, which the registry's replacement of module globals does not reach.
    Engine.server_args_class = SharingServerArgs

    @register_resolution_hook("handle_attention_backend_compatibility")
    def choose(server_args: Any, previous: Callable[[Any], None]) -> None:
        choose_attention_backend(server_args)
        previous(server_args)

    @register_resolution_hook("handle_other_validations")
    def validate(server_args: Any, previous: Callable[[Any], None]) -> None:
        previous(server_args)
        validate_sharing(server_args)

    register_cache()
    add_attention_backend_choices([ATTENTION_BACKEND])
    sys.excepthook = _say_refusals(sys.excepthook)


def _say_refusals(previous: Callable[..., Any]) -> Callable[..., Any]:
    """An excepthook that prints a refusal's sentence alone, and leaves every other exception to `previous`."""
    from descant.sglang_ext.server_args import Refused

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, Refused):
            print(f"descant: {error}", file=sys.stderr)
        else:
            previous(kind, error, trace)

    return hook


def hooks_taken() -> list[tuple[Hook, bool]]:
    """Each hook, and whether the target in this process is what the hook made of it."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    return [(hook, hook.target in HookRegistry._patched and _in_place(hook)) for hook in hooks()]


def _in_place(hook: Hook) -> bool:
    target = pkgutil.resolve_name(hook.target)
    return target is hook.hook if hook.kind == "replace" else hasattr(target, "__wrapped__")


def verify_or_exit() -> None:
    """End the process, with one line, unless every hook took."""
    missing = [hook.target for hook, took in hooks_taken() if not took]
    if missing:
        raise SystemExit(
            f"descant: no hook on {', '.join(missing)}, without which KV sharing would be wrong or absent; "
            f"another plugin may be in the way: see `descant doctor`, and set SGLANG_PLUGINS=descant to load no other."
        )

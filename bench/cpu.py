"""Measure the CPU path on the demo's model, beside Transformers with PEFT and SGLang's own layers, as Markdown.

Run as `python bench/cpu.py` on a machine that does nothing else: about 7 minutes on two cores. Two servers and a
process with Transformers stand side by side, and each repeat measures all of them, every other one in reverse order, so
that a drift of the machine hits all alike. Figures are medians of the repeats; a ratio is the median of the repeats'
ratios.

A step's time is what `tokens` more tokens add to a request's latency, so it holds all of serving except HTTP and one
prefill. No stream is read meanwhile: that would take time from the server's cores. Transformers' steps are bare
forwards in a loop with a KV cache, without what its `generate` adds; its adapter is loaded by PEFT's defaults, and not
merged.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import psutil
from cpu_report import BYTES, POOL_TOKENS, QUICK, Sizes, report
from cpu_transformers import PROMPT, Child, cores
from rich.console import Console

from descant.agents.standin import standin_adapters
from descant.runtime.checkpoint import demo_checkpoint
from descant.runtime.errors import DescantError
from descant.runtime.server import Server

OPTIONS = ("--max-total-tokens", str(POOL_TOKENS), "--max-running-requests", "20")
SHORTS = 3  # requests whose median is taken as a short request's latency
# As the kernel names them in /proc/cpuinfo: x86's, then Arm's.
INSTRUCTIONS = ("avx", "avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "asimd", "sve", "bf16")


def step_seconds(short: Sequence[float], long: float, tokens: int) -> float:
    """A step's time, from the latency of requests for 1 token and of one for 1 + `tokens`."""
    return (long - statistics.median(short)) / tokens


class Served:
    """Requests to a server, greedy, past the end of text."""

    def __init__(self, server: Server, adapters: Sequence[str], sizes: Sizes, vocabulary: int) -> None:
        self.server = server
        self.adapters = adapters
        self.sizes = sizes
        self.random = random.Random(0)
        self.vocabulary = vocabulary
        # The server closes a connection that was idle for 5 s: never reuse one that old.
        self.http = httpx.Client(timeout=300, trust_env=False, limits=httpx.Limits(keepalive_expiry=2))

    def fresh(self, tokens: int) -> list[int]:
        """A random prompt, past the special tokens."""
        return self.random.choices(range(100, self.vocabulary), k=tokens)

    def ask(
        self, prompts: Sequence[Sequence[int]], adapters: Sequence[str] | None, tokens: int
    ) -> tuple[float, list[int]]:
        """Seconds until the last of `prompts`, sent together, has its `tokens`; how many of each were cached."""
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        body = {"input_ids": prompts, "lora_path": adapters, "sampling_params": sampling}
        start = time.perf_counter()
        response = self.http.post(f"{self.server.url}/generate", json=body)
        seconds = time.perf_counter() - start
        if response.status_code != 200:
            self.server.check()
            raise DescantError(f"The server answered {response.status_code}: {response.text[:200]}")
        meta = [answer["meta_info"] for answer in response.json()]
        assert all(it["completion_tokens"] == tokens for it in meta)
        return seconds, [it["cached_tokens"] for it in meta]

    def step(self, batch: int, paired: bool) -> float:
        """Seconds of a decode step of `batch` requests, with the adapters in turn, or all of the base model."""
        prompts = [self.fresh(PROMPT) for _ in range(batch)]
        adapters = list(islice(cycle(self.adapters), batch)) if paired else None
        self.ask(prompts, adapters, 1)  # from here on they are cached
        short = [self.ask(prompts, adapters, 1)[0] for _ in range(SHORTS)]
        long, cached = self.ask(prompts, adapters, 1 + self.sizes.decoded)
        assert min(cached) >= PROMPT - 1, cached
        return step_seconds(short, long, self.sizes.decoded)

    def prefill(self, tokens: int) -> float:
        """Seconds to the first token after a prompt of which nothing is cached."""
        seconds, cached = self.ask([self.fresh(tokens)], self.adapters[:1], 1)
        assert cached[0] <= 1, cached  # two random prompts may begin alike
        return seconds

    def suffix_alone(self) -> float:
        return statistics.median(self.prefill(self.sizes.suffix) for _ in range(SHORTS))

    def suffix_over_prefix(self) -> float:
        """Seconds to the first token after new tokens behind a prefix that another adapter's request has left."""
        prefix = self.fresh(self.sizes.prefix)
        self.ask([prefix], self.adapters[1:2], 1)
        times = []
        for _ in range(SHORTS):
            seconds, cached = self.ask([prefix + self.fresh(self.sizes.suffix)], self.adapters[:1], 1)
            assert len(prefix) <= cached[0] <= len(prefix) + 1, cached
            times.append(seconds)
        return statistics.median(times)

    def peak_bytes(self) -> int:
        """The most memory that the scheduler, which holds model and cache, ever had resident."""
        for process in psutil.Process(self.server.pid).children(recursive=True):
            if process.cmdline()[:1] and process.cmdline()[0].startswith("sglang::scheduler"):
                status = Path(f"/proc/{process.pid}/status").read_text()
                return int(status.split("VmHWM:")[1].split()[0]) * 1024
        raise DescantError("The server has no scheduler process.")


@contextmanager
def plain_operators() -> Iterator[None]:
    """A server started within takes torch's operators, as SGLang's layers do by themselves."""
    before = os.environ.get("DESCANT_CPU_OPERATORS")
    os.environ["DESCANT_CPU_OPERATORS"] = "plain"
    try:
        yield
    finally:
        del os.environ["DESCANT_CPU_OPERATORS"]
        if before is not None:
            os.environ["DESCANT_CPU_OPERATORS"] = before


def measurements(served: Served, plain: Served, child: Child, sizes: Sizes) -> dict[str, Callable[[], float]]:
    """What a repeat measures, in order; what is compared most closely stands side by side."""
    return {
        "stream": lambda: child("stream"),
        "step 1": lambda: served.step(1, paired=True),
        "base step 1": lambda: served.step(1, paired=False),
        "plain step 1": lambda: plain.step(1, paired=True),
        "Transformers bfloat16 step": lambda: child("step", "bfloat16", sizes.decoded),
        "Transformers float32 step": lambda: child("step", "float32", sizes.decoded),
        "step 16": lambda: served.step(16, paired=True),
        "base step 16": lambda: served.step(16, paired=False),
        "step 8": lambda: served.step(8, paired=True),
        "suffix alone": lambda: served.suffix_alone(),
        "suffix over prefix": lambda: served.suffix_over_prefix(),
        "prefill": lambda: served.prefill(sizes.prefilled),
        "Transformers bfloat16 prefill": lambda: child("prefill", "bfloat16", sizes.prefilled),
        "Transformers float32 prefill": lambda: child("prefill", "float32", sizes.prefilled),
    }


def warm_up(served: Served, plain: Served, child: Child) -> None:
    """What only a first request does: adapters are read into their pool, torch prepares its kernels."""
    for server in (served, plain):
        prompts = [server.fresh(PROMPT) for _ in server.adapters]
        for adapters in (server.adapters, None):
            server.ask(prompts, adapters, 4)
    served.prefill(served.sizes.suffix)
    for dtype in BYTES:
        child("step", dtype, 4)


def repeated(calls: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Every call's values; every other repeat in reverse order."""
    figures: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats):
        for name in calls if repeat % 2 == 0 else reversed(calls):
            figures[name].append(calls[name]())
            print(f"{repeat + 1}/{repeats} {name}: {figures[name][-1]:.4g}", file=sys.stderr, flush=True)
    return figures


def others_seconds() -> float:
    """Processor time, in seconds, that others took so far: other processes, and the host of a virtual machine."""
    now = psutil.cpu_times()
    own = [psutil.Process(), *psutil.Process().children(recursive=True)]
    ours = sum(it.user + it.system for it in (process.cpu_times() for process in own))
    return sum(now) - now.idle - now.iowait - now.guest - now.guest_nice - ours


def instructions() -> str:
    """The processor's vector instructions."""
    features = Path("/proc/cpuinfo").read_text().split()
    return " ".join(it for it in INSTRUCTIONS if it in features) or "unknown"


def pool_bytes(config: Mapping[str, Any], dtype: str) -> int:
    """Keys and values of every layer."""
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return 2 * POOL_TOKENS * config["num_hidden_layers"] * config["num_key_value_heads"] * head * BYTES[dtype]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All figures, and what they were measured on.

    Raises:
        DescantError: there is no model, or a server failed.
    """
    model = demo_checkpoint(Console(stderr=True))
    adapters = standin_adapters(model)
    config = json.loads((model / "config.json").read_text())
    sizes = QUICK if options.quick else Sizes()
    child = Child(model, adapters["plan"])  # loads while the servers start
    common = (*OPTIONS, "--dtype", options.dtype)
    with ExitStack() as stack:
        server = stack.enter_context(Server(model, adapters, options=common))
        with plain_operators():
            upstream = (*common, "--attention-backend", "torch_native")
            plain_server = stack.enter_context(Server(model, adapters, options=upstream))
        served, plain = (Served(it, list(adapters), sizes, config["vocab_size"]) for it in (server, plain_server))
        about = child.about
        warm_up(served, plain, child)
        start, others = time.monotonic(), others_seconds()
        figures = repeated(measurements(served, plain, child, sizes), options.repeats)
        others = (others_seconds() - others) / (time.monotonic() - start) / cores()
        peak = served.peak_bytes()
    return {
        "model": model.name,
        "dtype": options.dtype,
        "quick": options.quick,
        "sizes": asdict(sizes),
        "cores": cores(),
        "instructions": instructions(),
        "versions": {it: version(it) for it in ("torch", "sglang", "transformers", "peft")},
        **about,
        "weight bytes": about["parameters"] * BYTES[options.dtype],
        "pool bytes": pool_bytes(config, options.dtype),
        "peak bytes": peak,
        "others": others,
        "figures": figures,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the CPU path; needs what `make demo` installs.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", choices=BYTES, default="bfloat16", help="what is served")
    parser.add_argument("--quick", action="store_true", help="fewer tokens, to see that it runs")
    parser.add_argument("--json", type=Path, help="write all figures there too")
    options = parser.parse_args()
    try:
        result = run(options)
    except DescantError as error:
        print(error, file=sys.stderr)
        return 1
    print(report(result, options.repeats))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What this install would serve with, as one JSON object on stdout: `python -m descant.sglang_ext.report`."""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import version
from typing import Any

from descant._version import __version__


def report() -> dict[str, Any]:
    """Versions, device, backends, hooks and problems. A problem is something that keeps a server from starting."""
    from descant.sglang_ext.plugin import SGLANG_VERSION

    found: dict[str, Any] = {
        "descant": __version__,
        "python": platform.python_version(),
        "sglang": version("sglang"),
        "sglang_expected": SGLANG_VERSION,
        "torch": version("torch"),
        "device": None,
        "attention_backend": None,
        "lora_backend": None,
        "hooks": [],
        "problems": [],
    }
    try:
        _look(found)
    except (SystemExit, Exception) as error:
        found["problems"].append(str(error))
    return found


def _look(found: dict[str, Any]) -> None:
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.platforms import current_platform

    from descant.sglang_ext.platform import CpuPlatform
    from descant.sglang_ext.plugin import hooks_taken

    found["device"] = str(current_platform.device_name)
    if isinstance(current_platform, CpuPlatform):
        found["attention_backend"] = current_platform.get_default_attention_backend()
        found["lora_backend"] = "torch_native"
    else:
        found["attention_backend"], found["lora_backend"] = "chosen by SGLang for the model", "csgmv"
    for hook, took in hooks_taken():
        found["hooks"].append({"target": hook.target, "reason": hook.reason, "took": took})
        if not took:
            found["problems"].append(f"No hook on {hook.target}.")


if __name__ == "__main__":
    result = report()
    print(json.dumps(result))
    sys.exit(1 if result["problems"] else 0)

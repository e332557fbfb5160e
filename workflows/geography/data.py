"""Write the training data: `python -m descant.workflows.geography.data FOLDER` makes train.jsonl and dev.jsonl.

One JSON object a line, {"opening": [messages], "spans": [{"role": "plan" | "act" | "reflect" | null, "text": …}, …]}:
the opening is what the chat template renders, each span is tokenized by itself and appended, and the loss of a role
goes on its spans. The same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from descant.agents.tools.geonames import Geonames
from descant.runtime.errors import DescantError
from descant.workflows.geography.questions import SEED, Atlas
from descant.workflows.geography.trajectories import Generator

TRAIN, DEV = 4000, 200


def write(folder: Path, train: int = TRAIN, dev: int = DEV, seed: int = SEED) -> list[Path]:
    """Write the samples of the two splits that training reads, each file whole or not at all, and return the files.

    Raises:
        DescantError: they cannot be written.
    """
    generator = Generator(Atlas(Geonames()))
    files = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for split, count in (("train", train), ("dev", dev)):
            files.append(folder / f"{split}.jsonl")
            part = folder / f".{split}.jsonl"
            with part.open("w", encoding="utf-8") as file:
                for sample in generator.samples(split, count, seed):
                    file.write(json.dumps(sample, ensure_ascii=False) + "\n")
            part.replace(files[-1])
    except OSError as error:
        raise DescantError(f"{folder} cannot be written ({error.strerror}): name another folder.") from error
    return files


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m descant.workflows.geography.data", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=TRAIN, metavar="N", help="samples to train on (%(default)s)")
    parser.add_argument("--dev", type=int, default=DEV, metavar="N", help="samples to evaluate on (%(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="another seed, other samples (%(default)s)")
    options = parser.parse_args()
    for file in write(options.folder, options.train, options.dev, options.seed):
        print(file)


if __name__ == "__main__":
    try:
        main()
    except DescantError as error:
        sys.exit(str(error))

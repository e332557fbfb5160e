"""Write the training data: `python -m descant.workflows.geography.data FOLDER` makes train.jsonl and dev.jsonl.

One JSON object a line, {"opening": [messages], "spans": [{"role": "plan" | "act" | "reflect" | null, "text": …}, …]}:
the opening is what the chat template renders, each span is tokenized by itself and appended, and the loss of a role
goes on its spans. The same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from descant.agents.tools.geonames import Geonames
from descant.workflows.geography.questions import SEED, Atlas
from descant.workflows.geography.trajectories import Generator

TRAIN, DEV = 4000, 200


def write(folder: Path, train: int = TRAIN, dev: int = DEV, seed: int = SEED) -> list[Path]:
    """Write the samples of the two splits that training reads, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = Generator(Atlas(Geonames()))
    files = []
    for split, count in (("train", train), ("dev", dev)):
        files.append(folder / f"{split}.jsonl")
        with files[-1].open("w", encoding="utf-8") as file:
            for sample in generator.samples(split, count, seed):
                file.write(json.dumps(sample, ensure_ascii=False) + "\n")
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
    main()

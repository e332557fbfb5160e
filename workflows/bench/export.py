"""A load as a data set for `sglang.bench_serving`, so that figures can be checked with SGLang's own tool.

It knows no workflows. Every turn becomes a request of its own, with random ids where the real load has what the agents
generated, all first turns before all second ones, at whatever rate that tool is told. Lost are that a turn waits for
the one before it, and that the KV of generated tokens is read again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from descant.workflows.bench.files import write_new
from descant.workflows.bench.schedule import Workflow
from descant.workflows.bench.vocabulary import Vocabulary


def export(schedule: Sequence[Workflow], adapters: Sequence[str], vocabulary: Vocabulary, seed: int, path: Path) -> int:
    """Write the requests to `path`, one JSON object a line, and return how many there are.

    bench_serving's data set `openai` copies fields that it does not know into the request: with them its backend
    `sglang` sends the ids and the adapter in place of the message, which is there because the format wants one.

    Raises:
        DescantError: the file is there, or cannot be written.
    """
    requests = []
    for workflow in schedule:
        ids: list[int] = []
        for number, turn in enumerate(workflow.turns):
            ids += vocabulary.draw(turn.prefill, f"{seed} {workflow.number} {number}")
            request = {
                "messages": [{"role": "user", "content": "-"}],
                "max_tokens": turn.decode,
                "input_ids": list(ids),
                "lora_path": adapters[turn.agent],
            }
            requests.append((number, workflow.number, request))
            ids += vocabulary.draw(turn.decode, f"{seed} {workflow.number} {number} generated")
    requests.sort(key=lambda request: request[:2])
    write_new(path, "".join(json.dumps(request) + "\n" for _, _, request in requests))
    return len(requests)

"""The process of every side: it trains on request and measures its own time.

The first argument is the side as a JSON object. The process answers once it is compiled and warm. Then it answers each
line: {"run": n} with the time of n batches, {"operations": n} with the time of each of their operations, {"memory": n}
with the live bytes after them and {"held": n} with the bytes held between two operations; {} if these are not known. It
ends when its input ends.
"""

import dataclasses
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from benchmarks.harness.side_specs import Side
from fdg_jax.errors import BadInput


class Trainer(Protocol):
    """A trainer: trains on so many batches, all computed on return, and reports facts about itself."""

    def run(self, batches: int) -> dict[str, float]: ...

    def about(self) -> dict[str, Any]: ...


def serve(make: Callable[[Side], Trainer]) -> int:
    """The process of a side from start to end. Returns its exit code."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # so that a library's output is not taken for an answer

    def answer(what: dict) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    side = Side(**json.loads(sys.argv[1]))
    try:
        trainer = make(side)
    except BadInput as error:
        answer({"refused": str(error)})
        return 2
    trainer.run(2 * side.K + 2)  # compiles, and fills the pipeline
    description = dataclasses.asdict(side)
    del description["worker"], description["interpreter"]  # these only say how the process was started
    answer({"side": description.pop("name"), **description, **trainer.about()})
    for line in sys.stdin:
        [(what, batches)] = json.loads(line).items()
        answer(getattr(trainer, what, lambda batches: {})(batches))
    return 0


def clocked(train: Callable[[], float]) -> dict[str, float]:
    """The times of a window in this process. train() returns the last loss when everything is computed."""
    faults, busy, start = page_faults(), time.process_time(), time.perf_counter()
    loss = train()
    return {
        "seconds": time.perf_counter() - start,
        "busy_seconds": time.process_time() - busy,
        "page_faults": page_faults() - faults,
        "loss": loss,
    }


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

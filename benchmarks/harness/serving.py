"""The process of every side: it trains on request and measures its own time.

The first argument is the side as a JSON object; its `worker` is the class that trains. The process answers once it is
compiled and warm. Then it trains n batches for each line that it reads, and answers. {"run": n} asks for the time of
the batches, {"operations": n} for the time of each operation, {"memory": n} for the live bytes afterwards, and {"held":
n} for the bytes held between two operations. An answer is {} if the process cannot measure this. The process ends when
its input ends.
"""

import dataclasses
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from importlib import import_module

from benchmarks.harness.side_specs import Side
from fdg_jax.errors import BadInput

# Environment variables of each process of a side with several: its number from 0, and where number 0 listens.
RANK, COORDINATOR = "FDG_JAX_RANK", "FDG_JAX_COORDINATOR"


def serve(side: Side) -> int:
    """Makes the side's worker, which answers until the input ends. Returns the exit code.

    The worker has `run`, which trains on so many batches and returns when all is computed. It has `about`, the facts
    about itself, and a method for each other question that it can answer.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # so that a library's output is not taken for an answer

    def answer(what: dict) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    if RANK in os.environ:  # a core of its own, before any library makes its threads
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, [cores[int(os.environ[RANK]) % len(cores)]])
    try:
        module, _, name = side.worker.rpartition(".")
        kind = getattr(import_module(module), name)
        getattr(kind, "prepare", lambda: None)()
        trainer = kind(side)
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
    getattr(trainer, "leave", lambda: None)()
    return 0


def clocked(train: Callable[[], float]) -> dict[str, float]:
    """The times of a window in this process. train() returns the last loss when everything is computed."""
    faults, busy, start = page_faults(), time.process_time(), time.perf_counter()
    loss = train()
    seconds, busy_seconds = time.perf_counter() - start, time.process_time() - busy
    return {"seconds": seconds, "busy_seconds": busy_seconds, "page_faults": page_faults() - faults, "loss": loss}


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


if __name__ == "__main__":
    code = serve(Side(**json.loads(sys.argv[1])))
    sys.stderr.flush()
    os._exit(code)  # does not wait for other processes of the side, which may be gone

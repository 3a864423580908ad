"""Independent BP processes, one per core, all at once: the most that the machine itself allows.

Cores share caches and memory bandwidth, so two of them need not be twice as fast as one.
"""

import dataclasses
import math
import os
import sys
import time
from typing import Any

from benchmarks.harness.serving import serve
from benchmarks.harness.side_specs import Side
from benchmarks.harness.turns import Worker


class EachCore:
    """Trainers that train at the same time, each pinned to a core.

    A window ends when the last of them has answered.
    """

    def __init__(self, side: Side):
        cores = sorted(os.sched_getaffinity(0))
        alone = dataclasses.replace(
            side, cores=1, worker="benchmarks.harness.bench_worker", xla=""
        )  # it has them already
        self.workers = [Worker(alone, [core]) for core in cores]
        self.first_answers = [worker.answer() for worker in self.workers]

    def run(self, batches: int) -> dict[str, Any]:
        share, start = math.ceil(batches / len(self.workers)), time.perf_counter()
        for worker in self.workers:
            worker.tell({"run": share})
        answers = [worker.answer() for worker in self.workers]
        # All did as much, which may be more than was asked for.
        window: dict[str, Any] = {"seconds": time.perf_counter() - start, "batches": share * len(self.workers)}
        window["each_seconds"] = [each["seconds"] for each in answers]
        return window | {name: sum(each[name] for each in answers) for name in ("busy_seconds", "page_faults", "loss")}

    def about(self) -> dict[str, Any]:
        of_side = {"side", *(field.name for field in dataclasses.fields(Side))}
        return {name: value for name, value in self.first_answers[0].items() if name not in of_side}


if __name__ == "__main__":
    sys.exit(serve(EachCore))

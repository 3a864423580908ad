"""BP on every core of the side at once, in processes that know nothing of each other: what the machine itself allows.

Cores share caches and the way to memory, so two of them need not be twice as fast as one.
"""

import dataclasses
import os
import sys
from typing import Any

from benchmarks._serve import serve
from benchmarks._sides import Side
from benchmarks._turns import Worker


class EachCore:
    """Trainers, one pinned to each core; images/s is the sum of theirs."""

    def __init__(self, side: Side):
        cores = sorted(os.sched_getaffinity(0))
        alone = dataclasses.replace(side, cores=1, worker="benchmarks._worker")
        self.workers = [Worker(alone, [core]) for core in cores]
        self.told = [worker.answer() for worker in self.workers]

    def run(self, batches: int) -> dict[str, float]:
        n = len(self.workers)
        shares = [max(1, (batches + i) // n) for i in range(n)]
        for worker, share in zip(self.workers, shares, strict=True):
            worker.tell({"run": share})
        answers = [worker.answer() for worker in self.workers]
        speed = sum(share / each["seconds"] for share, each in zip(shares, answers, strict=True))
        sums = {name: sum(each[name] for each in answers) for name in ("busy_seconds", "page_faults")}
        return {"seconds": batches / speed, **sums, "loss": answers[-1]["loss"]}

    def about(self) -> dict[str, Any]:
        of_side = {"side", *(field.name for field in dataclasses.fields(Side))}
        return {name: value for name, value in self.told[0].items() if name not in of_side}


if __name__ == "__main__":
    sys.exit(serve(EachCore))

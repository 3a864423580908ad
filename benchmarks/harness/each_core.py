"""Independent processes of a side, all at once: on a CPU one per core, to find the limit of the machine itself.

Cores share caches and memory bandwidth, so two of them need not be twice as fast as one. On a GPU, the processes share
the device.
"""

import dataclasses
import math
import os
from typing import Any

from benchmarks.harness.ranks import Ranks
from benchmarks.harness.side_specs import Side
from benchmarks.harness.turns import Worker


class Trainer(Ranks):
    """Trainers that train at the same time. `batches` is the total. It is shared out evenly and rounded up."""

    def __init__(self, side: Side):
        cores = sorted(os.sched_getaffinity(0))
        shares = [cores] * side.copies if side.device == "gpu" else [[core] for core in cores]
        alone = dataclasses.replace(side, cores=len(shares[0]), copies=1, worker=Side.worker, xla="")
        # The other processes inherit the XLA flags from this process's environment.
        super().__init__([Worker(alone, share) for share in shares])

    def run(self, batches: int) -> dict[str, Any]:
        share, n = math.ceil(batches / len(self.children)), len(self.children)
        window, answers = self.window(share)
        return window | {"batches": share * n, "each_seconds": [each["seconds"] for each in answers]}

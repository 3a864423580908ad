"""How a cut divides a network's time on one core, as `benchmarks.split` measures it: a bound for separate stages."""

import json
import subprocess
import sys
from typing import Any

from benchmarks.harness import side_specs
from benchmarks.harness.side_specs import Side
from benchmarks.harness.turns import ROOT, WorkerDied
from fdg_jax.errors import BadInput
from fdg_jax.machine.cores import pinned

ROUNDS = 5  # of each block
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"  # as the training command has it on one core


def measured(model: str, batch_size: int, K: int, core: int) -> dict[str, Any]:
    """Measures every block of a network in a process of its own, pinned to a core.

    Returns: the row of benchmarks.split for the split `measured`; `cuts` and `block_seconds` are in it.
    """
    side = Side("bp", "bp", 1, 1, model, batch_size, xla=ONE_THREAD)
    words = ["--model", model, "--K", str(K), "--batch-size", str(batch_size), "--rounds", str(ROUNDS), "--json"]
    with pinned([core]):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.split", *words],
            cwd=ROOT,
            env=side_specs.environment(side),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if done.returncode == 2:
        raise BadInput(f"the blocks of {model} cannot be measured; what benchmarks.split said is above.")
    if done.returncode:
        raise WorkerDied(f"benchmarks.split ended with exit code {done.returncode}; what it said is above")
    return next(row for row in map(json.loads, done.stdout.splitlines()) if row["split"] == "measured")

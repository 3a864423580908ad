"""How a cut divides a network's time on one core, as `benchmarks.split` measures it: a bound for separate stages."""

import json
from typing import Any

from benchmarks.harness import children, side_specs
from benchmarks.harness.side_specs import Side

ROUNDS = 5  # of each block
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"  # as the training command has it on one core


def measured(model: str, batch_size: int, K: int, core: int) -> dict[str, Any]:
    """Measures every block of a network in a process of its own, pinned to a core. Raises as `children.run`.

    Returns: the row of benchmarks.split for the split `measured`; `cuts` and `block_seconds` are in it.
    """
    env = side_specs.environment(Side("bp", "bp", 1, 1, model, batch_size, xla=ONE_THREAD))
    words = ["--model", model, "--K", str(K), "--batch-size", str(batch_size), "--rounds", str(ROUNDS), "--json"]
    said = children.run("-m", "benchmarks.split", *words, env=env, cores=[core])
    return next(row for row in map(json.loads, said.splitlines()) if row["split"] == "measured")

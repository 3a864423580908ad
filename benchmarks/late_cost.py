"""The time of a training step with `fdg_jax.late` over that of the same step without it.

    taskset -c 1 .venv/bin/python -m benchmarks.late_cost

Plain JAX trains a whole network on one device in one program, with its own optimizer and with the late one (FDG). Both
take turns in one process, and the result is the median ratio over all turns.
"""

from typing import Any

import optax

from benchmarks.harness import report
from benchmarks.harness.plain import network, plain_step
from benchmarks.harness.turns import compared
from fdg_jax import late

# (network, examples of a batch; tokens, or pixels of a side): the commands' defaults, and smaller batches, as the
# cost of lateness does not depend on the batch.
CASES = [("transformer8x64", 32, 128), ("transformer8x64", 16, 64), ("resnet20", 128, 32), ("resnet20", 64, 32)]
K, STEPS = 8, 5  # stages; steps of a turn


def results(given: report.Given) -> list[dict[str, Any]]:
    return [measured(*case, given.windows) for case in CASES]


def measured(name: str, n: int, size: int, turns: int) -> dict[str, Any]:
    """The row of a network."""
    blocks, batch = network(name, n, size)
    chain = optax.adamw(1e-4)
    late_one = late.optimizer(chain, lambda path: int(path.split("/")[0]) * K // len(blocks) + 1, K=K)
    sides = {"plain": plain_step(blocks, batch, chain), "late": plain_step(blocks, batch, late_one)}
    about = {"benchmark": "late_cost", "model": name, "batch_size": n, "size": size, "K": K}
    return {**about, **compared(sides, turns, STEPS), "turns": turns, **report.here()}


def table(rows: report.Rows, given: report.Given) -> str:
    columns: dict[str, report.Cell] = {
        "network": "{model}", "batch": "{batch_size} x {size}",
        "plain step ms": "{plain_milliseconds:.2f}", "late step ms": "{late_milliseconds:.2f}",
        "ratio (middle half)": "{ratio:.3f} ({low:.3f} to {high:.3f})",
    }  # fmt: skip
    about = f"K = {K}, AdamW. Medians over {given.windows} turns of {STEPS} steps. {report.versions(rows[0])}."
    return f"{report.table(columns, rows)}\n\n{about}"


def parser() -> report.Parser:
    return report.parser("late_cost", __doc__, windows=40)


main = report.run(__name__, parser, results, table)

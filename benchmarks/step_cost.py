"""A step of `Pipeline` at K = 1, next to a plain donated `jax.jit` step of the same network.

    taskset -c 1 .venv/bin/python -m benchmarks.step_cost

The first network is so small (two dense layers, 32 rows) that nearly all of the time is the host's, and the host's is
what is measured. For the others it is the whole step, with the wait for the device. Both sides take turns in one
process, and the result is the median over all turns. On a busy machine only the ratio counts.
"""

from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax

import fdg_jax
from benchmarks.harness import report
from benchmarks.harness.plain import cross_entropy, network, plain_step
from benchmarks.harness.turns import compared

# (network, examples of a batch; numbers of a row, tokens, or pixels of a side; steps of a turn)
CASES = [
    ("MLP", 32, 32, 10), ("transformer3x64", 32, 128, 1), ("transformer8x64", 32, 128, 1), ("resnet20", 128, 32, 1)
]  # fmt: skip


class MLP(nn.Module):
    """Two dense layers: [32, 32] float32 -> [32, 10]."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(10)(nn.relu(nn.Dense(64)(x)))


def measured(name: str, n: int, size: int, steps: int, turns: int) -> dict[str, Any]:
    """The row of a network."""
    if name == "MLP":
        x = np.random.default_rng(0).normal(size=(n, size)).astype(np.float32)
        blocks, batch = [MLP()], (x, np.arange(n, dtype=np.int32) % 10)
    else:
        blocks, batch = network(name, n, size)
    optimizer = optax.sgd(0.1, momentum=0.9)
    cut = {"split": "even"} if len(blocks) > 1 else {}
    pipeline = fdg_jax.Pipeline(blocks, cross_entropy, optimizer, "bp", K=1, **cut).init(jax.random.key(0), batch)

    def stepped() -> Any:
        pipeline.step(batch)
        return pipeline.engine.stages[1].state  # type: ignore[attr-defined]

    sides = {"plain": plain_step(blocks, batch, optimizer), "pipeline": stepped}
    row = {"benchmark": "step_cost", "model": name, "batch_size": n, "size": size, "host_only": name == "MLP"}
    return {**row, **compared(sides, turns, steps, host_only=name == "MLP"), "turns": turns, **report.here()}


def results(given: report.Given) -> list[dict[str, Any]]:
    return [measured(*case, given.windows) for case in CASES if given.model in (None, case[0])]


def table(rows: report.Rows, given: report.Given) -> str:
    columns: dict[str, report.Cell] = {
        "network": "{model}", "batch": "{batch_size} x {size}",
        "plain step ms": "{plain_milliseconds:.3f}", "Pipeline.step ms": "{pipeline_milliseconds:.3f}",
        "ratio (middle half)": "{ratio:.3f} ({low:.3f} to {high:.3f})",
    }  # fmt: skip
    about = f"BP, K = 1. Medians over {given.windows} turns. MLP: the host's time. {report.versions(rows[0])}."
    return f"{report.table(columns, rows)}\n\n{about}"


def parser() -> report.Parser:
    made = report.parser("step_cost", __doc__, windows=40)
    made.add_argument("--model", choices=[name for name, *_ in CASES], help="this network alone")
    return made


main = report.run(__name__, parser, results, table)

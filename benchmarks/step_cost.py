"""Compares a step of `Pipeline` at K = 1, or of an optimizer by `fdg_jax.late`, with a plain donated `jax.jit` step.

    taskset -c 1 .venv/bin/python -m benchmarks.step_cost
    taskset -c 1 .venv/bin/python -m benchmarks.step_cost --late

The first network is so small (two dense layers, 32 rows) that nearly all of the time is the host's, so only the host's
time is measured. For the other networks the whole step is measured, with the wait for the device. With --late, both
sides are plain JAX, which trains a whole network on one device in one program. One side has a usual optimizer, the
other the same optimizer made late (FDG, K = 8). Both sides take turns in one process, and the result is the median over
all turns. On a busy machine only the ratio counts.
"""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax

import fdg_jax
from benchmarks.harness import report, turns
from benchmarks.harness.plain import Batch, cross_entropy, network, plain_step
from fdg_jax import late, split

# (network, examples of a batch; numbers of a row, tokens, or pixels of a side; steps of a turn)
CASES = [("MLP", 32, 32, 10), ("transformer3x64", 32, 128, 1), ("resnet20", 128, 32, 1)]
# The commands' defaults, and smaller batches, as the cost of lateness does not depend on the batch.
LATE_CASES = [
    ("transformer8x64", 32, 128, 5), ("transformer8x64", 16, 64, 5), ("resnet20", 128, 32, 5), ("resnet20", 64, 32, 5)
]  # fmt: skip
LATE_K = 8


class MLP(nn.Module):
    """Two dense layers: [32, 32] float32 -> [32, 10]."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(10)(nn.relu(nn.Dense(64)(x)))


def drawn(name: str, n: int, size: int) -> tuple[Sequence[nn.Module], Batch]:
    """A network and a batch."""
    if name != "MLP":
        return network(name, n, size)
    x = np.random.default_rng(0).normal(size=(n, size)).astype(np.float32)
    return [MLP()], (x, np.arange(n, dtype=np.int32) % 10)


def of_pipeline(blocks: Sequence[nn.Module], batch: Batch) -> tuple[Callable[[], Any], ...]:
    """The plain step and the step of `Pipeline`."""
    optimizer, cut = optax.sgd(0.1, momentum=0.9), "even" if len(blocks) > 1 else None
    made = fdg_jax.Pipeline(blocks, cross_entropy, optimizer, "bp", K=1, split=cut).init(jax.random.key(0), batch)

    def stepped() -> Any:
        made.step(batch)
        return made.engine.stages[1].state  # type: ignore[attr-defined]

    return plain_step(blocks, batch, optimizer), stepped


def of_late(blocks: Sequence[nn.Module], batch: Batch) -> tuple[Callable[[], Any], ...]:
    """The plain step with AdamW, and with late AdamW."""
    chain, n = optax.adamw(1e-4), len(blocks)
    stage_of = {split.block_name(i): i * LATE_K // n + 1 for i in range(n)}
    slow = late.optimizer(chain, lambda path: stage_of[path.split("/")[0]], K=LATE_K)
    return plain_step(blocks, batch, chain), plain_step(blocks, batch, slow)


def results(given: report.Given) -> list[dict[str, Any]]:
    rows = []
    for name, n, size, steps in LATE_CASES if given.late else CASES:
        sides = zip(("plain", "other"), (of_late if given.late else of_pipeline)(*drawn(name, n, size)), strict=True)
        about = {"model": name, "batch_size": n, "size": size, "late": given.late, "host_only": name == "MLP"}
        found = turns.compared(dict(sides), given.windows, steps, host_only=name == "MLP")
        rows.append({**about, **found, "turns": given.windows})
    return rows


def table(rows: report.Rows, given: report.Given) -> str:
    columns: dict[str, report.Cell] = {
        "network": "{model}", "batch": "{batch_size} x {size}", "plain step ms": "{plain_milliseconds:.3f}",
        "late step ms" if given.late else "Pipeline.step ms": "{other_milliseconds:.3f}",
        "ratio (middle half)": "{ratio:.3f} ({low:.3f} to {high:.3f})",
    }  # fmt: skip
    what = f"AdamW, K = {LATE_K}. " if given.late else "BP, K = 1. MLP: the host's time. "
    return report.table(columns, rows, f"{what}Medians over {given.windows} turns. {report.versions(rows[0])}.")


def parser() -> report.Parser:
    made = report.parser("step_cost", __doc__, windows=40)
    made.add_argument("--late", action="store_true", help="the step of fdg_jax.late instead of the one of Pipeline")
    return made


main = report.run(__name__, parser, results, table, report.here)

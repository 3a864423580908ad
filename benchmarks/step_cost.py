"""The host's cost of `Pipeline.step` at K = 1, next to a plain donated `jax.jit` step of the same network.

    .venv/bin/python -m benchmarks.step_cost

The network is so small (two dense layers, 32 rows) that nearly all of the time is the host's. Both sides take turns in
one process, ten steps each, and the result is the median over all turns. On a busy machine only the ratio counts.
"""

import statistics
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax

import fdg_jax
from benchmarks.harness import report
from benchmarks.harness.turns import in_one_process
from fdg_jax.machine import programs

STEPS = 10  # of a turn


class MLP(nn.Module):
    """Two dense layers: [32, 32] float32 -> [32, 10]."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(10)(nn.relu(nn.Dense(64)(x)))


def cross_entropy(outputs: Any, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()


def sides() -> dict[str, Callable[[], Any]]:
    """{name: makes one step and returns something that is ready when the step is}."""
    x = np.random.default_rng(0).normal(size=(32, 32)).astype(np.float32)
    y, module, optimizer = np.arange(32, dtype=np.int32) % 10, MLP(), optax.sgd(0.1, momentum=0.9)
    pipeline = fdg_jax.Pipeline([module], cross_entropy, optimizer, K=1).init(jax.random.key(0), (x, y))
    params = module.init(jax.random.key(0), x)["params"]
    state = [params, optimizer.init(params)]

    def plain_step(params, opt_state, x, y):
        grads = jax.grad(lambda params: cross_entropy(module.apply({"params": params}, x), y))(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    program = programs.jit(plain_step, donate_argnums=(0, 1))

    def plain() -> Any:
        state[:] = program(*state, x, y)
        return state

    def stepped() -> Any:
        pipeline.step((x, y))
        return pipeline.engine.stages[1].state  # type: ignore[attr-defined]

    return {"plain": plain, "pipeline": stepped}


def results(given: report.Given) -> list[dict[str, Any]]:
    taken = in_one_process(sides(), given.windows, STEPS, host_only=True)
    ratio = statistics.median(b / a for a, b in zip(taken["plain"], taken["pipeline"], strict=True))
    costs = {f"{name}_microseconds": round(1e6 * statistics.median(each), 1) for name, each in taken.items()}
    return [{"benchmark": "step_cost", **costs, "ratio": round(ratio, 2), "turns": given.windows, **report.here()}]


def table(rows: report.Rows, given: report.Given) -> str:
    columns: dict[str, report.Cell] = {
        "plain step µs": "{plain_microseconds:.0f}", "Pipeline.step µs": "{pipeline_microseconds:.0f}",
        "ratio": "{ratio:.1f}",
    }  # fmt: skip
    about = f"Medians over {given.windows} turns of {STEPS} steps. {report.versions(rows[0])}."
    return f"{report.table(columns, rows)}\n\n{about}"


def parser() -> report.Parser:
    return report.parser("step_cost", __doc__, windows=200)


main = report.run(__name__, parser, results, table)

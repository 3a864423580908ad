"""The time of a training step with `fdg_jax.late` over that of the same step without it.

    taskset -c 1 .venv/bin/python -m benchmarks.late_cost

Plain JAX trains a whole network on one device in one program, with its own optimizer and with the late one (FDG). Both
take turns in one process, and the result is the median ratio over all turns.
"""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.harness import report
from benchmarks.harness.turns import in_one_process
from fdg_jax import late, models
from fdg_jax.machine import programs
from fdg_jax.stages.functions import init_variables, make_apply, split_variables

# (network, examples of a batch; tokens, or pixels of a side): the commands' defaults, and smaller batches, as the
# cost of lateness does not depend on the batch.
CASES = [("transformer8x64", 32, 128), ("transformer8x64", 16, 64), ("resnet20", 128, 32), ("resnet20", 64, 32)]
K, STEPS = 8, 5  # stages; steps of a turn


def sides(name: str, n: int, size: int) -> dict[str, Callable[[], Any]]:
    """{name: makes one step and returns its state}."""
    tokens = models.takes(name) == "tokens"
    blocks = models.blocks(name, classes=256 if tokens else 10)
    x = jnp.zeros((n, size), jnp.int32) if tokens else jnp.ones((n, size, size, 3), jnp.float32)
    y = jnp.zeros((n, size) if tokens else (n,), jnp.int32)
    applied = [make_apply(block) for block in blocks]
    params, extras, given = {}, [], x
    for i, block in enumerate(blocks):
        params[str(i)], extra = split_variables(init_variables(block, jax.random.key(i), given))
        given, extra = applied[i](params[str(i)], extra, given, train=True)
        extras.append(extra)

    def loss(params, extras):
        z, after = x, []
        for i, apply in enumerate(applied):
            z, extra = apply(params[str(i)], extras[i], z, train=True)
            after.append(extra)
        return optax.softmax_cross_entropy_with_integer_labels(z, y).mean(), after

    def step(optimizer, params, extras, state):
        grads, extras = jax.grad(loss, has_aux=True)(params, extras)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), extras, state

    def side(optimizer) -> Callable[[], Any]:
        program = programs.jit(partial(step, optimizer), donate_argnums=(0, 1, 2))
        held = [jax.tree.map(jnp.copy, (params, extras, optimizer.init(params)))]

        def run() -> Any:
            held[0] = program(*held[0])
            return held[0]

        return run

    chain = optax.adamw(1e-4)
    stage_of = lambda path: int(path.split("/")[0]) * K // len(blocks) + 1  # noqa: E731
    return {"plain": side(chain), "late": side(late.optimizer(chain, stage_of, K=K))}


def results(given: report.Given) -> list[dict[str, Any]]:
    return [measured(*case, given.windows) for case in CASES]


def measured(name: str, n: int, size: int, turns: int) -> dict[str, Any]:
    """The row of a network."""
    taken = in_one_process(sides(name, n, size), turns, STEPS)
    ratios = sorted(b / a for a, b in zip(taken["plain"], taken["late"], strict=True))
    costs = {f"{side}_milliseconds": round(1e3 * statistics.median(each), 2) for side, each in taken.items()}
    quartiles = {"ratio": statistics.median(ratios), "low": ratios[turns // 4], "high": ratios[-1 - turns // 4]}
    costs |= {name: round(value, 3) for name, value in quartiles.items()}
    about = {"benchmark": "late_cost", "model": name, "batch_size": n, "size": size, "K": K}
    return {**about, **costs, "turns": turns, **report.here()}


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

"""The time of a network's blocks, and the gain of the layers' fast paths over the plain layers.

    taskset -c 1 .venv/bin/python -m benchmarks.block_cost --model resnet20
    taskset -c 1 .venv/bin/python -m benchmarks.block_cost --blocks
    taskset -c 1 .venv/bin/python -m benchmarks.block_cost --model transformer8x64 --batch-size 16

Forward and backward are separate programs, and the VJP closure is passed from one to the other, as in the engine. The
rows of a run take turns, and each reports its fastest round, because disturbances only add time. On a CPU the processor
time of this process is measured, which other processes on the core do not lengthen. Pin the process to one core.
Otherwise the time of idle threads is counted, too. In the table, "cured X" has the fast path of X and the plain form of
all other layers.

Other forms were tried on one core with JAX 0.10.2 and dropped:
  the input gradient of a stride-2 convolution as four phases: faster from 16 to 32 channels, slower from 64 to 128
  the same on JAX 0.12: slower
  the weight gradient as shifted dots: slower, except at 256 channels, where patches gain as much
  the weight gradient as the transpose of two pixels at once: half as fast at 16 channels
  the weight gradient as patches of two: slower; with dy's and x's parts exchanged: no difference
  batch norm's sums as one variadic reduce, or as a dot with ones: slower
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

if __name__ == "__main__":
    from fdg_jax.machine.huge_pages import restart_once

    restart_once()  # as in the training command, before the slow imports

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.harness import plain, report
from benchmarks.harness.forms import replaced
from fdg_jax import layers, models, split
from fdg_jax.layers import convolution, sequence
from fdg_jax.machine import facts, programs
from fdg_jax.stages.functions import Functions, functions
from fdg_jax.training.job import cross_entropy


class Row(NamedTuple):
    """The measurement of a row.

    step(): runs forward and backward once, and returns the seconds of each.
    closure_bytes: bytes kept between forward and backward.
    """

    step: Callable[[], tuple[float, float]]
    closure_bytes: int


def plain_batch_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`layers.batch_norm` as Flax's BatchNorm computes it, for plain differentiation."""
    mean = jnp.mean(x, (0, 1, 2))
    var = jnp.maximum(jnp.mean(jnp.square(x), (0, 1, 2)) - jnp.square(mean), 0.0)
    y = (x - mean) * (lax.rsqrt(var + layers.EPSILON) * scale) + bias
    return y, lax.stop_gradient(mean), lax.stop_gradient(var)


def plain_product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """`sequence.product` as Flax's Dense computes it."""
    return x @ kernel.astype(x.dtype)


PLAIN: dict[str, dict[str, Callable[..., Any]]] = {
    "images": {
        "batch_norm": plain_batch_norm, "forward_conv": convolution.plain_conv,
        "input_gradient": convolution.plain_input_gradient, "weight_gradient": convolution.plain_weight_gradient,
        "relu": jax.nn.relu,
    },
    "tokens": {"product": plain_product, "rotation": sequence.plain_rotation},
}  # fmt: skip
LENGTH = 64  # tokens of an example


def timed(made: Functions, module: nn.Module, x: jax.Array, labels: jax.Array | None) -> tuple[Row, jax.Array]:
    """A row, compiled, and the module's output for x."""
    clock = time.process_time if jax.devices()[0].platform == "cpu" else time.perf_counter
    variables = dict(module.lazy_init(jax.random.key(0), jax.ShapeDtypeStruct(x.shape, x.dtype), True))
    params, extra = variables.pop("params"), variables
    forward = programs.jit(made.forward)
    backward = programs.jit(lambda closure, params, x, dy: made.backward(closure, params, x, dy))
    messages, _, closure = forward(params, extra, x, labels)
    (y,) = messages.values()
    jax.block_until_ready(backward(closure, params, x, y))
    closure_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(closure))

    def step() -> tuple[float, float]:
        start = clock()
        _, _, closure = jax.block_until_ready(forward(params, extra, x, labels))
        middle = clock()
        jax.block_until_ready(backward(closure, params, x, y))
        return middle - start, clock() - middle

    return Row(step, closure_bytes), y


def drawn(model: str, batch_size: int) -> tuple[list[nn.Module], Any]:
    """The blocks of a model, and (random images or bytes, their labels) on the device."""
    blocks, batch = plain.network(model, batch_size, LENGTH if models.takes(model) == "tokens" else 32)
    return blocks, jax.device_put(batch)


def whole_network(model: str, batch_size: int) -> dict[str, Row]:
    """A step of the whole network for each choice of plain layers and fast paths."""
    rows, forms = {}, PLAIN[models.takes(model)]
    blocks, (x, labels) = drawn(model, batch_size)
    one_cured = {f"cured {name}": {n: form for n, form in forms.items() if n != name} for name in forms}
    for row, chosen in {"plain": forms, **one_cured, "all cured": {}}.items():
        module = split.Stage(tuple(blocks))
        with replaced(chosen):
            rows[row], _ = timed(functions(module, cross_entropy), module, x, labels)
    return rows


def each_block(model: str, batch_size: int) -> dict[str, Row]:
    """A step of every block by itself; equal blocks share one measurement."""
    rows, known = {}, {}
    blocks, (x, _) = drawn(model, batch_size)
    for number, block in enumerate(blocks):
        if (block, x.shape) not in known:
            known[block, x.shape] = timed(functions(block, None), block, x, None)
        rows[split.block_name(number)], x = known[block, x.shape]
    return rows


def measure(rows: dict[str, Row], rounds: int) -> dict[str, tuple[float, float]]:
    """The seconds (forward, backward) of each row's fastest round. Rows take turns."""
    best = {row: (float("inf"), float("inf")) for row in rows.values()}
    for _ in range(rounds):
        for row, (forward, backward) in best.items():
            new = row.step()
            best[row] = min(forward, new[0]), min(backward, new[1])
    return {name: best[row] for name, row in rows.items()}


def results(given: report.Given) -> list[dict[str, Any]]:
    """One JSON object per row, measured now."""
    rows = (each_block if given.blocks else whole_network)(given.model, given.batch_size)
    seconds = measure(rows, given.rounds)
    first, total = sum(next(iter(seconds.values()))), sum(map(sum, seconds.values()))
    about = {name: getattr(given, name) for name in ("model", "batch_size", "rounds")} | {"cores": facts.usable_cores()}
    unit = models.takes(given.model)
    units = given.batch_size * (LENGTH if unit == "tokens" else 1)
    made = []
    for row, (forward, backward) in seconds.items():
        both = forward + backward
        costs = {
            "forward_milliseconds": round(forward * 1e3, 2),
            "backward_milliseconds": round(backward * 1e3, 2),
            f"{unit}_per_second": round(units / both, 1),
            "closure_megabytes": round(rows[row].closure_bytes / 1e6, 1),
        }
        last = {"share_percent": 100 * both / total} if given.blocks else {"gain_percent": 100 * (first / both - 1)}
        made.append({**about, "row": row, **costs, **{name: round(each, 1) for name, each in last.items()}})
    return made


def table(rows: report.Rows, given: report.Given) -> str:
    one, unit = rows[0], models.takes(given.model)
    last = {"share": "{share_percent:.1f}%"} if given.blocks else {f"over {one['row']}": "{gain_percent:+.1f}%"}
    columns: dict[str, report.Cell] = {
        "block" if given.blocks else "layers": "{row}", "forward ms": "{forward_milliseconds:.2f}",
        "backward ms": "{backward_milliseconds:.2f}", f"{unit}/s": f"{{{unit}_per_second:.1f}}",
        "kept in between MB": "{closure_megabytes:.1f}", **last,
    }  # fmt: skip
    about = f"{given.model}, batch {given.batch_size}, the fastest of {given.rounds} rounds. Device {one['device']}; "
    return report.table(columns, rows, f"{about}{report.place(one, one['cores'])}, {report.versions(one)}.")


def parser() -> report.Parser:
    made = report.parser("block_cost", __doc__, model="resnet20", batch_size=128, rounds=10)
    made.add_argument("--blocks", action="store_true", help="one row per block instead of one row per choice of layers")
    return made


main = report.run(__name__, parser, results, table, report.here)

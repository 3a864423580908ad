"""What a network's blocks cost in time, and what the cured layers gain over the plain ones.

    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 taskset -c 1 python -m benchmarks.block_cost --model resnet20
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 taskset -c 1 python -m benchmarks.block_cost --blocks

Forward and backward are separate programs with the VJP closure crossing between them, as in the engine. All
rows of a run alternate, and each reports the least of its rounds: what disturbs a run only adds. On a CPU the
clock is the processor time of this process, which other processes on the core do not lengthen; pin it to one
core, or the time of idling threads is counted too.

Tried for `fdg_jax/models/layers.py` and dropped, milliseconds alone on JAX 0.10.2 (one core, batch 128 for 16 to
64 channels, 64 above): the input gradient of a stride-2 convolution as four phases (11.5 -> 5.5 for 16 -> 32
channels, but 28.4 -> 32.1 for 64 -> 128, slower on JAX 0.12, 1% of ResNet-20); the weight gradient as shifted
dots or patches (11 -> 30 or more at 16 channels; in cached chunks of 4 images 62 -> 52 at 128 channels, 2 to 3%
of a wide network, not worth a loop); batch norm's sums as one variadic reduce (0.4 -> 2.4) or a dot with ones
(0.4 -> 1.3); an optimization barrier after batch norm's dx (no difference).
"""

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax

from fdg_jax import models, split
from fdg_jax.models import layers
from fdg_jax.stage import Functions, functions


class Row(NamedTuple):
    """step(): runs forward and backward once, seconds of each. closure_bytes: what is kept in between."""

    step: Callable[[], tuple[float, float]]
    closure_bytes: int


def plain_batch_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`layers.batch_norm` as Flax's BatchNorm computes it, for plain differentiation."""
    mean = jnp.mean(x, (0, 1, 2))
    var = jnp.maximum(jnp.mean(jnp.square(x), (0, 1, 2)) - jnp.square(mean), 0.0)
    y = (x - mean) * (lax.rsqrt(var + layers.EPSILON) * scale) + bias
    return y, lax.stop_gradient(mean), lax.stop_gradient(var)


PLAIN = {"batch_norm": plain_batch_norm, "narrow_conv": layers.conv}


@contextlib.contextmanager
def plain(*names: str) -> Iterator[None]:
    """Within it (while tracing) the layers named use their plain forms."""
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(layers, name, PLAIN[name]))
        yield


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy of logits [b, classes] and labels [b]."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def timed(made: Functions, module: nn.Module, x: jax.Array, labels: jax.Array | None) -> tuple[Row, jax.Array]:
    """A row, compiled, and the module's output for x."""
    clock = time.process_time if jax.devices()[0].platform == "cpu" else time.perf_counter
    variables = dict(module.lazy_init(jax.random.key(0), jax.ShapeDtypeStruct(x.shape, x.dtype), True))
    params, extra = variables.pop("params"), variables
    forward = jax.jit(made.forward)
    backward = jax.jit(lambda closure, params, x, dy: made.backward(closure, params, x, dy))
    y, _, closure = forward(params, extra, x, labels)
    jax.block_until_ready(backward(closure, params, x, y))
    closure_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(closure))

    def step() -> tuple[float, float]:
        start = clock()
        _, _, closure = jax.block_until_ready(forward(params, extra, x, labels))
        middle = clock()
        jax.block_until_ready(backward(closure, params, x, y))
        return middle - start, clock() - middle

    return Row(step, closure_bytes), y


def whole_network(model: str, batch_size: int) -> dict[str, Row]:
    """A step of the whole network for each choice of plain and cured layers."""
    rows = {}
    x = jax.random.normal(jax.random.key(1), (batch_size, 32, 32, 3))
    labels = jnp.arange(batch_size) % 10
    for row, names in {
        "plain": ("batch_norm", "narrow_conv"),
        "cured batch_norm": ("narrow_conv",),
        "cured narrow_conv": ("batch_norm",),
        "cured both": (),
    }.items():
        module = split.Stage(tuple(models.blocks(model, 10)))
        with plain(*names):
            rows[row], _ = timed(functions(module, optax.sgd(0.1), cross_entropy), module, x, labels)
    return rows


def each_block(model: str, batch_size: int) -> dict[str, Row]:
    """A step of every block by itself; blocks that are alike share one measurement."""
    rows, known = {}, {}
    x = jax.random.normal(jax.random.key(1), (batch_size, 32, 32, 3))
    for number, block in enumerate(models.blocks(model, 10)):
        if (block, x.shape) not in known:
            known[block, x.shape] = timed(functions(block, optax.sgd(0.1), None), block, x, None)
        rows[split.block_name(number)], x = known[block, x.shape]
    return rows


def measure(rows: dict[str, Row], rounds: int) -> dict[str, tuple[float, float]]:
    """Least seconds (forward, backward) of each row over the rounds, rows alternating."""
    best = {row: (float("inf"), float("inf")) for row in rows.values()}
    for _ in range(rounds):
        for row, (forward, backward) in best.items():
            new = row.step()
            best[row] = min(forward, new[0]), min(backward, new[1])
    return {name: best[row] for name, row in rows.items()}


def main(arguments: list[str] | None = None) -> None:
    """Prints the table; with --json one JSON object a row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.block_cost", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--blocks", action="store_true", help="a row a block instead of a row a choice of layers")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)

    rows = (each_block if options.blocks else whole_network)(options.model, options.batch_size)
    seconds = measure(rows, options.rounds)
    first = sum(next(iter(seconds.values())))
    total = sum(map(sum, seconds.values()))
    for row, (forward, backward) in seconds.items():
        result = {
            "row": row,
            "forward_ms": round(forward * 1e3, 2),
            "backward_ms": round(backward * 1e3, 2),
            "images_per_second": round(options.batch_size / (forward + backward), 1),
            "closure_megabytes": round(rows[row].closure_bytes / 1e6, 1),
        }
        if options.blocks:
            result["share_percent"] = round(100 * (forward + backward) / total, 1)
        else:
            result["gain_percent"] = round(100 * (first / (forward + backward) - 1), 1)
        if options.json:
            about = {"model": options.model, "batch_size": options.batch_size, "rounds": options.rounds}
            print(json.dumps({**about, **result, "jax": jax.__version__, "cores": len(os.sched_getaffinity(0))}))
        else:
            print("  ".join(f"{name} {value}" if name != "row" else f"{value:18}" for name, value in result.items()))


if __name__ == "__main__":
    main()

"""Where XLA's operations on a CPU are slower than PyTorch's (oneDNN), layer by layer of a network.

    taskset -c 1 .venv/bin/python -m benchmarks.ops
    taskset -c 1 .venv/bin/python -m benchmarks.ops --model wrn28_10

The table has every convolution of the network with its real shapes (fdg_jax.layers), and every batch norm with its
rectifier. Each of these is a separate program: forward (F), gradient of the input (dx) and of the weights (dw), or for
a batch norm the whole backward pass (B). In the network XLA fuses elementwise work into its neighbours and PyTorch does
not; the sums do not include this.

Both libraries are in this process and take turns. Each number is the fastest of its rounds, because disturbances only
add time. The clock is the processor time of this process, which other processes do not lengthen; pin it to one core.
The oneDNN columns need PyTorch (requirements-peers.txt).
"""

# pyright: reportMissingImports=false

import importlib.util
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

if __name__ == "__main__":
    from fdg_jax.machine.huge_pages import restart_once

    restart_once()  # as in the training command, before the slow imports

import flax.linen as nn
import jax
import numpy as np

from benchmarks.harness import report
from fdg_jax import layers, models, split
from fdg_jax.machine import programs

Call = Callable[[], Any]


class Shape(NamedTuple):
    """The shape of a layer's call.

    The layer maps [size, size, taken] to [size / stride, size / stride, given]. kernel 0: a norm.
    """

    size: int
    taken: int
    given: int
    kernel: int = 0
    stride: int = 1
    groups: int = 1

    def __str__(self) -> str:
        if not self.kernel:
            return f"norm and relu, {self.size}x{self.size}, {self.taken}"
        stride, groups = f", stride {self.stride}" * (self.stride > 1), f", {self.groups} groups" * (self.groups > 1)
        return f"{self.kernel}x{self.kernel}, {self.size}x{self.size}, {self.taken} to {self.given}{stride}{groups}"

    def gigaflops(self, batch: int) -> float:
        """Gigaflops of a convolution; the same for F, dx and dw."""
        maps = batch * (self.size // self.stride) ** 2
        return 2e-9 * maps * self.kernel**2 * self.taken * self.given / self.groups


def shapes(model: str) -> Counter[Shape]:
    """The distinct layers of a network for images of 32x32, with the number of calls of each."""
    found = Counter[Shape]()

    def note(call, arguments, keywords, context):
        module = context.module
        if isinstance(module, layers.Conv):
            size, taken = arguments[0].shape[2:]
            found[Shape(size, taken, module.features, module.size, module.stride, module.groups)] += 1
        if isinstance(module, layers.BatchNorm):
            size, taken = arguments[0].shape[2:]
            found[Shape(size, taken, taken)] += 1
        return call(*arguments, **keywords)

    net = split.Stage(tuple(models.blocks(model, 10)))
    with nn.intercept_methods(note):
        jax.eval_shape(lambda x: net.init(jax.random.key(0), x, True), jax.ShapeDtypeStruct((2, 32, 32, 3), np.float32))
    return found


def numbers(shape: Shape, batch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x [b, h, w, taken], kernel [k, k, taken / groups, given] (of a norm scale and bias [2, taken]), dy; float32."""
    random = np.random.default_rng(0)
    kernel = (shape.kernel, shape.kernel, shape.taken // shape.groups, shape.given)
    small = shape.size // shape.stride
    wanted = (batch, shape.size, shape.size, shape.taken), kernel, (batch, small, small, shape.given)
    x, weights, dy = (random.standard_normal(dims, np.float32) for dims in wanted)
    if not shape.kernel:
        weights = np.stack([np.ones(shape.taken, np.float32), np.zeros(shape.taken, np.float32)])
    return x, weights, dy


def xla(shape: Shape, batch: int) -> dict[str, Call]:
    """Compiled calls of this layer as fdg_jax.layers computes it, by operation."""
    x, weights, dy = jax.device_put(numbers(shape, batch))
    conv = layers.Conv(shape.given, shape.kernel, shape.stride, shape.groups)

    def forward(x, weights):
        if shape.kernel:
            return conv.apply({"params": {"kernel": weights}}, x)
        return layers.relu(layers.batch_norm(x, *weights)[0])

    if not shape.kernel:
        kept = programs.jit(partial(jax.vjp, forward))
        backward = programs.jit(lambda closure, dy: closure(dy))
        return {"F": partial(kept, x, weights), "B": partial(backward, kept(x, weights)[1], dy)}

    def gradient(which: int, x, weights, dy):
        return jax.vjp(forward, x, weights)[1](dy)[which]

    dx, dw = (programs.jit(partial(gradient, which)) for which in (0, 1))
    gradients = {"dx": partial(dx, x, weights, dy), "dw": partial(dw, x, weights, dy)}
    return {"F": partial(programs.jit(forward), x, weights), **gradients}


def onednn(shape: Shape, batch: int) -> dict[str, Call]:
    """The same calls in PyTorch: channels last, one thread."""
    import torch
    import torch.nn.functional as F
    from torch.nn.grad import conv2d_input, conv2d_weight

    torch.set_num_threads(1)
    x, weights, dy = map(torch.from_numpy, numbers(shape, batch))
    x, dy = x.permute(0, 3, 1, 2), dy.permute(0, 3, 1, 2)  # channels last already
    if not shape.kernel:
        x.requires_grad_()
        scale, bias = (each.clone().requires_grad_() for each in weights)

        def forward():
            return F.relu(F.batch_norm(x, None, None, scale, bias, training=True), inplace=True)

        y = forward()
        return {"F": forward, "B": lambda: torch.autograd.grad(y, (x, scale, bias), dy, retain_graph=True)}
    kernel = weights.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    rest = {"stride": shape.stride, "padding": shape.kernel // 2, "groups": shape.groups}
    return {
        "F": lambda: F.conv2d(x, kernel, **rest),
        "dx": lambda: conv2d_input(x.shape, kernel, dy, **rest),
        "dw": lambda: conv2d_weight(x, kernel.shape, dy, **rest),
    }


def seconds(calls: Mapping[str, Call], rounds: int) -> dict[str, float]:
    """The least time of each call. They take turns, after a first call that compiles."""
    for call in calls.values():
        jax.block_until_ready(call())  # PyTorch's is ready on return
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.process_time()
            jax.block_until_ready(call())
            least[name] = min(least[name], time.process_time() - start)
    return least


def results(given: report.Given) -> list[dict[str, Any]]:
    """One row per layer and operation."""
    libraries = {"xla": xla, **({"onednn": onednn} if importlib.util.find_spec("torch") else {})}
    rows = []
    for shape, times in shapes(given.model).items():
        made = {name: make(shape, given.batch_size) for name, make in libraries.items()}
        for operation in made["xla"]:
            if shape.taken == 3 and operation == "dx":
                continue  # the gradient of the images, which is not needed
            took = seconds({name: calls[operation] for name, calls in made.items()}, given.rounds)
            about = {"benchmark": "ops", "model": given.model, "batch_size": given.batch_size, "layer": str(shape)}
            row = {**about, "times": times, "operation": operation, "gigaflops": shape.gigaflops(given.batch_size)}
            rows.append(row | {f"{name}_milliseconds": round(1e3 * s, 3) for name, s in took.items()})
            print(f"{shape}, {operation}: {took}", file=sys.stderr)
    return [row | {"jax": jax.__version__, **report.machine()} for row in rows]


def table(rows: report.Rows, given: report.Given) -> str:
    both = "onednn_milliseconds" in rows[0]
    libraries = {"xla": "XLA", **({"onednn": "oneDNN"} if both else {})}
    columns: dict[str, report.Cell] = {"layer": "{layer}", "times": "{times}", "operation": "{operation}"}
    for name, label in libraries.items():
        took = f"{name}_milliseconds"
        columns[f"{label} ms"] = f"{{{took}:.2f}}"
        columns[f"{label} GFLOP/s"] = lambda r, took=took: f"{1e3 * r['gigaflops'] / r[took]:.0f}".lstrip("0")
    if both:
        columns["XLA over oneDNN"] = lambda r: f"{r['xla_milliseconds'] / r['onednn_milliseconds']:.2f}"
        columns["lost ms a batch"] = lambda r: f"{r['times'] * (r['xla_milliseconds'] - r['onednn_milliseconds']):.1f}"
    sums = []
    for name, label in libraries.items():
        for what, conv in (("convolutions", True), ("batch norms and rectifiers", False)):
            took = sum(r["times"] * r[f"{name}_milliseconds"] for r in rows if bool(r["gigaflops"]) == conv)
            sums.append(f"{label} {took:.1f} ms of {what}")
    about = f"{given.model}, batch {given.batch_size}. Least of {given.rounds} rounds. "
    about += f"A batch, one by one: {', '.join(sums)}."
    about += f" {rows[0]['cpu']}, JAX {rows[0]['jax']}, commit {rows[0]['commit']}."
    if not both:
        about += " oneDNN is left out, as this interpreter has no PyTorch: requirements-peers.txt."
    return f"{report.table(columns, rows)}\n\n{about}"


def parser() -> report.Parser:
    return report.parser("ops", __doc__, model="resnet20", batch_size=128, rounds=10)


main = report.run(__name__, parser, results, table)

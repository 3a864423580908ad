"""Measures how far each model's results in float32 are from float64, and which reductions YNNPACK computes in them.

    .venv/bin/python -m benchmarks.accuracy
    .venv/bin/python -m benchmarks.accuracy --models resnet20:128:32 wrn28_10:40:32

XLA's CPU backend passes reductions and convolutions to the library YNNPACK, which in jaxlib 0.10.2 can compute rows
wrongly (fdg_jax.machine.programs). For each model, one batch goes through the network: forward and backward in training
mode, and forward in evaluation mode. There are three versions: float32 as JAX compiles it by default, float32 as a
stage compiles it, and float64. The float64 version has no YNNPACK, and its convolutions are sums of matrix products.
The difference of an array is its largest deviation from float64, divided by the largest number of the array in float64.
The table has the largest difference of all arrays. Rectifiers are replaced by tanh, because at a kink float32 and
float64 may take different sides.

The second table is about the reductions that YNNPACK computes in each program of a stage. It has their number, the
number of reductions that are fused with a matrix product (these can be wrong), and the largest number of values that a
fused reduction returns.
"""

import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from typing import Any, NamedTuple
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import forms, plain, report
from fdg_jax import models, split
from fdg_jax.checkpoint import state as states
from fdg_jax.layers import convolution
from fdg_jax.machine import compile_cache, programs
from fdg_jax.stages.functions import functions, init_variables, split_variables

# A batch of the first feature maps has more than 32,768 pixels, the size from which rows were wrong.
MODELS = ("resnet8:128:32", "resnet20:128:32", "resnet56:40:32", "resnet110:40:32", "wrn16_4:64:32", "wrn28_10:40:32",
          "resnet18:40:64", "resnet101:9:64", "mobilenet_v2:9:64", "resnet101_imagenet:4:224",
          "mobilenet_v2_imagenet:4:224")  # fmt: skip
CLASSES = 10
ROUNDING = 1e-12  # relative to the largest number: a smaller array is a zero with float64's rounding


class Wanted(NamedTuple):
    """A model, and the batch of images for it."""

    model: str
    batch: int
    size: int


def by_products(x: jax.Array, kernel: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    """`plain_conv` as a sum over the kernel's pixels: the part of x under each pixel, times the pixel's weights."""
    k, b, c = kernel.shape[0], x.shape[0], x.shape[3]
    height, width = (-(-size // stride) for size in x.shape[1:3])
    padded = jnp.pad(x, ((0, 0), (k // 2, k // 2), (k // 2, k // 2), (0, 0)))
    total = jnp.zeros((b, height, width, kernel.shape[3]), x.dtype)
    for i in range(k):
        for j in range(k):
            under = padded[:, i : i + stride * height : stride, j : j + stride * width : stride]
            grouped = under.reshape(b, height, width, groups, c // groups)
            weights = kernel[i, j].reshape(c // groups, groups, -1)
            total += jnp.einsum("bhwgc,cgf->bhwgf", grouped, weights).reshape(total.shape)
    return total


class Problem(NamedTuple):
    """A network as one stage, its variables and a batch, all in one floating-point dtype."""

    module: nn.Module
    params: Any
    extra: Any
    x: jax.Array
    labels: jax.Array
    dtype: Any = jnp.float32

    def in_dtype(self, dtype: Any) -> "Problem":
        def cast(leaf):
            return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

        params, extra, x = jax.tree.map(cast, (self.params, self.extra, self.x))
        return Problem(self.module, params, extra, x, self.labels, dtype)


def problem(of: Wanted) -> Problem:
    """Variables and images drawn from the seed 0, in float32."""
    (module,) = split.stages(models.blocks(of.model, CLASSES), ())
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(of.batch, of.size, of.size, 3)), jnp.float32)
    labels = jnp.asarray(random.integers(0, CLASSES, of.batch), jnp.int32)
    params, extra = split_variables(jax.jit(lambda key, x: init_variables(module, key, x))(jax.random.key(0), x))
    return Problem(module, params, extra, x, labels)


JITS: dict[str, Callable[..., Any]] = {"by default": jax.jit, "as a stage": programs.jit}
WITHOUT_YNNPACK = partial(jax.jit, compiler_options={programs.FLAG: ""})


def run(of: Problem, jit: Callable[..., Any]) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, dict[str, int]]]:
    """Compiles the network as one stage, with a loss in the problem's dtype, and runs the programs.

    Returns: (their results, {"forward": loss, "backward": gradients, "statistics": ..., "evaluation": outputs}, each as
        {path: array}; YNNPACK's reductions in each program, see `fusions`).
    """
    made, fused = functions(of.module, plain.cross_entropy, of.dtype), dict[str, dict[str, int]]()

    def call(name: str, function: Callable, *arguments: Any) -> Any:
        program = jit(function).lower(*arguments).compile()
        fused[name] = fusions(program.as_text() or "")
        return program(*arguments)

    messages, statistics, closure = call("forward", made.forward, of.params, of.extra, of.x, of.labels)
    backward = lambda closure, params, x: made.backward(closure, params, x, None)[0]  # noqa: E731
    found = {
        "forward": messages,
        "backward": call("backward", backward, closure, of.params, of.x),
        "statistics": statistics,
        "evaluation": call("evaluation", made.outputs, of.params, of.extra, of.x),
    }
    return {name: jax.device_get(states.flatten(tree)) for name, tree in found.items()}, fused


def worst(found: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> float:
    """The largest relative difference of all arrays: an array's largest difference divided by its largest number.

    If an array is nothing but rounding errors (such as the mean of a batch norm's centred values), the divisor is the
    largest number of all arrays.
    """
    sizes = {path: float(np.abs(value).max()) for path, value in right.items()}
    largest = max(*sizes.values(), np.finfo(np.float64).tiny)
    return max(float(np.abs(found[path] - value).max()) / (sizes[path] if sizes[path] > ROUNDING * largest else largest)
               for path, value in right.items())  # fmt: skip


def fusions(text: str) -> dict[str, int]:
    """The reductions that YNNPACK computes, read from the text of a compiled program.

    Returns: the number of reductions, the number of reductions that are fused with a product, and the largest number of
        values that a fused reduction returns.
    """
    bodies = dict(re.findall(r"^%([\w.\-]+) \([^\n]*\) -> [^\n]* \{\n(.*?)^\}", text, re.S | re.M))
    called = re.findall(r"calls=%([\w.\-]+)[^\n]*__ynn_fusion", text)
    reducing = [bodies[name] for name in called if re.search(r" reduce\(", bodies.get(name, ""))]
    shapes = [re.findall(r"\[([\d,]*)\]\S* reduce\(", body) for body in reducing if " dot(" in body]
    sizes = [max(math.prod(int(n) for n in shape.split(",") if n) for shape in each) for each in shapes]
    return {"reductions": len(reducing), "with_product": len(sizes), "most": max(sizes, default=0)}


def measured(of: Wanted) -> dict[str, Any]:
    """The table row of a model."""
    with forms.replaced({"relu": jnp.tanh, "relu6": jnp.tanh}):
        drawn = problem(of)
        # Convolutions as sums of products, as XLA's own take hours in float64.
        with mock.patch.object(convolution, "PLAIN", True), forms.replaced({"plain_conv": by_products}):
            right, _ = run(drawn.in_dtype(jnp.float64), WITHOUT_YNNPACK)
        found = {name: run(drawn, jit) for name, jit in JITS.items()}
    differences = {name: {part: worst(value, right[part]) for part, value in arrays.items()}
                   for name, (arrays, _) in found.items()}  # fmt: skip
    about = {"jax": jax.__version__, "jaxlib": metadata.version("jaxlib")}
    return {**of._asdict(), "differences": differences, "fusions": found["as a stage"][1], **about}


def table(rows: report.Rows, given: report.Given) -> str:
    differences = [{**r, "compiled": how, **parts} for r in rows for how, parts in r["differences"].items()]
    fused = [{**r, "program": name, **numbers} for r in rows for name, numbers in r["fusions"].items()]
    exactness = {
        "model": "`{model}`", "batch": "{batch} of {size}x{size}", "compiled": "{compiled}", "loss": "{forward:.1e}",
        "gradients": "{backward:.1e}", "statistics": "{statistics:.1e}", "evaluation": "{evaluation:.1e}",
    }  # fmt: skip
    counted = {
        "model": "`{model}`", "program": "{program}", "reductions by YNNPACK": "{reductions:,}",
        "together with a product": "{with_product:,}", "most numbers of these": "{most:,}",
    }  # fmt: skip
    about = f"{rows[0]['cpu']}, jaxlib {rows[0]['jaxlib']}, commit {rows[0]['commit']}."
    return "\n\n".join([report.table(exactness, differences), report.table(counted, fused), about])


def parser() -> report.Parser:
    made = report.parser("accuracy", __doc__)
    made.add_argument("--models", nargs="+", default=list(MODELS), metavar="MODEL:BATCH:SIZE", help="(default: all)")
    return made


def results(given: report.Given) -> Iterator[dict[str, Any]]:
    sizes = [report.sized("--models", text, MODELS[0]) for text in given.models]
    asked = [Wanted(model, *numbers) for model, numbers in sizes]
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    compile_cache.enable()
    for number, of in enumerate(asked, 1):
        report.say(f"{of.model} ({number} of {len(asked)}), batch {of.batch}, {of.size} x {of.size}")
        yield measured(of)


main = report.run(__name__, parser, results, table)

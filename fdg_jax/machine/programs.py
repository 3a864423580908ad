"""`jax.jit` for the programs of a stage: on a CPU it chooses what XLA may hand to its library YNNPACK.

XLA's CPU backend has YNNPACK compute reductions, convolutions and products of matrices. It is fast for most of them.
These are the two exceptions, chosen for each program by itself (`jax.jit(compiler_options=)`):

- No convolutions. For the gradient by the kernel YNNPACK takes two to ten times as long as XLA itself, and the cores
  of a pipeline idle more with it in forward passes (LOG.md, 2026-11-23).
- Not all reductions in jaxlib 0.10.2, which can be wrong (jax issue 39103): if a product of matrices that contracts
  three numbers is fused with the sum over its rows, every column from number 32,768 on is another one's (float64:
  16,384). 0.10.1 and 0.11.0 compute it correctly. YNNPACK is several times faster for the statistics of a batch norm,
  so it keeps the reductions of programs in which no product has a dimension that small.

Whoever sets the flag in XLA_FLAGS decides for all programs; then nothing is chosen here.
"""

import math
import os
from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

FLAG = "xla_cpu_experimental_ynn_fusion_type"
# By default the flag has these and INDIVIDUAL_CONVOLUTION, in jaxlib 0.10.2 to 0.12.0.1.
PRODUCTS, REDUCTIONS = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT", "LIBRARY_FUSION_TYPE_REDUCE"
WRONG_REDUCTIONS = ("0.10.2",)  # versions of jaxlib
SMALL = 4  # products are wrong that contract 3; in the backward pass another dimension may be contracted


def jit(function: Callable, platform: str, reductions: bool = True, **options: Any) -> Any:
    """`jax.jit(function, **options)` for devices of a platform ("cpu", "gpu", ...).

    reductions: whether YNNPACK may compute these on a CPU. They stay allowed all the same where this jaxlib computes
    them correctly. Such a program cannot be called while another one is traced.
    """
    return jax.jit(function, compiler_options=compiler_options(platform, reductions), **options)


def compiler_options(platform: str, reductions: bool = True) -> dict[str, str] | None:
    """What `jit` compiles with; None where that is what JAX does anyway."""
    if platform != "cpu" or FLAG in os.environ.get("XLA_FLAGS", "") or not flag_is_known():
        return None
    allowed = (PRODUCTS, REDUCTIONS) if reductions or not reductions_can_be_wrong() else (PRODUCTS,)
    return {FLAG: ",".join(allowed)}


def reductions_are_right(platform: str, function: Callable, *arguments: Any) -> bool:
    """Whether YNNPACK computes the reductions of a function, and those of its derivatives, correctly here.

    arguments: arrays or their shapes (jax.ShapeDtypeStruct), with which the function is traced where that is needed.
    """
    return platform != "cpu" or not reductions_can_be_wrong() or not has_small_products(function, *arguments)


@cache
def reductions_can_be_wrong() -> bool:
    """Whether this jaxlib is one in which YNNPACK's reductions can be wrong."""
    return metadata.version("jaxlib") in WRONG_REDUCTIONS


@cache
def flag_is_known() -> bool:
    """Whether XLA knows the flag and its values. It is experimental, so that may change."""
    try:
        jax.jit(lambda x: x, compiler_options={FLAG: f"{PRODUCTS},{REDUCTIONS}"}).lower(0.0).compile()
    except Exception:  # JAX raises several kinds
        return False
    return True


def has_small_products(function: Callable, *arguments: Any) -> bool:
    """Whether a function multiplies matrices of which one dimension is smaller than 4, or sums as few numbers, which
    XLA may turn into such a product. It is traced, not run.

    arguments: arrays or their shapes (jax.ShapeDtypeStruct).
    """
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    return any(size < SMALL for equation in equations(jaxpr) for size in product_dimensions(equation))


def product_dimensions(equation: Any) -> Iterator[int]:
    """The dimensions of both factors of a product, without those that count products; how many numbers a sum adds."""
    if equation.primitive.name == "dot_general":
        _, batch = equation.params["dimension_numbers"]
        for factor, counted in zip(equation.invars, batch, strict=True):
            yield from (size for axis, size in enumerate(factor.aval.shape) if axis not in counted)
    if equation.primitive.name == "reduce_sum":
        yield math.prod(equation.invars[0].aval.shape[axis] for axis in equation.params["axes"])


def equations(jaxpr: Jaxpr) -> Iterator[Any]:
    """All equations of a jaxpr, those of the functions it calls included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else [value]:
                if isinstance(inner, ClosedJaxpr):
                    yield from equations(inner.jaxpr)
                elif isinstance(inner, Jaxpr):
                    yield from equations(inner)

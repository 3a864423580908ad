"""`jax.jit` for the programs of a stage: on a CPU it chooses which operations XLA may give to its library YNNPACK.

By default YNNPACK computes the reductions, convolutions and matrix products of XLA's CPU backend. For most of them it
is fast. There are two exceptions, chosen for each program separately (`jax.jit(compiler_options=)`):

- No convolutions. For the gradient of the kernel YNNPACK takes two to ten times as long as XLA itself, and in forward
  passes the cores of a pipeline idle more with it (docs/log.md, 2026-11-23).
- Not all reductions in jaxlib 0.10.2, where they can be wrong (jax issue 39103): if a matrix product that contracts a
  dimension of 3 is fused with the sum over its rows, every column from number 32,768 on has another column's values
  (float64: from 16,384). 0.10.1 and 0.11.0 are correct. For batch-norm statistics YNNPACK is several times faster, so
  it keeps the reductions of programs in which no product has such a small dimension.

If the flag is set in XLA_FLAGS, that holds for all programs, and nothing is chosen here.
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
SMALL = 4  # products that contract 3 are wrong; the backward pass contracts other dimensions than the forward pass


def jit(function: Callable, platform: str, reductions: bool = True, **options: Any) -> Any:
    """Jits a function. The program cannot be called while another one is traced.

    Arguments:
        function: what to compile.
        platform: of the devices, "cpu", "gpu", ...
        reductions: whether YNNPACK may compute reductions on a CPU. If this jaxlib computes them correctly, they are
            allowed in any case.
        options: further arguments of `jax.jit`.
    """
    return jax.jit(function, compiler_options=compiler_options(platform, reductions), **options)


def compiler_options(platform: str, reductions: bool = True) -> dict[str, str] | None:
    """The compiler options of `jit`; None for JAX's defaults."""
    if platform != "cpu" or FLAG in os.environ.get("XLA_FLAGS", "") or not flag_is_known():
        return None
    allowed = (PRODUCTS, REDUCTIONS) if reductions or not reductions_can_be_wrong() else (PRODUCTS,)
    return {FLAG: ",".join(allowed)}


def reductions_are_right(platform: str, function: Callable, *arguments: Any) -> bool:
    """Whether YNNPACK computes the reductions of a function and of its derivatives correctly here.

    Arguments:
        platform: of the devices, "cpu", "gpu", ...
        function: it is traced if necessary, not run.
        arguments: its arguments, arrays or jax.ShapeDtypeStructs.
    """
    return platform != "cpu" or not reductions_can_be_wrong() or not has_small_products(function, *arguments)


@cache
def reductions_can_be_wrong() -> bool:
    """Whether YNNPACK's reductions can be wrong in this version of jaxlib."""
    return metadata.version("jaxlib") in WRONG_REDUCTIONS


@cache
def flag_is_known() -> bool:
    """Whether XLA has the flag and its values. It is experimental, so this may change."""
    try:
        jax.jit(lambda x: x, compiler_options={FLAG: f"{PRODUCTS},{REDUCTIONS}"}).lower(0.0).compile()
    except Exception:  # JAX raises several kinds
        return False
    return True


def has_small_products(function: Callable, *arguments: Any) -> bool:
    """Whether a function has matrix products with a dimension below 4, or sums of fewer than 4 numbers.

    XLA may turn such a sum into such a product. The function is traced, not run.

    Arguments:
        function: what to look at.
        arguments: its arguments, arrays or jax.ShapeDtypeStructs.
    """
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    return any(size < SMALL for equation in equations(jaxpr) for size in product_dimensions(equation))


def product_dimensions(equation: Any) -> Iterator[int]:
    """The dimensions of a product's factors, without batch dimensions; of a sum, how many numbers it adds."""
    if equation.primitive.name == "dot_general":
        _, batch = equation.params["dimension_numbers"]
        for factor, counted in zip(equation.invars, batch, strict=True):
            yield from (size for axis, size in enumerate(factor.aval.shape) if axis not in counted)
    if equation.primitive.name == "reduce_sum":
        yield math.prod(equation.invars[0].aval.shape[axis] for axis in equation.params["axes"])


def equations(jaxpr: Jaxpr) -> Iterator[Any]:
    """All equations of a jaxpr, with those of inner jaxprs."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else [value]:
                if isinstance(inner, ClosedJaxpr):
                    yield from equations(inner.jaxpr)
                elif isinstance(inner, Jaxpr):
                    yield from equations(inner)

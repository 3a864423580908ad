"""`jax.jit` for all programs of this library: it chooses which operations XLA's CPU backend may give to YNNPACK.

By default the library YNNPACK computes the reductions, convolutions and matrix products of programs on a CPU. It is
fast for most of them. There are two exceptions, chosen for each program separately (`jax.jit(compiler_options=)`):

- No convolutions. For the gradient of the kernel, YNNPACK takes two to ten times as long as XLA itself. In forward
  passes, the cores of a pipeline are idle for longer with YNNPACK (docs/log.md, 2026-11-23).
- Not all reductions in jaxlib 0.10.2, where they can be wrong (jax issue 39103). If sums of a few products (a matrix
  product, or a sum over an axis) are fused with a reduction of these sums, some columns of the result have other
  columns' values. These are columns from number 16,384 on in float64, and from 32,768 on in float32. jaxlib 0.10.1 and
  0.11.0 are correct. YNNPACK is several times faster for batch-norm statistics, so programs without such sums use its
  reductions.

On a GPU the option changes nothing. If XLA_FLAGS has the flag, it holds for all programs, and this module chooses
nothing. An operation outside of any jitted program is a program of one operation, so nothing is fused with it.
"""

import math
import os
from collections.abc import Callable, Iterator
from functools import cache, wraps
from importlib import metadata
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from fdg_jax.machine.jax_internals import is_tracing

FLAG = "xla_cpu_experimental_ynn_fusion_type"
# The flag's default in jaxlib 0.10.2 to 0.12.0.1 is these two and INDIVIDUAL_CONVOLUTION.
PRODUCTS, REDUCTIONS = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT", "LIBRARY_FUSION_TYPE_REDUCE"
WRONG_REDUCTIONS = ("0.10.2",)  # versions of jaxlib
# Wrong results were seen for matrix products that contract 3 numbers, in float64 also 5 to 7, and for sums of 3
# products, always with 16,384 columns or more.
FEW_PRODUCTS, FEW_SUMMED, MANY = 8, 4, 2**14
# Primitive -> the axes of its first argument that it sums over.
SUMMED_AXES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "dot_general": lambda params: params["dimension_numbers"][0][0],
    "reduce_sum": lambda params: params["axes"],
    "reduce": lambda params: params["dimensions"],
    "cumsum": lambda params: [params["axis"]],
}


def jit(function: Callable, **options: Any) -> Any:
    """Jits a function of positional arguments. If it is called while another function is traced, it becomes a part of
    that function.

    If reductions can be wrong in this jaxlib, each trace of the function is inspected. For arguments that lead to short
    sums, the function is compiled without YNNPACK's reductions. A call costs the host a fraction of a microsecond more
    than with `jax.jit`.

    Arguments:
        function: what to compile.
        options: further arguments of `jax.jit`.

    Returns: the function, with the methods eval_shape, lower and trace as from `jax.jit`.
    """
    if not chosen_here():
        return jax.jit(function, **options)

    @wraps(function)
    def look(*arguments):
        jaxpr, results = jax.make_jaxpr(function, return_shape=True)(*arguments)
        if any(map(is_short_sum, equations(jaxpr.jaxpr))):
            raise ShortSums
        return jax.tree.unflatten(jax.tree.structure(results), jaxpr_as_fun(jaxpr)(*jax.tree.leaves(arguments)))

    looking = look if reductions_can_be_wrong() else function
    fast = jax.jit(looking, compiler_options={FLAG: f"{PRODUCTS},{REDUCTIONS}"}, **options)
    exact = jax.jit(function, compiler_options={FLAG: PRODUCTS}, **options)
    short = set()  # the types of arguments that lead to short sums

    def call(*arguments):
        if is_tracing():  # JAX refuses compiler options inside a trace
            return function(*arguments)
        if short and types_of(arguments) in short:
            return exact(*arguments)
        try:
            return fast(*arguments)
        except ShortSums:
            short.add(types_of(arguments))
        return exact(*arguments)

    def either(name: str) -> Callable:
        def method(*arguments):
            try:
                return getattr(fast, name)(*arguments)
            except ShortSums:
                return getattr(exact, name)(*arguments)

        return method

    vars(call).update({name: either(name) for name in ("eval_shape", "lower", "trace", "_cache_size")})
    return call


class ShortSums(Exception):
    """The function that is being traced has short sums."""


def types_of(arguments: Any) -> Any:
    """The key of a compiled program: the structure of arguments, and the shapes and dtypes of their arrays."""
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple(map(jax.typeof, leaves))


@cache
def reductions_can_be_wrong() -> bool:
    """Whether YNNPACK's reductions can be wrong in this version of jaxlib."""
    return metadata.version("jaxlib") in WRONG_REDUCTIONS


def chosen_here() -> bool:
    """Whether this module chooses a program's options: if XLA knows the flag, and the user's XLA_FLAGS do not have
    it."""
    return FLAG not in os.environ.get("XLA_FLAGS", "") and flag_is_known()


@cache
def flag_is_known() -> bool:
    """Whether XLA has the flag and its values. The flag is experimental, so both may change."""
    try:
        jax.jit(lambda x: x, compiler_options={FLAG: f"{PRODUCTS},{REDUCTIONS}"}).lower(0.0).compile()
    except Exception:  # JAX raises several kinds
        return False
    return True


def is_short_sum(equation: Any) -> bool:
    """Whether an equation gives many sums of few numbers each."""
    name, params = equation.primitive.name, equation.params
    if name in ("reduce_window", "reduce_window_sum"):
        terms = math.prod(params["window_dimensions"])
    elif name in SUMMED_AXES:
        terms = math.prod(equation.invars[0].aval.shape[axis] for axis in SUMMED_AXES[name](params))
    else:
        return False
    few = FEW_PRODUCTS if name == "dot_general" else FEW_SUMMED
    return 1 < terms < few and equation.outvars[0].aval.size >= MANY


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

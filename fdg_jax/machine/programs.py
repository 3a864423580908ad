"""`jax.jit` for all programs of this library: it chooses which operations XLA's CPU backend may give to YNNPACK.

By default the library YNNPACK computes the reductions, convolutions and matrix products of programs on a CPU. For most
of them it is fast. There are two exceptions, chosen for each program separately (`jax.jit(compiler_options=)`):

- No convolutions. For the gradient of the kernel YNNPACK takes two to ten times as long as XLA itself, and in forward
  passes the cores of a pipeline idle more with it (docs/log.md, 2026-11-23).
- Not all reductions in jaxlib 0.10.2, where they can be wrong (jax issue 39103): if sums of a few products (a matrix
  product, or a sum over an axis) are fused with a reduction of these sums, columns of the result have other columns'
  values: those from number 16,384 on in float64, from 32,768 on in float32. 0.10.1 and 0.11.0 are correct. For
  batch-norm statistics YNNPACK is several times faster, so it keeps the reductions of programs without such sums.

On a GPU the option changes nothing. If the flag is set in XLA_FLAGS, that holds for all programs, and nothing is chosen
here. An operation that is run outside of any program is one by itself, so nothing can be fused with it.
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
# By default the flag has these and INDIVIDUAL_CONVOLUTION, in jaxlib 0.10.2 to 0.12.0.1.
PRODUCTS, REDUCTIONS = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT", "LIBRARY_FUSION_TYPE_REDUCE"
WRONG_REDUCTIONS = ("0.10.2",)  # versions of jaxlib
# Wrong were matrix products that contract 3 numbers, in float64 also 5 to 7, and sums of 3 products, never with fewer
# columns than 16,384.
FEW_PRODUCTS, FEW_SUMMED, MANY = 8, 4, 2**14
# The axes of its first argument over which a primitive sums.
SUMMED_AXES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "dot_general": lambda params: params["dimension_numbers"][0][0],
    "reduce_sum": lambda params: params["axes"],
    "reduce": lambda params: params["dimensions"],
    "cumsum": lambda params: [params["axis"]],
}


def jit(function: Callable, **options: Any) -> Any:
    """Jits a function of positional arguments. Called while another function is traced, it becomes a part of that.

    Where reductions can be wrong, the function is looked at whenever JAX traces it: for arguments that lead to short
    sums it is compiled without YNNPACK's reductions. A call costs the host a fraction of a microsecond more than one of
    `jax.jit`.

    Arguments:
        function: what to compile.
        options: further arguments of `jax.jit`.

    Returns: a function that can do what one of `jax.jit` can: eval_shape, lower, trace.
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
        if is_tracing():  # JAX refuses compiler options there
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
    """A function that is being traced has short sums."""


def types_of(arguments: Any) -> Any:
    """What JAX compiles for: the structure of arguments, and the shapes and dtypes of their arrays."""
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple(map(jax.typeof, leaves))


@cache
def reductions_can_be_wrong() -> bool:
    """Whether YNNPACK's reductions can be wrong in this version of jaxlib."""
    return metadata.version("jaxlib") in WRONG_REDUCTIONS


def chosen_here() -> bool:
    """Whether a program's options are chosen here: the user's XLA_FLAGS do not have the flag, and XLA knows it."""
    return FLAG not in os.environ.get("XLA_FLAGS", "") and flag_is_known()


@cache
def flag_is_known() -> bool:
    """Whether XLA has the flag and its values. It is experimental, so this may change."""
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

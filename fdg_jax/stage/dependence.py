"""Finds out which arguments each result of a function depends on, from its trace; nothing is computed."""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any

import jax

# Calls whose body takes the call's arguments and returns its results, one by one. For everything else (loops,
# branches), each result counts as depending on all arguments.
CALLS = {"jit", "pjit", "closed_call", "checkpoint", "remat", "remat2", "custom_jvp_call", "custom_vjp_call"}


def dependences(run: Callable, *arguments: Any) -> list[set[int]]:
    """Finds the dependences of a function's results.

    Arguments:
        run: the function.
        arguments: its arguments, arrays or shapes.

    Returns: for each leaf of run(*arguments), the numbers of the leaves of the arguments that it depends on. There may
    be too many of them (each result of a loop counts as depending on all arguments of the loop), but never too few.
    """
    return of_jaxpr(jax.make_jaxpr(lambda *arguments: jax.tree.leaves(run(*arguments)))(*arguments).jaxpr)


def of_jaxpr(jaxpr: Any) -> list[set[int]]:
    """The same of a function that has been traced."""
    inputs = [1 << number for number in range(len(jaxpr.invars))]  # sets as bits: there are thousands
    found = _followed(jaxpr, inputs)
    return [{number for number in range(bits.bit_length()) if bits >> number & 1} for bits in found]


def _followed(jaxpr: Any, inputs: Sequence[int]) -> list[int]:
    """The dependences of a jaxpr's results, as sets of bits."""
    known = dict(zip(jaxpr.invars, inputs, strict=True))

    def of(atom: Any) -> int:
        return 0 if hasattr(atom, "val") else known.get(atom, 0)  # a literal, a constant

    for equation in jaxpr.eqns:
        taken, body = [of(atom) for atom in equation.invars], _body(equation)
        given = [reduce(or_, taken, 0)] * len(equation.outvars) if body is None else _followed(body, taken)
        known.update(zip(equation.outvars, given, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _body(equation: Any) -> Any:
    """The body of a call, or None if the equation is not a call whose arguments and results are those of its body."""
    if equation.primitive.name not in CALLS:
        return None
    inside = [getattr(value, "jaxpr", value) for value in equation.params.values()]  # closed or not
    bodies = [jaxpr for jaxpr in inside if hasattr(jaxpr, "eqns") and hasattr(jaxpr, "invars")]
    if len(bodies) != 1 or len(bodies[0].invars) != len(equation.invars):
        return None
    return bodies[0] if len(bodies[0].outvars) == len(equation.outvars) else None

"""Which of a function's arguments each of its results depends on, read off its trace; nothing is computed."""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any

import jax

# Calls whose body takes the call's arguments and gives its results, one by one. Of everything else (loops, branches)
# each result counts as depending on all arguments.
CALLS = {"jit", "pjit", "closed_call", "checkpoint", "remat", "remat2", "custom_jvp_call", "custom_vjp_call"}


def dependences(run: Callable, *arguments: Any) -> list[set[int]]:
    """For each leaf of run(*arguments) the numbers of the leaves of the arguments that it depends on.

    May name more than there are, where a result of a loop depends on some of its arguments only; never fewer.
    """
    traced = jax.make_jaxpr(lambda *arguments: jax.tree.leaves(run(*arguments)))(*arguments)
    inputs = [1 << number for number in range(len(traced.jaxpr.invars))]  # sets as bits: there are thousands
    found = _followed(traced.jaxpr, inputs)
    return [{number for number in range(bits.bit_length()) if bits >> number & 1} for bits in found]


def _followed(jaxpr: Any, inputs: Sequence[int]) -> list[int]:
    known = dict(zip(jaxpr.invars, inputs, strict=True))

    def of(atom: Any) -> int:
        return 0 if hasattr(atom, "val") else known.get(atom, 0)  # a literal, a constant

    for equation in jaxpr.eqns:
        taken, body = [of(atom) for atom in equation.invars], _body(equation)
        given = [reduce(or_, taken, 0)] * len(equation.outvars) if body is None else _followed(body, taken)
        known.update(zip(equation.outvars, given, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _body(equation: Any) -> Any:
    """The program that a call runs, or None where it is no call whose arguments and results are its body's."""
    if equation.primitive.name not in CALLS:
        return None
    inside = [getattr(value, "jaxpr", value) for value in equation.params.values()]  # closed or not
    bodies = [jaxpr for jaxpr in inside if hasattr(jaxpr, "eqns") and hasattr(jaxpr, "invars")]
    if len(bodies) != 1 or len(bodies[0].invars) != len(equation.invars):
        return None
    return bodies[0] if len(bodies[0].outvars) == len(equation.outvars) else None

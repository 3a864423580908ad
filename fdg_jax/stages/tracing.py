"""Traces a user's modules, without computing anything, to find what a module needs and keeps, and what its results
depend on. Errors in the user's code become one sentence: the fact, the part that raised, the way out.
"""

import re
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import flax.errors
import flax.linen as nn
import jax
from flax.core import unfreeze

from fdg_jax.errors import BadInput, sentence
from fdg_jax.layers import naming
from fdg_jax.machine import jax_internals, programs
from fdg_jax.stages.functions import ComputeOptions, SownLosses, functions, init_variables, key_shape, split_variables
from fdg_jax.stages.shapes import shape_of
from fdg_jax.stages.sharded import axes_of, unboxed
from fdg_jax.stages.switches import SWITCHES, WAY_OUT

Tree = Any
# Calls whose body takes the call's arguments and returns its results, one by one.
CALLS = {"jit", "pjit", "closed_call", "checkpoint", "remat", "remat2", "custom_jvp_call", "custom_vjp_call"}


def trace_or_refuse(fact: str, run: Callable, *arguments, way_out: str = "", who: str = ""):
    """The result of tracing a user's code. Raises BadInput with the fact and with what that code raised.

    who: the traced part, for the message if this library itself refuses it.
    """
    try:
        with nn.intercept_methods(located):
            return run(*arguments)
    except BadInput as error:
        raise BadInput(": ".join(filter(None, (who, getattr(error, "part", ""), str(error))))) from error
    except Exception as error:  # whatever a user's module raises when shapes do not fit
        part = getattr(error, "part", "")
        fact = f"{fact} In {part}:" if part else fact
        raise BadInput(f"{fact} {sentence(error)} {way_out or way_out_of(error)}") from error


def located(next_call: Callable, args: Any, kwargs: Any, context: Any) -> Any:
    """For flax.linen.intercept_methods: adds to an error the part of the module that raised it, as `error.part`."""
    try:
        return next_call(*args, **kwargs)
    except Exception as error:
        path = "/".join(context.module.path) if context.module.scope else ""
        if not hasattr(error, "part"):
            setattr(error, "part", path and f"{path} ({type(context.module).__name__})")  # noqa: B010
        raise


def way_out_of(error: Exception) -> str:
    """What to do about an exception that a module raised."""
    text = str(error)
    if any(f"'{name}'" in text or f'"{name}"' in text for name in SWITCHES):
        return WAY_OUT
    if "required positional argument" in text or isinstance(error, IndexError):
        fact = "Use fdg_jax.stage(module, inputs=...) to choose which entries of a dictionary this module takes. If the"
        return f"{fact} stage before returns (y, aux), wrap its module in fdg_jax.stage(module, aux=...)."
    if "not a valid JAX type" in text:
        return "A stage must return an array, or a dictionary or tuple of arrays. Leave out everything else."
    if "unbound axis name" in text:
        fact = "A stage runs as a program of one device, without named axes: leave axis_name out"
        return f"{fact}. For BatchNorm over all replicas of method='data_parallel', use batch_norm='sync'."
    if isinstance(error, jax.errors.ConcretizationTypeError):
        fact = "Within nn.remat or nn.jit, `train` has to be a static argument: nn.remat(Block, "
        return f"{fact}static_argnums=(2,)) for __call__(self, x, train). Or use Pipeline(remat=) instead of nn.remat."
    return "Change the module or its input, or cut the network elsewhere."


class TracedModule(NamedTuple):
    """What tracing a module showed, as shapes.

    x, y: its inputs, and its outputs in training mode.
    variables: its Flax variables.
    params, extra: these variables as a stage has them; if it draws random numbers, extra also has "rng".
    kept: the arrays in its stripped VJP closure.
    compute: how it is computed, with the random streams and the sown losses that were found.
    forward: the trace of its training forward pass, whose last results are `kept`.
    init: the jitted function (key, inputs) -> its variables, with the names of their axes (Flax's boxes).
    axes: the names of the axes of its variables (fdg_jax.stages.sharded).
    init_sees_inputs: whether the variables may depend on the values of the inputs.
    """

    x: Tree
    y: Tree
    variables: Tree
    params: Tree
    extra: dict[str, Tree]
    kept: list[jax.ShapeDtypeStruct]
    compute: ComputeOptions
    forward: Any
    init: Callable[[jax.Array, Tree], dict[str, Tree]]
    axes: Tree
    init_sees_inputs: bool

    @property
    def draws(self) -> bool:
        """Whether the module, or the loss after it, draws random numbers in training."""
        return "rng" in self.extra

    def kept_of(self) -> list[tuple[list[int], bool]]:
        """What each array in `kept` depends on: (numbers of the weights, whether it depends on inputs)."""
        of_params, of_extra = (len(jax.tree.leaves(tree)) for tree in (self.params, self.extra))
        found = dependences(self.forward.jaxpr)[-len(self.kept) :] if self.kept else []
        return [([n for n in range(of_params) if bits >> n & 1], bits >> of_params + of_extra > 0) for bits in found]


def trace_module(module: nn.Module, compute: ComputeOptions, x: Tree) -> TracedModule:
    """Traces a module for inputs like x."""

    @programs.jit  # one dispatch instead of one per initialiser; and stage k needs no computed example
    def init(key, x):
        with naming():
            return unfreeze(init_variables(module, key, compute.precision.example(x)))

    traced = init.trace(jax.eval_shape(jax.random.key, 0), x)
    sees_inputs = any(bits > 1 for bits in dependences(traced.jaxpr.jaxpr))  # the first argument is the key
    found = shape_of(traced.out_info)
    variables, axes = unboxed(found), axes_of(found)
    params, extra = split_variables(variables)
    if compute.loss_draws:
        extra = {**extra, "rng": key_shape()}
    streams: tuple[str, ...] = ()
    while True:
        compute = compute._replace(streams=streams)
        try:
            forward, y, kept = trace_forward(module, compute, params, extra, x)
            return TracedModule(x, y, variables, params, extra, kept, compute, forward, init, axes, sees_inputs)
        except flax.errors.InvalidRngError as error:  # a module that draws random numbers finds no key of that name
            stream = asked_stream(error)
            if stream is None or stream in streams:
                raise
            streams += (stream,)
            extra = {**extra, "rng": key_shape()}
        except SownLosses:
            compute = compute._replace(sows=True)


def trace_forward(
    module: nn.Module, compute: ComputeOptions, params: Tree, extra: dict[str, Tree], x: Tree
) -> tuple[Any, Tree, list[jax.ShapeDtypeStruct]]:
    """(trace, outputs, arrays in the stripped closure) of a training forward pass, as shapes."""
    forward = functions(module, compute=compute).forward
    trace, (messages, _, closure) = jax.make_jaxpr(forward, return_shape=True)(params, extra, x)
    return trace, messages["x"], jax.tree.leaves(closure)


def asked_stream(error: flax.errors.InvalidRngError) -> str | None:
    """The random stream for which a module finds no key; None if the error names no stream."""
    asked = re.search(r'needs PRNG for "(.+?)"', str(error))
    return asked[1] if asked else None


def dependences(jaxpr: Any, inputs: Sequence[int] | None = None) -> list[int]:
    """For each result of a trace, the numbers of the arguments that it depends on, as the bits of an integer, since
    there are thousands of arguments. The set may be too large (results of an unknown call depend on all its arguments),
    but never too small.

    inputs: what each argument depends on; by default on itself.
    """
    inputs = [1 << number for number in range(len(jaxpr.invars))] if inputs is None else inputs
    known = dict(zip(jaxpr.invars, inputs, strict=True))

    def of(atom: Any) -> int:
        return 0 if hasattr(atom, "val") else known.get(atom, 0)  # a literal, a constant

    for equation in jaxpr.eqns:
        known.update(zip(equation.outvars, of_call(equation, list(map(of, equation.invars))), strict=True))
    return list(map(of, jaxpr.outvars))


def of_call(equation: Any, taken: list[int]) -> list[int]:
    """The dependences of an equation's results. taken: those of its arguments."""
    name, params = equation.primitive.name, equation.params
    if name == "cond":
        branches = [dependences(branch.jaxpr, taken[1:]) for branch in params["branches"]]
        return [reduce(or_, found, taken[0]) for found in zip(*branches, strict=True)]
    if name == "scan":
        begin, end = jax_internals.carried(params)
        while True:  # until another step adds no dependence
            found = dependences(params["jaxpr"].jaxpr, taken)
            carried = [a | b for a, b in zip(taken[begin:end], found[: end - begin], strict=True)]
            if carried == taken[begin:end]:
                return [*carried, *found[end - begin :]]
            taken = [*taken[:begin], *carried, *taken[end:]]
    inside = [getattr(value, "jaxpr", value) for value in params.values()] if name in CALLS else []  # closed or not
    bodies = [each for each in inside if hasattr(each, "eqns") and len(each.invars) == len(taken)]
    if len(bodies) == 1 and len(bodies[0].outvars) == len(equation.outvars):
        return dependences(bodies[0], taken)
    return [reduce(or_, taken, 0)] * len(equation.outvars)

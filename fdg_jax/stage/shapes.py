"""Checks that stages, loss, optimizer and data fit together, by `jax.eval_shape`: nothing is computed or compiled."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.core import unfreeze

from fdg_jax.arrays import check_usable, flattened, native
from fdg_jax.checkpoint import state as states
from fdg_jax.errors import BadInput, first_line
from fdg_jax.machine import programs
from fdg_jax.stage import evaluated_weights
from fdg_jax.stage.dependence import dependences, of_jaxpr
from fdg_jax.stage.functions import (
    LOSSES,
    ComputeOptions,
    SownLosses,
    functions,
    init_variables,
    loss_of,
    metrics_of,
    raw_key,
    split_variables,
)
from fdg_jax.stage.switches import WAY_OUT, Untold, refusal
from fdg_jax.stage.tracing import trace_or_refuse
from fdg_jax.stage.weighted import Weighted

Tree = Any
CURRENT = "weights=current"  # as Method.other_weights spells it
WEIGHTED = "The labels are fdg_jax.Weighted: use labels.labels in the loss, and labels.mean(values) for its average."


class Shapes(NamedTuple):
    """The shapes in a pipeline, as jax.ShapeDtypeStruct.

    inputs, params: of each stage.
    outputs: of stage K.
    labels, loss, report: of the labels, of the loss, and of what the loss function returns: that or (that, metrics).
    draws: for each stage, whether it draws random numbers.
    compute: for each stage, how it is computed, with what its module asks for.
    inits: for each stage, the function that makes its Flax variables of a key, where none are given; it has been traced
        already. Else one without arguments that copies them.
    """

    inputs: list[Tree]
    params: list[Tree]
    outputs: Tree
    labels: Tree
    loss: jax.ShapeDtypeStruct
    report: Tree
    draws: list[bool]
    compute: list[ComputeOptions]
    inits: list[Callable[..., dict[str, Tree]]]


def zeros(shapes: Tree) -> Tree:
    """Arrays of zeros with these shapes and dtypes."""
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def shape_of(tree: Tree) -> Tree:
    """The shapes and dtypes of a tree of JAX arrays, NumPy arrays or jax.ShapeDtypeStructs, as JAX will have them."""
    as_jax = partial(jax.dtypes.canonicalize_dtype, allow_extended_dtype=True)  # random keys
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), as_jax(a.dtype)), tree)


def describe(tree: Tree) -> str:
    """The shapes of a tree in words, such as "float32[8, 32, 32, 3]"; several are separated by commas."""
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(tree)) or "nothing"


def check_shapes(
    stages: Sequence[tuple[nn.Module, ComputeOptions, str, Any]], loss, preprocess, example_batch, variables
) -> Shapes:
    """Follows an example batch through all stages in training mode, without computing anything.

    Arguments:
        stages: for each stage its module, how it is computed, the option that makes its backward pass use other
            weights than its forward pass ("" if none does), and its optax optimizer.
        loss: loss(outputs, labels) -> scalar or (scalar, metrics).
        preprocess: (inputs, step) -> what stage 1 takes; or None.
        example_batch: (inputs, labels), as arrays or shapes.
        variables: for each stage the Flax variables that are given; None if none are.

    Returns: the shapes.

    Raises:
        BadInput: something does not fit. It names the stage and the shapes.
    """
    from fdg_jax.stage.from_nnx import refuse_bridges  # here: importing flax.nnx takes half a second
    from fdg_jax.stage.sharing import check_shared

    if variables is not None and len(variables) != len(stages):
        raise BadInput(f"{len(stages)} stages but {len(variables)} sets of variables were given.")
    x, labels = stage_1_inputs(preprocess, shape_of(example_batch[0])), shape_of(example_batch[1])
    inputs, params, draws, computes, inits, before = [], [], [], [], [], f"the input is {describe(x)}"
    owners: dict[int, tuple[Any, str]] = {}
    for k, (module, compute, other, optimizer) in enumerate(stages, 1):
        inputs.append(x)
        who = f"stage k={k} ({type(module).__name__})"
        fact, untold = f"{who} cannot take {describe(x)}; {before}.", Untold(trains)
        with nn.intercept_methods(refuse_bridges), nn.intercept_methods(untold):
            seen = trace_or_refuse(fact, trace_module, module, compute, x, who=who)
        y, made, compute = seen.y, seen.variables, seen.compute
        if untold.found:
            check_told(who, module, seen, x, untold)
        check_shared(owners, who, module, made)
        check_evaluation(who, module, compute, made, x)
        if k < len(stages):
            check_message(who, k, y)
        if variables is not None:
            given = fitting_variables(k, made, variables[k - 1], x)
            inits.append(partial(jax.tree.map, partial(jnp.array, copy=True), given))
        else:
            if seen.of_inputs:
                check_first_variables(who, seen.make, x)
            inits.append(partial(first_variables, seen.make, x))
        params.append(made.get("params", {}))
        check_trainable(who, params[-1])
        check_optimizer(who, optimizer, params[-1])
        if other or compute.precision.compute_dtype is not None:
            check_closure(who, module, compute, seen, x, other)
        if other == CURRENT:  # the other case is feedback weights, which replace matrices only
            check_kept_weights(who, module, compute, seen, x)
        draws.append(seen.draws)
        computes.append(compute)
        before, x = f"stage k={k} takes {describe(x)} and gives {describe(y)}", y
    report = check_loss(loss, x, labels)
    return Shapes(inputs, params, x, labels, loss_of(report), report, draws, computes, inits)


def check_message(who: str, k: int, y: Tree) -> None:
    """Raises BadInput where stage k gives the next one what no gradient comes back through, or a number."""
    gives = f"{who} gives {describe(y)} to stage k={k + 1}"
    if not any(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(y)):
        raise BadInput(f"{gives}: no gradient comes back through integers. Cut the network elsewhere.")
    if any(leaf.ndim == 0 for leaf in jax.tree.leaves(y)):
        fact = f"{gives}, and a number has no axis: between stages arrays have one axis or more"
        raise BadInput(f"{fact}. Give scale[None], say.")


def check_loss(loss: Callable, outputs: Tree, labels: Tree) -> Tree:
    """The shapes of what a loss returns. Raises BadInput unless that is one number, or (it, {name: number})."""
    fact = f"the loss cannot take outputs {describe(outputs)} with labels {describe(labels)}."
    way_out = WEIGHTED if isinstance(labels, Weighted) else ""
    report = trace_or_refuse(fact, lambda *a: jax.eval_shape(loss, *a), outputs, labels, way_out=way_out)
    found = f"the loss of outputs {describe(outputs)} and labels {describe(labels)} is {describe(report)}"
    pair = isinstance(report, tuple | list) and len(report) == 2 and isinstance(report[1], Mapping)
    value: Any = loss_of(report) if pair else report
    if getattr(value, "shape", None) != ():
        raise BadInput(f"{found}, not one number. Return the mean over the batch, or (that, {{name: number}}).")
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise BadInput(f"{found}, which has no gradient. Give a loss that is one floating-point number.")
    for name, metric in metrics_of(report).items():
        if not isinstance(name, str) or getattr(metric, "shape", None) != () or metric.dtype.kind == "c":
            fact = f"the loss returns (loss, metrics), and its metric {name!r} is {describe(metric)}"
            raise BadInput(f"{fact}. Give a dictionary of numbers, each the mean over the batch: {{'accuracy': ...}}.")
    return report


def stage_1_inputs(preprocess: Callable[[Tree, Any], Tree] | None, inputs: Tree) -> Tree:
    """The shapes of what stage 1 takes, of the shapes of a batch's inputs. Raises BadInput if preprocess fails."""
    if preprocess is None:
        return inputs
    step = jax.ShapeDtypeStruct((), jnp.int32)
    fact = f"preprocess cannot take {describe(inputs)}."
    return trace_or_refuse(fact, lambda *a: jax.eval_shape(preprocess, *a), inputs, step)


def first_variables(make: Callable, x: Tree, key: jax.Array) -> dict[str, Tree]:
    """A module's first variables, made for inputs of zeros."""
    return make(key, zeros(x))


def check_first_variables(who: str, make: Callable, x: Tree) -> None:
    """Raises BadInput if a module's first variables are others for other values of its inputs. They are made once,
    before there are inputs of a stage k > 1. Computes them twice: called only where a trace cannot tell."""
    key = jax.random.key(0)
    ones = jax.tree.map(jnp.ones_like, zeros(x))
    pairs = zip(jax.tree.leaves(make(key, zeros(x))), jax.tree.leaves(make(key, ones)), strict=True)
    if not all(np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True) for a, b in pairs):
        fact = f"{who}: its first variables depend on the values of its inputs, and here they are made of shapes alone"
        raise BadInput(f"{fact}. Initialise the modules yourself and give init(key, example, variables).")


def check_trainable(who: str, params: Tree) -> None:
    """Raises BadInput if a parameter has no gradient, as integers have none."""
    for path, leaf in states.flatten(params).items():
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            fact = f"{who} has the parameter {path}, {describe(leaf)}, which has no gradient"
            raise BadInput(f'{fact}. Keep it in a collection of its own: self.variable("constants", ...).')


def check_optimizer(who: str, optimizer: optax.GradientTransformation, params: Tree) -> None:
    """Raises BadInput if the optimizer needs more than gradients and parameters, or cannot train these parameters."""
    way_out = (
        "The pipeline calls optimizer.update(gradients, state, params) for each stage by itself. It has no loss or "
        "loss function to give there, as optax.contrib.reduce_on_plateau and optax.lbfgs want, and one set of "
        "parameters, where optax.lookahead wants two. Use another optimizer."
    )
    trace_or_refuse(f"the optimizer cannot train {who}.", first_update, optimizer, params, way_out=way_out)
    evaluated_weights.check(who, jax.eval_shape(optimizer.init, params))


def first_update(optimizer: optax.GradientTransformation, params: Tree) -> Tree:
    """The shapes of the parameters after an optimizer's first update."""

    def update(params):
        updates, _ = optimizer.update(params, optimizer.init(params), params)
        return optax.apply_updates(params, updates)

    return jax.eval_shape(update, params)


def trains(module: nn.Module) -> bool:
    """Whether a module is called for training, where alone what it sows as losses is kept."""
    return module.scope is not None and module.is_mutable_collection(LOSSES)


def check_told(who: str, module: nn.Module, seen: "TracedModule", x: Tree, untold: Untold) -> None:
    """Raises BadInput if a module is trained by another program once the switches are set that nobody sets."""
    told = Untold(trains, tell=True)

    def program() -> str | None:
        forward = functions(module, compute=seen.compute).forward
        try:
            made = jax.make_jaxpr(forward)(*state_shapes(seen.variables, seen.draws), x)
        except Exception:  # it draws random numbers, say
            return None
        return re.sub("0x[0-9a-f]+", "", str(made))  # functions of the user's are named by where they lie

    with nn.intercept_methods(told):
        other = program()
    # A part within nn.jit is not traced again, so it cannot be told.
    if other != program() or told.found.keys() != untold.found.keys():
        raise BadInput(refusal(who, *next(iter(untold.found.items()))))


def check_evaluation(who: str, module: nn.Module, compute: ComputeOptions, variables: Tree, x: Tree) -> None:
    """Raises BadInput if a module cannot be evaluated: dropout or batch statistics that are always in training mode."""
    params, extra = split_variables(variables)
    try:
        jax.eval_shape(functions(module, compute=compute).outputs, params, extra, x)
    except BadInput as error:
        raise BadInput(f"{who} can be trained but not evaluated: {error}") from error
    except flax.errors.InvalidRngError as error:
        stream = asked_stream(error)
        fact = f'{who} can be trained but not evaluated: it draws from the random stream "{stream}" in evaluation, too'
        raise BadInput(f"{fact}. Draw only where the argument `train` of __call__ is True.") from error
    except Exception as error:  # whatever a user's module raises
        raise BadInput(f"{who} can be trained but not evaluated: {first_line(error)} {WAY_OUT}") from error


def asked_stream(error: flax.errors.InvalidRngError) -> str | None:
    """The random stream of which a module has asked for a key, and there is none."""
    asked = re.search(r'needs PRNG for "(.+?)"', str(error))
    return asked[1] if asked else None


class TracedModule(NamedTuple):
    """What tracing a module showed, as shapes.

    y: its outputs in training mode.
    kept: the arrays in its stripped VJP closure.
    variables: its Flax variables.
    draws: whether it draws random numbers.
    compute: how it is computed: as asked for, with the random streams and sown losses that were found.
    make: the jitted function (key, inputs) -> its variables.
    of_inputs: whether these may depend on the values of the inputs. Sure only if not: of a loop it is not known.
    """

    y: Tree
    kept: list[jax.ShapeDtypeStruct]
    variables: Tree
    draws: bool
    compute: ComputeOptions
    make: Callable[[jax.Array, Tree], dict[str, Tree]]
    of_inputs: bool


def trace_module(module: nn.Module, compute: ComputeOptions, x: Tree) -> TracedModule:
    """Traces a module for inputs like x."""
    # Under jit: one dispatch instead of one an initialiser, and no example has to be computed for stage k.
    make = programs.jit(lambda key, x: unfreeze(init_variables(module, key, compute.precision.example(x))))
    traced = make.trace(jax.eval_shape(jax.random.key, 0), x)
    of_inputs = any(number > 0 for found in of_jaxpr(traced.jaxpr.jaxpr) for number in found)  # 0: the key
    variables = shape_of(traced.out_info)
    streams: tuple[str, ...] = ()
    while True:
        compute, draws = compute._replace(streams=streams), bool(streams)
        try:
            y, kept = forward_shapes(module, compute, *state_shapes(variables, draws), x)
            return TracedModule(y, kept, variables, draws, compute, make, of_inputs)
        except flax.errors.InvalidRngError as error:  # a module that draws random numbers finds no key of that name
            stream = asked_stream(error)
            if stream is None or stream in streams:
                raise
            streams += (stream,)
        except SownLosses:
            compute = compute._replace(sows=True)


def state_shapes(variables: Tree, draws: bool) -> tuple[Tree, dict[str, Tree]]:
    """(params, the other collections) of a stage, as shapes, with the random key of one that draws random numbers."""
    params, extra = split_variables(variables)
    return params, extra | ({"rng": jax.eval_shape(lambda: raw_key(jax.random.key(0)))} if draws else {})


def forward_shapes(
    module: nn.Module, compute: ComputeOptions, params: Tree, extra: dict[str, Tree], x: Tree
) -> tuple[Tree, list[jax.ShapeDtypeStruct]]:
    """(outputs, arrays in the stripped closure) of a training forward pass, as shapes."""
    messages, _, closure = jax.eval_shape(
        functions(module, compute=compute).forward, params, extra, x
    )
    return messages["x"], jax.tree.leaves(closure)


def check_closure(
    who: str, module: nn.Module, compute: ComputeOptions, seen: TracedModule, x: Tree, other: str
) -> None:
    """Looks for copies of weights among the activations that a module keeps, such as weights cast to another dtype.

    Such copies are matrices of a kernel's size that do not grow with the batch. It raises BadInput where the backward
    pass must use other weights (`other` is the option that says so), for it would use the copies. Elsewhere they only
    cost memory, so it warns. Vectors are left to `check_kept_weights`.
    """
    kernels = {leaf.size for leaf in jax.tree.leaves(seen.variables.get("params", {})) if leaf.ndim > 1}
    if not any(leaf.ndim > 1 and leaf.size in kernels for leaf in seen.kept):
        return
    larger = jax.tree.map(lambda s: jax.ShapeDtypeStruct((s.shape[0] + 1, *s.shape[1:]), s.dtype), x)
    _, kept = forward_shapes(module, compute, *state_shapes(seen.variables, seen.draws), larger)
    pairs = zip(seen.kept, kept, strict=True)
    copies = [s for s, large in pairs if s.shape == large.shape and s.ndim > 1 and s.size in kernels]
    if copies and other:
        fact = f"{who} keeps {describe(copies[0])}, made of its weights, for the backward pass"
        way_out = "Cast weights outside the module, or leave that out."
        raise BadInput(f"{fact}, so {other} would go back through these. {way_out}")
    if copies:
        more = f" and {len(copies) - 3} more" if len(copies) > 3 else ""
        size = sum(copy.size * copy.dtype.itemsize for copy in copies)
        warnings.warn(
            f"{who} keeps copies of its weights for the backward pass ({describe(copies[:3])}{more}): {size:,} bytes "
            "for every batch in flight. Training is right all the same: copies cost memory only, and layers that "
            "compute in float32 gain no speed from bfloat16. The reason: dtype='bfloat16' gives a module its kernels "
            "in bfloat16, and a layer without a dtype of its own casts them to float32 when it meets a float32 bias. "
            "Give the layer that dtype, as in flax.linen.Dense(10, dtype=jax.numpy.bfloat16).",
            stacklevel=5,
        )


def check_kept_weights(who: str, module: nn.Module, compute: ComputeOptions, seen: TracedModule, x: Tree) -> None:
    """Raises BadInput if the closure keeps something that depends on weights and not on the inputs.

    With current weights, the backward pass would use the old values. Layers whose backward pass takes the weights
    themselves (flax.linen.Dense, Conv) keep nothing of the kind. Layers that multiply by a vector of weights do, since
    JAX keeps the vector in the shape of the product: so do all of flax.linen's norms with a scale.
    """
    params, extra = state_shapes(seen.variables, seen.draws)
    forward = functions(module, compute=compute).forward
    paths, others = list(states.flatten(params)), len(jax.tree.leaves(extra))
    found = dependences(lambda *arguments: forward(*arguments)[2], params, extra, x)
    for kept, needed in zip(seen.kept, found, strict=True):
        weights = [paths[number] for number in sorted(needed) if number < len(paths)]
        of_input = any(number >= len(paths) + others for number in needed)
        if weights and not of_input and jnp.issubdtype(kept.dtype, jnp.inexact):
            raise BadInput(
                f"{who} keeps {describe(kept)}, made of its weights {', '.join(weights)} alone, for the backward pass, "
                f"so {CURRENT} would go back through the old ones. Use weights=stashed, or layers that keep no such "
                "thing: fdg_jax.layers.BatchNorm for a batch norm, flax.linen's other norms with use_scale=False."
            )


def fitting_variables(k: int, needed: Tree, given: Mapping, x: Tree) -> dict[str, Tree]:
    """The variables given for stage k in the containers that its module has. Those that are given may have others: a
    file has dictionaries only for containers with a class of their own (fdg_jax.arrays).

    Raises BadInput if names, shapes or dtypes are not those that the module needs.
    """
    if not isinstance(given, Mapping):
        what = type(given).__name__
        raise BadInput(f'the variables of stage k={k} are of type {what}, not a dictionary {{"params": ...}}.')
    want, have = flattened(needed)[0], {name: native(leaf) for name, leaf in flattened(dict(given))[0].items()}
    for leaf in have.values():
        check_usable(f"the variables of stage k={k}", leaf)
    for path in sorted(want.keys() | have.keys()):
        a, b = want.get(path), have.get(path)
        if b is not None and not hasattr(b, "dtype"):
            raise BadInput(f"the given {path} of stage k={k} is a {type(b).__name__}, not an array.")
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            raise BadInput(
                f"stage k={k} takes {describe(x)}, so its {path} is {describe(a)}, but the given one is {describe(b)}."
            )
    return jax.tree.unflatten(jax.tree.structure(needed), [have[name] for name in want])

"""Checks that a user's modules, loss and optimizer fit together and train as written. It only traces them.

Without these checks, a mistake would fail late, or silently train something else.
"""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from optax import contrib

from fdg_jax.arrays import check_usable, flattened, native
from fdg_jax.checkpoint import state as states
from fdg_jax.errors import BadInput, first_line
from fdg_jax.stages.functions import ComputeOptions, functions, key_shape, loss_of, metrics_of, split_variables
from fdg_jax.stages.preprocessing import Preprocess, preprocessed
from fdg_jax.stages.reported import joined, taken
from fdg_jax.stages.shapes import describe, shape_of, zeros
from fdg_jax.stages.sharded import unboxed
from fdg_jax.stages.switches import WAY_OUT, Untold, name_of, refusal
from fdg_jax.stages.tracing import TracedModule, asked_stream, trace_forward, trace_module, trace_or_refuse
from fdg_jax.stages.update import states_of
from fdg_jax.stages.weighted import all_weighted

Tree = Any
CURRENT = "weights=current"  # as Method.other_weights spells it
WEIGHTED = "The labels are fdg_jax.Weighted: use labels.labels in the loss, and labels.mean(values) for its mean."


class Shapes(NamedTuple):
    """The shapes in a pipeline, as jax.ShapeDtypeStruct.

    stages: the trace of each stage.
    inits: for each stage, the function key -> its Flax variables. If variables are given, the function copies them.
    labels, loss, report: the shapes of the loss function's labels, of the loss, and of the function's result: loss or
        (loss, metrics).
    """

    stages: list[TracedModule]
    inits: list[Callable[[jax.Array], dict[str, Tree]]]
    labels: Tree
    loss: jax.ShapeDtypeStruct
    report: Tree


def check_shapes(
    stages: Sequence[tuple[nn.Module, ComputeOptions, str, Any]],
    loss: Callable,
    preprocess: Preprocess | None,
    example_batch: tuple[Tree, Tree],
    variables: Sequence[Mapping] | None,
) -> Shapes:
    """Follows an example batch through all stages in training mode, without computing anything.

    Arguments:
        stages: for each stage (its module, how it is computed, the option that makes its backward pass use other
            weights than its forward pass or "", its optax optimizer).
        loss: loss(outputs, labels) -> scalar or (scalar, metrics). If `compute` says so, it also takes a random key.
        preprocess: the transform of a batch before the stages; or None.
        example_batch: (inputs, labels), as arrays or shapes.
        variables: for each stage the Flax variables that are given; None if none are.

    Returns: the shapes.

    Raises:
        BadInput: something does not fit. The message names the stage and the shapes.
    """
    from fdg_jax.stages.from_nnx import check_shared, refuse_bridges  # here: importing flax.nnx takes half a second

    if variables is not None:
        check_number(len(stages), variables)
    x, labels = preprocessed(preprocess, *map(shape_of, example_batch))
    traced, inits, before = [], [], f"the input is {describe(x)}"
    owners: dict[int, tuple[Any, str]] = {}
    for k, (module, compute, other, optimizer) in enumerate(stages, 1):
        who = f"stage k={k} ({name_of(module)})"
        fact, untold = f"{who} cannot take {describe(x)}; {before}.", Untold()
        with nn.intercept_methods(refuse_bridges), nn.intercept_methods(untold):
            seen = trace_or_refuse(fact, trace_module, module, compute, x, who=who)
        if untold.found:
            check_told(who, module, seen, untold)
        check_shared(owners, who, module, seen.variables)
        seen = seen._replace(compute=check_evaluation(who, module, seen))
        if k < len(stages):
            check_message(who, k, seen.y)
        inits.append(first_variables(k, who, seen, None if variables is None else variables[k - 1]))
        check_trainable(who, seen.params)
        check_optimizer(who, optimizer, seen.params)
        if other or compute.precision.compute_dtype is not None:
            check_kept(who, module, seen, other)
        traced.append(seen)
        before, x = f"stage k={k} takes {describe(x)} and gives {describe(seen.y)}", seen.y
    outputs, metrics = taken(x)
    traced[-1] = traced[-1]._replace(y=outputs)
    report = jax.eval_shape(joined, check_loss(loss, outputs, labels, stages[-1][1].loss_draws), metrics)
    return Shapes(traced, inits, labels, loss_of(report), report)


def check_number(K: int, variables: Sequence[Any]) -> None:
    """Raises BadInput unless there is one set of variables for each of the K stages."""
    if len(variables) != K:
        fact = f"{K} stages but {len(variables)} sets of variables were given"
        raise BadInput(f"{fact}. Give one Flax dictionary for each stage, or one for the whole network.")


def check_message(who: str, k: int, y: Tree) -> None:
    """Raises BadInput if stage k sends only integers, which pass no gradient back, or an array without axes."""
    gives = f"{who} gives {describe(y)} to stage k={k + 1}"
    if not any(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(taken(y)[0])):
        raise BadInput(f"{gives}: integers have no gradient. Cut the network elsewhere.")
    if any(leaf.ndim == 0 for leaf in jax.tree.leaves(y)):
        fact = f"{gives}, but arrays between stages must have at least one axis"
        raise BadInput(f"{fact}. Give scale[None], say.")


def check_loss(loss: Callable, outputs: Tree, labels: Tree, draws: bool) -> Tree:
    """The shapes of what a loss returns. Raises BadInput unless the loss returns one number, or (number, {name:
    number}).

    draws: whether the loss takes a random key.
    """
    fact = f"the loss cannot take outputs {describe(outputs)} with labels {describe(labels)}."
    way_out = WEIGHTED if all_weighted(labels) else ""
    batch = outputs, labels, *([key_shape()] if draws else [])
    report = trace_or_refuse(fact, lambda: jax.eval_shape(loss, *batch), way_out=way_out)
    found = f"the loss of outputs {describe(outputs)} and labels {describe(labels)} is {describe(report)}"
    pair = isinstance(report, tuple | list) and len(report) == 2 and isinstance(report[1], Mapping)
    value: Any = loss_of(report) if pair else report
    if getattr(value, "shape", None) != ():
        raise BadInput(f"{found}, not one number. Return the mean over the batch, or (mean, {{name: number}}).")
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise BadInput(f"{found}, which has no gradient. Return one floating-point number.")
    for name, metric in metrics_of(report).items():
        if not isinstance(name, str) or getattr(metric, "shape", None) != () or metric.dtype.kind == "c":
            fact = f"the loss returns (loss, metrics), but its metric {name!r} is {describe(metric)}"
            raise BadInput(f"{fact}. Return a dictionary of numbers, each a mean over the batch: {{'accuracy': ...}}.")
    return report


def first_variables(k: int, who: str, seen: TracedModule, given: Any) -> Callable[[jax.Array], dict[str, Tree]]:
    """The function that makes the initial variables of stage k from a key, or copies the given ones.

    Variables are made before stages k > 1 have inputs. So variables that depend on the values of inputs raise BadInput.
    Given variables that do not fit raise BadInput, too.
    """
    if given is not None:
        fitting = fitting_variables(k, seen.variables, given, seen.x)
        return lambda key: jax.tree.map(partial(jnp.array, copy=True), fitting)
    if seen.init_sees_inputs:
        fact = f"{who}: its initial variables depend on the values of its inputs, but only shapes are known here"
        raise BadInput(f"{fact}. Initialise the modules yourself and call init(key, example, variables).")
    return lambda key: unboxed(seen.init(key, zeros(seen.x)))


def check_trainable(who: str, params: Tree) -> None:
    """Raises BadInput if a parameter has no gradient, such as one of integers."""
    for path, leaf in states.flatten(params).items():
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            fact = f"{who} has the parameter {path}, {describe(leaf)}, which has no gradient"
            raise BadInput(f'{fact}. Keep it in another collection: self.variable("constants", ...).')


def check_optimizer(who: str, optimizer: optax.GradientTransformation, params: Tree) -> None:
    """Raises BadInput if the optimizer needs more than gradients and parameters, or cannot train these parameters."""
    way_out = (
        "The pipeline calls optimizer.update(gradients, state, params) for each stage separately, without a loss or "
        "loss function (needed by optax.contrib.reduce_on_plateau and optax.lbfgs), and with one set of parameters "
        "(optax.lookahead needs two). Use another optimizer."
    )
    trace_or_refuse(f"the optimizer cannot train {who}.", first_update, optimizer, params, way_out=way_out)
    if states_of(jax.eval_shape(optimizer.init, params), contrib.SAMState):
        fact = f"the optimizer of {who} is optax.contrib.sam, which takes gradients at two points in turn: the pipeline"
        raise BadInput(f"{fact} cannot tell at which point to evaluate. Use the optimizer inside sam alone.")


def first_update(optimizer: optax.GradientTransformation, params: Tree) -> Tree:
    """The shapes of the parameters after an optimizer's first update."""

    def update(params):
        updates, _ = optimizer.update(params, optimizer.init(params), params)
        return optax.apply_updates(params, updates)

    return jax.eval_shape(update, params)


def check_told(who: str, module: nn.Module, seen: TracedModule, untold: Untold) -> None:
    """Raises BadInput if a module would train differently with its unset switches (`untold`) set for training."""
    told = Untold(tell=True)
    try:
        with nn.intercept_methods(told):
            other = text(trace_forward(module, seen.compute, seen.params, seen.extra, seen.x)[0])
    except Exception:  # for example, it draws random numbers
        other = ""
    # A part within nn.jit is not traced again, so its switch cannot be set.
    if other != text(seen.forward) or told.found.keys() != untold.found.keys():
        raise BadInput(refusal(who, *next(iter(untold.found.items()))))


def text(trace: Any) -> str:
    """A trace as text, without the memory addresses of the user's functions."""
    return re.sub("0x[0-9a-f]+", "", str(trace))


def check_evaluation(who: str, module: nn.Module, seen: TracedModule) -> ComputeOptions:
    """How a module is computed, with the random streams that it asks for in evaluation. Raises BadInput if the module
    cannot be evaluated, because its batch statistics are always in training mode."""
    compute, fact = seen.compute, f"{who} can be trained but not evaluated"
    while True:
        outputs, key = functions(module, compute=compute).outputs, key_shape() if compute.draws else None
        try:
            jax.eval_shape(outputs, *split_variables(seen.variables), seen.x, key)
            return compute
        except BadInput as error:
            raise BadInput(f"{fact}: {error}") from error
        except Exception as error:  # whatever a user's module raises
            stream = asked_stream(error) if isinstance(error, flax.errors.InvalidRngError) else None
            if stream is None or (compute.draws and stream in compute.streams):
                raise BadInput(f"{fact}: {first_line(error)} {WAY_OUT}") from error
            compute = compute._replace(draws=True, streams=tuple(dict.fromkeys((*compute.streams, stream))))


def check_kept(who: str, module: nn.Module, seen: TracedModule, other: str) -> None:
    """Looks for arrays that are computed from a module's weights and kept for its backward pass.

    If the option `other` makes the backward pass use other weights, these arrays would bring in the old weights, so
    BadInput is raised. Otherwise they only cost memory, so copies of matrices, such as weights cast to another dtype,
    cause a warning. A copy has the size of a kernel and does not grow with the batch. With current weights, vectors
    made of weights alone count, too. Layers whose backward pass takes the weights themselves (flax.linen.Dense, Conv)
    keep no such arrays. Layers that multiply by a vector of weights, such as flax.linen's norms with a scale, keep such
    an array: JAX keeps the vector, broadcast to the shape of the product.
    """
    kernels = {leaf.size for leaf in jax.tree.leaves(seen.params) if leaf.ndim > 1}
    copies = [kept.ndim > 1 and kept.size in kernels for kept in seen.kept]
    if any(copies):
        larger = jax.tree.map(lambda s: jax.ShapeDtypeStruct((s.shape[0] + 1, *s.shape[1:]), s.dtype), seen.x)
        *_, more = trace_forward(module, seen.compute, seen.params, seen.extra, larger)
        copies = [copy and a.shape == b.shape for copy, a, b in zip(copies, seen.kept, more, strict=True)]
    found = []
    for kept, copy, (weights, of_inputs) in zip(seen.kept, copies, seen.kept_of(), strict=True):
        alone = not of_inputs and jnp.issubdtype(kept.dtype, jnp.inexact)
        if weights and (copy or (alone and other == CURRENT)):  # feedback weights replace matrices only
            found.append((kept, weights, " alone" if alone else ""))
    if not found:
        return
    if other:
        paths = list(states.flatten(seen.params))
        kept, weights, alone = found[0]
        fact = f"{describe(kept)}, which is computed from its weights {', '.join(paths[n] for n in weights)}{alone}"
        raise BadInput(
            f"for the backward pass {who} keeps {fact}. Even with {other} the backward pass would use the old weights "
            f"in this array. Leave {other} out, or use layers without such arrays: fdg_jax.layers.BatchNorm, "
            "flax.linen's other norms with use_scale=False, and weights that are cast outside the module."
        )
    shapes = [kept for kept, *_ in found]
    rest = f" and {len(shapes) - 3} more" if len(shapes) > 3 else ""
    size = sum(kept.size * kept.dtype.itemsize for kept in shapes)
    warnings.warn(
        f"{who} keeps copies of its weights for the backward pass ({describe(shapes[:3])}{rest}): {size:,} bytes "
        "for every batch in flight. Results are correct, but the copies cost memory, and the layers compute in "
        "float32, without bfloat16's speed. The reason: with dtype='bfloat16' kernels are bfloat16 and biases are "
        "float32, so a layer without its own dtype casts its kernel to float32. "
        "Give the layer a dtype, as in flax.linen.Dense(10, dtype=jax.numpy.bfloat16).",
        stacklevel=5,
    )


def fitting_variables(k: int, needed: Tree, given: Mapping, x: Tree) -> dict[str, Tree]:
    """The variables given for stage k, in the container types of its module. They may come in other types, since a file
    turns containers with a class of their own into dictionaries (fdg_jax.arrays).

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
                f"stage k={k} takes {describe(x)}, so its {path} is {describe(a)}, but {describe(b)} was given."
            )
    return jax.tree.unflatten(jax.tree.structure(needed), [have[name] for name in want])

"""Checks that stages, loss and data fit together, by `jax.eval_shape`: nothing is computed, nothing compiles."""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from fdg_jax.errors import BadInput, first_line, sentence
from fdg_jax.stage.dependence import dependences
from fdg_jax.stage.functions import How, draws_random_numbers, functions, init_variables, split, takes_train
from fdg_jax.storage import checkpoint
from fdg_jax.storage.plain import check_usable

Tree = Any
CURRENT = "weights=current"  # what Method.other_weights says of them
OTHER_SWITCHES = ("deterministic", "training", "is_training", "use_running_average")


class Shapes(NamedTuple):
    """What flows where, as jax.ShapeDtypeStruct, and which stages draw random numbers."""

    inputs: list[Tree]  # of each stage
    outputs: Tree  # of stage K
    labels: Tree
    loss: jax.ShapeDtypeStruct
    draws: list[bool]


def zeros(shapes: Tree) -> Tree:
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def shape_of(tree: Tree) -> Tree:
    """A tree of ShapeDtypeStructs (arrays, numpy arrays or structs in)."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), jax.dtypes.canonicalize_dtype(a.dtype)), tree)


def text(tree: Tree) -> str:
    """`float32[8, 32, 32, 3]`, or several of them."""
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(tree)) or "nothing"


def check_shapes(
    stages: Sequence[tuple[nn.Module, How, str]], loss, optimizer, preprocess, example_batch, variables
) -> Shapes:
    """Follows an example batch through all stages in training mode, without computing anything.

    stages: (module, how it is computed, whose weights its backward pass is taken at if not those of its forward pass
    and else "").
    """
    if variables is not None and len(variables) != len(stages):
        raise BadInput(f"{len(stages)} stages but {len(variables)} sets of variables were given.")
    x, labels = shape_of(example_batch[0]), shape_of(example_batch[1])
    if preprocess is not None:
        step = jax.ShapeDtypeStruct((), jnp.int32)
        x = traced(f"preprocess cannot take {text(x)}.", lambda *a: jax.eval_shape(preprocess, *a), x, step)
    inputs, draws, before = [], [], f"the input is {text(x)}"
    for k, (module, how, other) in enumerate(stages, 1):
        inputs.append(x)
        who = f"stage k={k} ({type(module).__name__})"
        seen = traced(
            f"{who} cannot take {text(x)}; {before}.", follow, module, how, x, way_out=check_switch(who, module)
        )
        y, made = seen.y, seen.variables
        check_evaluation(who, module, how, made, x)
        if k < len(stages) and not any(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(y)):
            fact = f"{who} gives {text(y)} to stage k={k + 1}: no gradient comes back through integers"
            raise BadInput(f"{fact}. Cut the network elsewhere.")
        if variables is not None:
            check_variables(k, made, variables[k - 1], x)
        check_optimizer(who, optimizer, made.get("params", {}))
        if other or how.precision.compute is not None:
            check_closure(who, module, how, seen, x, other)
        if other == CURRENT:  # feedback weights, which are also others, replace nothing but matrices
            check_made_of_weights(who, module, how, seen, x)
        draws.append(seen.drew)
        before, x = f"stage k={k} takes {text(x)} and gives {text(y)}", y
    fact = f"the loss cannot take outputs {text(x)} with labels {text(labels)}."
    value = traced(fact, lambda *a: jax.eval_shape(loss, *a), x, labels)
    if getattr(value, "shape", None) != ():
        raise BadInput(f"the loss of outputs {text(x)} and labels {text(labels)} is {text(value)}, not one number.")
    if not jnp.issubdtype(value.dtype, jnp.floating):
        fact = f"the loss of outputs {text(x)} and labels {text(labels)} is {text(value)}, which has no gradient"
        raise BadInput(f"{fact}. Give a loss that is one floating-point number.")
    return Shapes(inputs, x, labels, value, draws)


def check_optimizer(who: str, optimizer: optax.GradientTransformation, params: Tree) -> None:
    """Refuses an optimizer that cannot be updated by a gradient alone, or not for these parameters."""

    def update(params):
        updates, _ = optimizer.update(params, optimizer.init(params), params)
        return optax.apply_updates(params, updates)

    way_out = (
        "The pipeline calls optimizer.update(gradients, state, params) for each stage by itself. It has no loss or "
        "loss function to give there, as optax.contrib.reduce_on_plateau and optax.lbfgs want. Use another optimizer."
    )
    traced(f"the optimizer cannot train {who}.", jax.eval_shape, update, params, way_out=way_out)


def traced(fact: str, run: Callable, *arguments, way_out: str = ""):
    """The result of tracing something of the user's, or BadInput with the fact and the first line of what it raised."""
    try:
        return run(*arguments)
    except Exception as error:  # whatever a user's module raises when shapes do not fit
        way_out = way_out or "Change one of the two, or cut the network elsewhere."
        raise BadInput(f"{fact} {sentence(error)} {way_out}") from error


def check_switch(who: str, module: nn.Module) -> str:
    """Refuses a module that tells training from evaluation by an argument nobody here sets. Where it need not be
    given, as the module may have an attribute for it, returns what to do if that does not go well; else ""."""
    if takes_train(module):
        return ""
    for name, argument in inspect.signature(type(module).__call__).parameters.items():
        if name in OTHER_SWITCHES:
            way_out = f"Give __call__ of your module an argument `train` and make `{name}` of it inside."
            if argument.default is None:
                return f"This library sets `train` only, True in training and False in evaluation. {way_out}"
            raise BadInput(
                f"{who} has an argument `{name}`, which would be left alone: this library sets `train`, True in "
                f"training and False in evaluation. {way_out}"
            )
    return ""


def check_evaluation(who: str, module: nn.Module, how: How, variables: Tree, x: Tree) -> None:
    """Refuses a module that cannot be evaluated: dropout that is always on, a batch norm that always learns."""
    params, extra = split(variables)
    try:
        jax.eval_shape(functions(module, optax.identity(), how=how).outputs, params, extra, x)
    except Exception as error:  # whatever a user's module raises
        raise BadInput(
            f"{who} can be trained but not evaluated: {first_line(error)} This library tells a module which of the two "
            "it is by an argument `train` (True or False) where __call__ has one. Give it that."
        ) from error


class Followed(NamedTuple):
    """Of a module, as shapes: its output in training mode, its variables, whether it draws random numbers, and what its
    stripped VJP closure keeps."""

    y: Tree
    variables: Tree
    drew: bool
    kept: list[jax.ShapeDtypeStruct]


def follow(module: nn.Module, how: How, x: Tree) -> Followed:
    """What comes of an input like x."""
    example = jax.eval_shape(how.precision.example, x)
    variables = jax.eval_shape(lambda x: init_variables(module, jax.random.PRNGKey(0), x), example)
    drew = draws_random_numbers(module, variables, example)
    y, kept = forward_shapes(module, how, variables, x, drew)
    return Followed(y, variables, drew, kept)


def forward_shapes(
    module: nn.Module, how: How, variables: Tree, x: Tree, drew: bool
) -> tuple[Tree, list[jax.ShapeDtypeStruct]]:
    """(output, what the stripped closure keeps) of a training forward pass, as shapes."""
    params, extra = split(variables)
    if drew:
        extra["rng"] = jax.ShapeDtypeStruct((2,), jnp.uint32)
    messages, _, closure = jax.eval_shape(functions(module, optax.identity(), how=how).forward, params, extra, x)
    return messages["x"], jax.tree.leaves(closure)


def check_closure(who: str, module: nn.Module, how: How, seen: Followed, x: Tree, other: str) -> None:
    """Looks for weights that a module keeps among its activations (cast to another dtype, say), and refuses to go back
    through these where the backward pass is to be taken at others; elsewhere they only cost memory, so it warns. They
    are the matrices that do not grow with the batch.

    What is no matrix is left to `check_made_of_weights`.
    """
    kernels = {leaf.size for leaf in jax.tree.leaves(seen.variables.get("params", {})) if leaf.ndim > 1}
    if not any(leaf.ndim > 1 and leaf.size in kernels for leaf in seen.kept):
        return
    larger = jax.tree.map(lambda s: jax.ShapeDtypeStruct((s.shape[0] + 1, *s.shape[1:]), s.dtype), x)
    _, kept = forward_shapes(module, how, seen.variables, larger, seen.drew)
    pairs = zip(seen.kept, kept, strict=True)
    copies = [s for s, large in pairs if s.shape == large.shape and s.ndim > 1 and s.size in kernels]
    if copies and other:
        fact = f"{who} keeps {text(copies[0])}, made of its weights, for the backward pass"
        way_out = "Cast weights outside the module, or leave that out."
        raise BadInput(f"{fact}, so {other} would go back through these. {way_out}")
    if copies:
        more = f" and {len(copies) - 3} more" if len(copies) > 3 else ""
        size = sum(copy.size * copy.dtype.itemsize for copy in copies)
        warnings.warn(
            f"{who} keeps copies of its weights for the backward pass ({text(copies[:3])}{more}): {size:,} bytes for "
            "every batch in flight. Training is right all the same: copies cost memory only, and layers that compute "
            "in float32 gain no speed from bfloat16. The reason: dtype='bfloat16' gives a module its kernels in "
            "bfloat16, and a layer without a dtype of its own casts them to float32 when it meets a float32 bias. Give "
            "the layer that dtype, as in flax.linen.Dense(10, dtype=jax.numpy.bfloat16).",
            stacklevel=4,
        )


def check_made_of_weights(who: str, module: nn.Module, how: How, seen: Followed, x: Tree) -> None:
    """Refuses current weights where the closure keeps something that depends on weights and not on the input.

    A layer whose backward pass takes the weights themselves (flax.linen.Dense, Conv) keeps nothing of the kind. One
    that multiplies by a vector of weights does, as JAX keeps it in the shape that it multiplied by: all of flax.linen's
    norms with a scale. The backward pass would then go through the old scale.
    """
    params, extra = split(seen.variables)
    if seen.drew:
        extra["rng"] = jax.ShapeDtypeStruct((2,), jnp.uint32)
    forward = functions(module, optax.identity(), how=how).forward
    paths, others = list(checkpoint.flatten(params)), len(jax.tree.leaves(extra))
    found = dependences(lambda *arguments: forward(*arguments)[2], params, extra, x)
    for kept, needed in zip(seen.kept, found, strict=True):
        weights = [paths[number] for number in sorted(needed) if number < len(paths)]
        of_input = any(number >= len(paths) + others for number in needed)
        if weights and not of_input and jnp.issubdtype(kept.dtype, jnp.inexact):
            raise BadInput(
                f"{who} keeps {text(kept)}, made of its weights {', '.join(weights)} alone, for the backward pass, "
                f"so {CURRENT} would go back through the old ones. Use weights=stashed, or layers that keep no such "
                "thing: fdg_jax.layers.BatchNorm for a batch norm, flax.linen's other norms with use_scale=False."
            )


def check_variables(k: int, needed: Tree, given: Mapping, x: Tree) -> None:
    if not isinstance(given, Mapping):
        what = type(given).__name__
        raise BadInput(f'the variables of stage k={k} are of type {what}, not a dictionary {{"params": ...}}.')
    for leaf in jax.tree.leaves(dict(given)):
        check_usable(f"the variables of stage k={k}", leaf)
    want, have = checkpoint.flatten(needed), checkpoint.flatten(dict(given))
    for path in sorted(want.keys() | have.keys()):
        a, b = want.get(path), have.get(path)
        if b is not None and not hasattr(b, "dtype"):
            raise BadInput(f"the given {path} of stage k={k} is a {type(b).__name__}, not an array.")
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            raise BadInput(f"stage k={k} takes {text(x)}, so its {path} is {text(a)}, but the given one is {text(b)}.")

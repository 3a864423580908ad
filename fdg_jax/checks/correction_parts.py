"""Traces the functions of a correction with a stage's shapes, so that a mistake is reported before anything runs."""

import inspect
from typing import Any

import jax
import optax

from fdg_jax.checks.arguments import is_optimizer
from fdg_jax.corrections.interface import Correction, CorrectionSpec
from fdg_jax.errors import BadInput
from fdg_jax.options.fields import said
from fdg_jax.stages.own_modules import first_update
from fdg_jax.stages.shapes import describe
from fdg_jax.stages.stage import Stage
from fdg_jax.stages.tracing import trace_or_refuse

Tree = Any
WAY_OUT = "fdg_jax.corrections.interface.Correction says what each function takes and returns."


def check(
    kind: CorrectionSpec, correction: Correction, k: int, optimizer: optax.GradientTransformation, params: Tree
) -> None:
    """Traces a correction's functions for a stage, without computing anything.

    A checkpoint contains the correction's state, so the state must keep its structure, shapes and dtypes from `init`
    on.

    Arguments:
        kind: the correction's spec. correction: its functions for stage k.
        optimizer: the stage's optimizer. params: shapes of the stage's parameters.

    Raises:
        BadInput: a function fails, or returns arrays of a wrong structure, shape or dtype.
    """
    who = f"correction {kind.name}, stage k={k}"
    if correction.before is not None and not is_optimizer(correction.before):
        raise BadInput(f"{who}: `before` is {type(correction.before).__name__}, not an optax transformation. {WAY_OUT}")
    if correction.before or correction.optimizer:
        chain = run(who, "optimizer", correction.around, optimizer)
        if not is_optimizer(chain):
            raise BadInput(f"{who}: `optimizer` returns {type(chain).__name__}, not an optax transformation. {WAY_OUT}")
        run(who, "the corrected optimizer", first_update, chain, params)
    state = run(who, "init", jax.eval_shape, correction.start, params)
    for name, takes, returns in (
        ("forward", (params, state), params),
        ("backward", (params, state), params),
        ("updated", (params, params, state), state),
        ("drained", (state,), state),
    ):
        if function := getattr(correction, name):
            made = run(who, name, jax.eval_shape, function, *takes)
            refuse_others(f"{who}: `{name}` returns", made, returns)
    if correction.gradient:
        made = run(who, "gradient", jax.eval_shape, correction.gradient, params, params, params, state)
        if not isinstance(made, tuple) or len(made) != 2:
            raise BadInput(f"{who}: `gradient` does not return (gradients, state). {WAY_OUT}")
        refuse_others(f"{who}: `gradient` returns gradients,", made[0], params)
        refuse_others(f"{who}: `gradient` returns a state,", made[1], state)


def run(who: str, name: str, function: Any, *arguments: Any) -> Any:
    """The result of a function of the correction. Raises BadInput if the function fails."""
    return trace_or_refuse(f"{who}: {name} fails.", function, *arguments, way_out=WAY_OUT)


def refuse_others(who: str, made: Tree, expected: Tree) -> None:
    """Raises BadInput if arrays differ from the expected structure, shapes or dtypes. who: the message's beginning."""
    keep = "Gradients, weights and states must keep their structure, shapes and dtypes."
    if jax.tree.structure(made) != jax.tree.structure(expected):
        there, here = (len(jax.tree.leaves(tree)) for tree in (expected, made))
        how = f"of {here} arrays, not of {there}" if here != there else "with other keys or types around its arrays"
        raise BadInput(f"{who} a tree {how}. {keep}")
    for (path, here), there in zip(jax.tree_util.tree_leaves_with_path(made), jax.tree.leaves(expected), strict=True):
        if (here.shape, here.dtype) != (there.shape, there.dtype):
            at = f"{jax.tree_util.keystr(path)} of " if path else ""
            raise BadInput(f"{who} {at}{describe(here)}, where {describe(there)} is needed. {keep}")


def check_correctable(k: int, correction: Correction, stage: type[Stage], weights: str) -> None:
    """Raises BadInput if the correction changes a forward or backward pass that it cannot change in this stage.

    Arguments:
        k: the stage's number. correction: the correction of its late gradients.
        stage: the class of the method's stages. weights: the weights of backward passes, "stashed" or "current".
    """
    if correction.backward and weights != "current":
        raise BadInput(
            f"the correction of stage k={k} changes the weights of backward passes, but with {weights} weights a "
            f"backward pass uses those of its forward pass. Add {said('weights', 'current')}."
        )
    parts = (
        *(("forward", "forward", correction.forward), ("backward", "backward", correction.gradient)),
        *(("backward", "backward", correction.backward), ("backward", "backward_params", correction.backward)),
    )
    for what, member, part in parts:
        if part and getattr(stage, member) is not getattr(Stage, member):
            raise BadInput(
                f"the correction changes the {what} pass of stage k={k}, but the method's stage class {stage.__name__} "
                "defines that pass itself. Use a method with ordinary stages, such as fdg or ddg."
            )
    if correction.gradient and not takes_old_weights(stage):
        raise BadInput(
            f"the correction of stage k={k} needs the weights of the forward pass, but the method's stage class "
            f"{stage.__name__} does not pass them on. Write def use(self, grads, version, then=None) in that class."
        )


def takes_old_weights(stage: type[Stage]) -> bool:
    """Whether the stages' `use` has an argument for the weights of the forward pass, after the gradient and its
    version."""
    try:
        inspect.signature(stage.use).bind(None, None, None, None)
    except TypeError:
        return False
    return True

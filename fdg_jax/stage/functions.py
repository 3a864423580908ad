"""A Flax module as pure functions: forward, backward, update, evaluate. All engines and methods share them."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from fdg_jax.corrections.interface import NONE, Correction
from fdg_jax.machine import jax_internals
from fdg_jax.stage.precision import Precision

Array = jax.Array
Tree = Any
Loss = Callable[[Tree, Tree], Array]


class StageState(NamedTuple):
    """Everything of stage k that training changes.

    params: the weights. extra: the module's other collections ("batch_stats", ...) and, for modules that draw
    random numbers (dropout), "rng", a key that every forward pass splits. opt_state: optax's. own: what a method
    adds to a stage and no forward or backward pass of the network touches (a synthesizer, feedback weights).
    correction: what a correction of late gradients remembers.
    """

    params: Tree
    extra: Tree
    opt_state: Tree
    own: Tree = ()
    correction: Tree = ()


class How(NamedTuple):
    """How a stage computes what its module says: in which precision, and whether the backward pass computes the
    activations again (`remat`), so that a closure holds none."""

    precision: Precision = Precision()
    remat: bool = False


AS_WRITTEN = How()  # in the dtypes that arrays have, activations remembered


class Spec(NamedTuple):
    """Stage k before it exists: what it is made of, and the shapes it meets (jax.ShapeDtypeStruct).

    optimizer: the user's chain behind the stage's shrink. loss: the user's; stage K ends in it, others may have a
    local use for it. variables: the module's own, {"params": ..., "batch_stats": ..., "rng": ...}. x, y: what the
    stage takes and gives; outputs: what stage K gives; value: what the loss gives. key: for what the method
    adds. options: the method's, by the names of the flags. how: precision, and whether activations are computed again.
    guard: no update by gradients that are not finite (fdg_jax.stage.nonfinite). correction: what is done about late
    ones; `optimizer` has its part of it already.
    """

    k: int
    K: int
    module: nn.Module
    optimizer: optax.GradientTransformation
    loss: Loss
    variables: dict[str, Tree]
    x: Tree
    y: Tree
    outputs: Tree
    labels: Tree
    value: Tree
    key: Array
    options: Mapping[str, Any]
    how: How = AS_WRITTEN
    guard: bool = False
    correction: Correction = NONE

    @property
    def last(self) -> bool:
        return self.k == self.K


class Functions(NamedTuple):
    """A stage as pure functions; `labels` is None where the stage has no use for them.

    forward(params, extra, x, labels) -> (messages, extra, closure): training mode; messages {"x": y}, or {"loss": ...}
        of stage K; closure comes stripped of its arguments
    backward(closure, params, x, dy) -> (grads, dx): at the stashed activations and the given weights; dy None is the
        loss's own cotangent, 1
    update(params, opt_state, grads) -> (params, opt_state)
    outputs(params, extra, x) -> y: evaluation mode, without the loss
    """

    forward: Callable[..., tuple[dict[str, Tree], Tree, Any]]
    backward: Callable[..., tuple[Tree, Tree]]
    update: Callable[..., tuple[Tree, Tree]]
    outputs: Callable[..., Tree]


def takes_train(module: nn.Module) -> bool:
    """Whether the module's __call__ distinguishes training from evaluation by an argument called `train`."""
    return "train" in inspect.signature(type(module).__call__).parameters


def init_variables(module: nn.Module, key: Array, x: Tree) -> dict[str, Tree]:
    """The module's Flax variables {"params": ..., "batch_stats": ...} for an input like x."""
    flag: dict[str, Any] = {"train": False} if takes_train(module) else {}
    return dict(module.init({"params": key, "dropout": key}, x, **flag))


def draws_random_numbers(module: nn.Module, variables: Mapping[str, Tree], x: Tree) -> bool:
    """Whether a training forward pass asks for a random key (found by tracing, nothing runs)."""
    flag: dict[str, Any] = {"train": True} if takes_train(module) else {}
    try:
        jax.eval_shape(lambda v, x: module.apply(v, x, mutable=True, **flag), dict(variables), x)
    except flax.errors.InvalidRngError:
        return True
    return False


def applied(module: nn.Module, how: How = AS_WRITTEN) -> Callable[..., tuple[Tree, dict[str, Tree]]]:
    """apply(params, extra, x, train) -> (y, extra) of a module; params and x in the precision it computes in, y in that
    which the stage hands on."""
    flag = takes_train(module)

    def apply(params, extra, x, train: bool):
        collections = {name: value for name, value in extra.items() if name != "rng"}
        arguments: dict[str, Any] = {"train": train} if flag else {}
        variables = {"params": params, **collections}
        if not train:
            # A module may write into a collection of its own (count its calls, say): in evaluation that is dropped.
            # Not into batch statistics: a layer that does so does not know that it is evaluated, and is told.
            writable = [name for name in collections if name != "batch_stats"]
            y = module.apply(variables, x, mutable=writable or False, **arguments)
            return how.precision.outputs(y[0] if writable else y), extra
        rng = {}
        if "rng" in extra:
            rng["rng"], arguments["rngs"] = jax.random.split(extra["rng"])
            arguments["rngs"] = {"dropout": arguments["rngs"]}
        y, changed = module.apply(variables, x, mutable=list(collections), **arguments)
        return how.precision.outputs(y), {**dict(changed), **rng}

    return apply


def functions(
    module: nn.Module,
    optimizer: optax.GradientTransformation,
    loss: Loss | None = None,
    loss_dtype: Any = None,
    how: How = AS_WRITTEN,
) -> Functions:
    """The pure functions of a stage; `loss` and the dtype of what it returns are given for stage K only."""
    apply = applied(module, how)

    def objective(params, extra, x, labels):
        y, changed = apply(params, extra, x, train=True)
        value = y if loss is None else loss(y, labels)
        return value, ({"x" if loss is None else "loss": value}, changed)

    return differentiated(objective, ended(apply, how), optimizer, loss_dtype, how)


def ended(apply: Callable, how: How) -> Callable[..., Tree]:
    """outputs(params, extra, x) -> y of an apply, in evaluation mode."""
    weights, inputs = how.precision.weights, how.precision.inputs
    return lambda params, extra, x: apply(weights(params), extra, inputs(x), train=False)[0]


def differentiated(
    objective: Callable,
    outputs: Callable,
    optimizer: optax.GradientTransformation,
    loss_dtype: Any = None,
    how: How = AS_WRITTEN,
    weights: Callable[[Tree], Tree] | None = None,
) -> Functions:
    """The functions of a stage that goes back from the value of an objective:
    objective(params, extra, x, labels) -> (value, (messages, extra)).

    weights: what the objective takes of the stage's params, `how.precision.weights` of them all by default.
    """
    precision, weights = how.precision, weights or how.precision.weights

    def forward(params, extra, x, labels=None):
        run = lambda params, x: objective(params, extra, x, labels)  # noqa: E731
        run = jax.checkpoint(run) if how.remat else run
        _, closure, (messages, extra) = jax.vjp(run, weights(params), precision.inputs(x), has_aux=True)
        return messages, extra, jax_internals.strip(closure)

    def backward(closure, params, x, dy):
        pull = jax_internals.bind(closure, weights(params), precision.inputs(x))
        grads, dx = pull(jnp.ones((), loss_dtype) if dy is None else dy)
        return precision.gradients(grads, params), precision.gradients(dx, x)

    def update(params, opt_state, grads):
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    return Functions(forward, backward, update, outputs)


def made(spec: Spec) -> tuple[Functions, StageState]:
    """The functions and the first state of an ordinary stage: the module, and on stage K the loss."""
    params, extra = split(spec.variables)
    loss, loss_dtype = (spec.loss, spec.value.dtype) if spec.last else (None, None)
    state = StageState(params, extra, spec.optimizer.init(params))
    return functions(spec.module, spec.optimizer, loss, loss_dtype, spec.how), state


def split(variables: Mapping[str, Tree]) -> tuple[Tree, dict[str, Tree]]:
    """(params, the other collections) of Flax variables."""
    return variables.get("params", {}), {name: value for name, value in variables.items() if name != "params"}


def flax_variables(params: Tree, extra: Mapping[str, Tree]) -> dict[str, Tree]:
    """The inverse of `split`, without the random key that a stage keeps beside the module's collections."""
    return {"params": params, **{name: value for name, value in extra.items() if name != "rng"}}

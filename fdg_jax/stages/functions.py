"""A Flax module as pure functions: forward pass, backward pass, evaluation. Engines and methods share them.

fdg_jax.stages.update applies gradients to the weights.
"""

import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict

from fdg_jax.corrections.interface import NONE, Correction
from fdg_jax.machine import jax_internals
from fdg_jax.stages.precision import Precision
from fdg_jax.stages.reported import METRICS, joined, taken, with_sown
from fdg_jax.stages.shapes import examples
from fdg_jax.stages.switches import LOSSES, arguments

Array = jax.Array
Tree = Any
Loss = Callable[..., Array]
DROPOUT, LOSS = "dropout", "loss"  # random streams
LOSS_KEY = "key of the loss"  # among the collections that `make_apply` returns
INITIAL = nn.DenyList(("intermediates", LOSSES, METRICS))  # the collections that initialising a module makes


class StageState(NamedTuple):
    """Everything of a stage that training changes.

    params: the weights.
    extra: the module's other collections ("batch_stats", ...). For a module that draws random numbers (dropout), also
        "rng", a key that every forward pass splits. Sown values are not kept.
    opt_state: the state of the optimizer. `UpdateRule.start` makes this and `correction`.
    own: what a method adds to the stage, beside the network (a synthesizer, feedback weights).
    correction: the state of the correction of late gradients.
    """

    params: Tree
    extra: Tree
    opt_state: Tree = ()
    own: Tree = ()
    correction: Tree = ()


class ComputeOptions(NamedTuple):
    """How a stage computes its module.

    precision: the dtypes that it computes in.
    remat: whether the backward pass recomputes the activations, so that the VJP closure holds none.
    streams: the random streams that the module draws from, if it draws random numbers.
    sows: whether the module sows losses in training.
    draws: whether the module draws random numbers in evaluation, too.
    loss_draws: whether the stage has a loss that takes a random key.
    """

    precision: Precision = Precision()
    remat: bool = False
    streams: tuple[str, ...] = (DROPOUT,)
    sows: bool = False
    draws: bool = False
    loss_draws: bool = False


DEFAULT_COMPUTE = ComputeOptions()  # in the dtypes that the arrays have; activations are kept


class Spec(NamedTuple):
    """What stage k is made from, with shapes as jax.ShapeDtypeStruct.

    k, K: the stage's number from 1, and the number of stages.
    module: the Flax module.
    optimizer: the user's optax chain, with what the correction adds to it.
    loss: the user's loss(outputs, labels) -> scalar, or loss(outputs, labels, key) if `compute.loss_draws`. Stage K
        computes it; a method may use it in other stages, too.
    report: the user's unchanged function, which returns the loss of a batch or (loss, {name: number}).
    variables: the module's initial variables {"params": ..., "batch_stats": ..., "rng": ...}.
    x, y: the stage's inputs and outputs.
    outputs, labels, value, reported: the outputs of stage K, the labels, the loss, and the result of `report`.
    key: a random key for what the method adds.
    options: the method's options, by name.
    compute: how the module is computed.
    guard: whether updates with non-finite gradients are refused.
    norms: whether gradients are measured.
    correction: what is done about late gradients.
    ema: the decay of the exponential moving average of the stage's weights; None: no average is kept.
    """

    k: int
    K: int
    module: nn.Module
    optimizer: optax.GradientTransformation
    loss: Loss
    report: Callable[..., Tree]
    variables: dict[str, Tree]
    x: Tree
    y: Tree
    outputs: Tree
    labels: Tree
    value: Tree
    reported: Tree
    key: Array
    options: Mapping[str, Any]
    compute: ComputeOptions = DEFAULT_COMPUTE
    guard: bool = False
    correction: Correction = NONE
    norms: bool = False
    ema: float | None = None

    @property
    def last(self) -> bool:
        """Whether this is stage K, which computes the loss."""
        return self.k == self.K


class SownLosses(Exception):
    """A module sows losses, but `ComputeOptions.sows` is False."""


class Functions(NamedTuple):
    """A stage as pure functions. `labels` is None if the stage does not need them.

    forward(params, extra, x, labels) -> (messages, extra, closure): in training mode. messages: {"x": outputs}, or
        {"loss": what the loss function returned} for stage K. closure: the VJP closure, without params and x, which
        `backward` takes again.
    backward(closure, params, x, dy) -> (grads, dx): uses the activations in the closure and the given weights. dy: the
        cotangent of the outputs; None stands for the loss's own cotangent, 1.
    outputs(params, extra, x, key=None) -> y: in evaluation mode, without the loss. key: a random key, for a module that
        draws in evaluation.
    """

    forward: Callable[..., tuple[dict[str, Tree], Tree, Any]]
    backward: Callable[..., tuple[Tree, Tree]]
    outputs: Callable[..., Tree]


def init_variables(module: nn.Module, key: Array, x: Tree) -> dict[str, Tree]:
    """Initialises a module.

    Arguments:
        module: the Flax module.
        key: a JAX random key.
        x: an example of its inputs.

    Returns: its Flax variables {"params": ..., "batch_stats": ...}.
    """
    given, named = arguments(module, taken(x)[0], train=False)
    rngs = {"params": key, DROPOUT: key}
    first = module.init(rngs, *given, mutable=INITIAL, **named)
    return without_sown(first, lambda: module.apply(first, *given, mutable=INITIAL, rngs=rngs, **named)[1])


def without_sown(variables: Any, again: Callable[[], Any]) -> dict[str, Tree]:
    """Flax variables without the collections that the module has sown.

    By default `sow` appends to a tuple, so a sown value is a tuple with one entry after `init`, and with more entries
    after every call. Any other tuple of the module keeps its length; this tells the two apart. again: returns the
    variables after another call.
    """

    def tuples(collection: Tree) -> bool:
        values: list[Any] = list(flatten_dict(collection).values()) if isinstance(collection, Mapping) else []
        return all(isinstance(value, tuple) for value in values) and any(len(value) == 1 for value in values)

    sown = [name for name, collection in variables.items() if tuples(collection)]

    def call() -> None:
        after = again()
        own = [name for name in sown if jax.tree.structure(after[name]) == jax.tree.structure(variables[name])]
        sown[:] = [name for name in sown if name not in own]

    if sown:
        jax.eval_shape(call)
    return {name: collection for name, collection in variables.items() if name not in sown}


def stream_key(key: Array, stream: str) -> Array:
    """The key of a random stream in one forward pass. key: that of the forward pass, which dropout gets unchanged."""
    return key if stream == DROPOUT else jax.random.fold_in(key, zlib.crc32(stream.encode()))


def raw_key(key: Array) -> Array:
    """The data of a random key, as a stage keeps it: uint32, in the shape of JAX's default implementation.

    If the key's own implementation has another shape, bits are drawn from the key.
    """
    default = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    data = jax.random.key_data(key)
    return data if data.shape == default.shape else jax.random.bits(key, default.shape, default.dtype)


def drawing_key(key: Array) -> Array:
    """The first `raw_key` from which a stage's module draws. key: the stage's random key."""
    return raw_key(jax.random.fold_in(key, 1))


def key_shape() -> jax.ShapeDtypeStruct:
    """The shape and dtype of a `raw_key`."""
    return jax.eval_shape(lambda: raw_key(jax.random.key(0)))


def make_apply(
    module: nn.Module, compute: ComputeOptions = DEFAULT_COMPUTE
) -> Callable[..., tuple[Tree, dict[str, Tree]]]:
    """Makes apply(params, extra, x, train, key=None) -> (y, extra) of a module.

    params and x are in the dtypes that the module computes in, y in the dtype that the next stage takes. In training,
    if the module sows losses, extra[LOSSES] is their sum, float32 []. If the stage's loss takes a random key,
    extra[LOSS_KEY] is (key,). key: the stage's random key in an evaluation.
    """

    def apply(params, extra, x, train: bool, key: Any = None):
        collections = {name: value for name, value in extra.items() if name != "rng"}
        x, metrics = taken(x)
        given, named = arguments(module, x, train)
        variables = {"params": params, **collections}
        if not train:
            # A module may write into a collection of its own (to count its calls, say); in evaluation these writes are
            # dropped. Batch statistics are not writable, so Flax refuses a layer that still updates them in evaluation.
            writable = [name for name in collections if name != "batch_stats"]
            rngs = keys(key) if compute.draws and key is not None else None
            y = module.apply(variables, *given, mutable=writable or False, rngs=rngs, **named)
            return compute.precision.outputs(y[0] if writable else y), extra
        rng, rngs = {}, None
        if "rng" in extra:
            rng["rng"], key = jax.random.split(extra["rng"])
            rngs = keys(key)
        y, changed = module.apply(variables, *given, mutable=[*collections, LOSSES, METRICS], rngs=rngs, **named)
        changed = {**dict(changed), **rng}
        reported = changed.pop(METRICS, {})
        sown = jax.tree.leaves(changed.pop(LOSSES, ()))
        if compute.loss_draws:
            changed[LOSS_KEY] = (stream_key(key, LOSS),)
        if compute.sows:
            changed[LOSSES] = sum((jnp.sum(jnp.asarray(value, jnp.float32)) for value in sown), jnp.float32(0))
        elif sown:
            raise SownLosses
        y = compute.precision.outputs(y)
        return (with_sown(y, metrics, reported, examples(x)) if metrics or reported else y), changed

    def keys(key):
        return {stream: stream_key(key, stream) for stream in compute.streams}

    return apply


def functions(
    module: nn.Module, loss: Loss | None = None, loss_dtype: Any = None, compute: ComputeOptions = DEFAULT_COMPUTE
) -> Functions:
    """Makes the pure functions of a stage.

    Arguments:
        module: the Flax module.
        loss: loss(outputs, labels) -> scalar, or (scalar, metrics); for stage K only. It takes a random key, too, if
            `compute.loss_draws`.
        loss_dtype: the dtype of the loss, for stage K only.
        compute: how the module is computed.

    Returns: the functions.
    """
    apply = make_apply(module, compute)

    def objective(params, extra, x, labels):
        y, changed = apply(params, extra, x, train=True)
        sown, key = changed.pop(LOSSES, None), changed.pop(LOSS_KEY, ())
        if loss is None:
            return y if sown is None else (y, sown), ({"x": y}, changed)
        y, metrics = taken(y)
        report = joined(loss(y, labels, *key), metrics)
        return add_sown(loss_of(report), sown), ({"loss": report}, changed)

    return make_functions(objective, make_outputs(apply, compute), loss_dtype, compute)


def loss_of(report: Tree) -> Any:
    """The loss in the result of the user's loss function, which is the loss alone or (loss, metrics)."""
    return report[0] if isinstance(report, tuple | list) else report


def metrics_of(report: Tree) -> dict[str, Array]:
    """The metrics in the result of the user's loss function; {} if there are none."""
    return dict(report[1]) if isinstance(report, tuple | list) else {}


def add_sown(value: Array, sown: Array | None) -> Array:
    """The number that a stage with a loss minimises. sown: the losses that the stage's module has sown, or None."""
    return value if sown is None else value + sown.astype(value.dtype)


def make_outputs(apply: Callable, compute: ComputeOptions) -> Callable[..., Tree]:
    """Makes outputs(params, extra, x, key=None) -> y, the evaluation mode of an `apply` of `make_apply`."""
    weights, inputs = compute.precision.weights, compute.precision.inputs
    return lambda params, extra, x, key=None: apply(weights(params), extra, inputs(x), False, key)[0]


def make_functions(
    objective: Callable,
    outputs: Callable,
    loss_dtype: Any = None,
    compute: ComputeOptions = DEFAULT_COMPUTE,
    weights: Callable[[Tree], Tree] | None = None,
) -> Functions:
    """Makes the functions of a stage whose backward pass starts from the value of an objective.

    Arguments:
        objective: objective(params, extra, x, labels) -> (value, (messages, extra)). For a stage that sows losses and
            has no loss itself, the value is (outputs, sown losses).
        outputs: the stage in evaluation mode, as `make_outputs` makes it.
        loss_dtype: the dtype of the value, if it is a loss.
        compute: how the stage computes.
        weights: turns the stage's params into those that the objective takes; by default `compute.precision.weights`.

    Returns: the functions.
    """
    precision, weights = compute.precision, weights or compute.precision.weights
    sows = compute.sows and loss_dtype is None

    def forward(params, extra, x, labels=None):
        run = lambda params, x: objective(params, extra, x, labels)  # noqa: E731
        run = jax.checkpoint(run) if compute.remat else run
        _, closure, (messages, extra) = jax.vjp(run, weights(params), precision.inputs(x), has_aux=True)
        return messages, extra, jax_internals.strip(closure)

    def backward(closure, params, x, dy):
        pull = jax_internals.bind(closure, weights(params), precision.inputs(x))
        dy = jnp.ones((), loss_dtype) if dy is None else dy
        grads, dx = pull((dy, jnp.float32(1)) if sows else dy)
        return precision.gradients(grads, params), precision.gradients(dx, x)

    return Functions(forward, backward, outputs)


def make_stage_functions(spec: Spec) -> tuple[Functions, StageState]:
    """Makes an ordinary stage: its module and, for stage K, the loss.

    Arguments:
        spec: what the stage is made from.

    Returns: (its functions, its initial state).
    """
    params, extra = split_variables(spec.variables)
    loss, loss_dtype = (spec.report, spec.value.dtype) if spec.last else (None, None)
    return functions(spec.module, loss, loss_dtype, spec.compute), StageState(params, extra)


def split_variables(variables: Mapping[str, Tree]) -> tuple[Tree, dict[str, Tree]]:
    """Splits Flax variables into (params, the other collections)."""
    return variables.get("params", {}), {name: value for name, value in variables.items() if name != "params"}


def flax_variables(params: Tree, extra: Mapping[str, Tree]) -> dict[str, Tree]:
    """The inverse of `split_variables`, without the random key that a stage keeps among the collections."""
    return {"params": params, **{name: value for name, value in extra.items() if name != "rng"}}

"""DFA, direct feedback alignment (Nokland 2016), by stages: the output error goes directly to every stage.

    dy_k = P_k e        e = ∂loss / ∂outputs; P_k: random, and never trained; k < K

The cotangent of the outputs of stage k < K is a fixed random projection of e = ∂loss / ∂outputs [batch, classes]. The
stage runs BP within itself and passes no cotangent down. Forward passes are locked as in BP; all backward passes run at
the same time.
Deviation: Nokland projects the error to every layer; here it is projected to every stage. For sequences [batch, T,
classes], every token's error is projected separately, with the same matrix (our extension). One projection of all T
tokens would mix their errors, and its matrix would be T^2 times as large.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax.errors import BadInput
from fdg_jax.machine import programs
from fdg_jax.methods.interface import Method
from fdg_jax.schedule import Address, Messages, Op, Schedule, Tick, chain, check_K, existing_ops
from fdg_jax.stages.functions import LOSS_KEY, LOSSES, Spec, add_sown, loss_of, make_apply, make_functions, make_outputs
from fdg_jax.stages.reported import joined, taken
from fdg_jax.stages.stage import Stage


def dfa(K: int) -> Schedule:
    """Tick t: batch t goes forward through all stages. Then all stages go backward at the same time.

    Raises:
        BadInput: K is below 1.
    """
    check_K(K)

    def tick(t: int, last: int | None = None) -> Tick:
        return existing_ops([Op(kind, k, t) for kind in "FB" for k in range(1, K + 1)], last)

    return Schedule("dfa", K, tick, (0,) * K, lambda batches: batches, dfa_messages(K))


def dfa_messages(K: int) -> Messages:
    """Activations go up. F of stage K sends the error to every other stage. B sends nothing."""
    ordinary = chain(K)

    def gives(op: Op) -> tuple[Address, ...]:
        if op.kind == "B":
            return ()
        errors = [Address("dy", k, op.batch) for k in range(1, K)] if op.k == K else []
        return (*ordinary.gives(op), *errors)

    return ordinary._replace(gives=gives)


class DirectFeedbackStage(Stage):
    """A stage below K computes its cotangent as a projection of the output error; stage K sends this error.

    The projection matrix is in `state.own`: [classes, size of y per example], or size of y per token for sequences.
    """

    cotangent_down = False
    fixed_lengths = True

    def make(self, spec: Spec):
        """The stage's functions, with a fixed projection matrix. Stage K's functions also return the output error."""
        functions, state = super().make(spec)
        if spec.last:
            return with_error(spec), state
        if not (isinstance(spec.y, jax.ShapeDtypeStruct) and isinstance(spec.outputs, jax.ShapeDtypeStruct)):
            raise BadInput(f"method dfa needs one array of errors and one of activations; stage k={spec.k} has more.")
        first = kept_axes(spec)
        errors, size = int(np.prod(spec.outputs.shape[first:])), int(np.prod(spec.y.shape[first:]))
        # With variance 1 / size, a cotangent has about the same norm as the error.
        dtype = jnp.promote_types(spec.y.dtype, jnp.float32)
        projection = jax.random.normal(spec.key, (errors, size), dtype) / np.sqrt(size)
        return functions, state._replace(own=projection)

    def __init__(self, spec: Spec, place, **options):
        super().__init__(spec, place, **options)
        if spec.last:
            return
        first, shape, dtype = kept_axes(spec), spec.y.shape[1:], spec.y.dtype
        rows = lambda e: e.reshape(*e.shape[:first], -1)  # noqa: E731
        self._project = programs.jit(lambda e, p: (rows(e) @ p).reshape(len(e), *shape).astype(dtype))

    def backward(self, batch: int, dy=None):
        return super().backward(batch, dy if self.spec.last else self._project(dy, self.state.own))


def kept_axes(spec: Spec) -> int:
    """The number of leading axes that errors and activations share: the batch and, for sequences [batch, T, ...], the
    tokens."""
    sequences = spec.y.ndim == spec.outputs.ndim == 3 and spec.y.shape[1] == spec.outputs.shape[1]
    return 2 if sequences else 1


def with_error(spec: Spec):
    """Stage K's functions. The forward pass returns the loss and the gradient of the loss at the outputs."""
    apply, loss, report_of = make_apply(spec.module, spec.compute), spec.loss, spec.report

    def objective(params, extra, x, labels):
        y, changed = apply(params, extra, x, train=True)
        y, metrics = taken(y)
        sown, key = changed.pop(LOSSES, None), changed.pop(LOSS_KEY, ())
        error = jax.grad(lambda y: jnp.sum(loss(y, labels, *key)))(jax.lax.stop_gradient(y))
        report = joined(report_of(y, labels, *key), metrics)
        return add_sown(loss_of(report), sown), ({"loss": report, "dy": error}, changed)

    return make_functions(objective, make_outputs(apply, spec.compute), spec.value.dtype, spec.compute)


METHOD = Method(
    name="dfa",
    summary="direct feedback alignment (Nokland 2016): a random projection of the output error to every stage",
    schedule=dfa,
    stage=DirectFeedbackStage,
)

"""DFA, direct feedback alignment (Nokland 2016), by stages: the error at the outputs goes directly to every stage.

The cotangent of stage k < K is a fixed random projection of e = d loss / d outputs [batch, classes]. The stage goes
backward through itself as in BP, and nothing is passed down. Forward passes stay locked; all backward passes run at
once.
Deviation: Nokland projects to every layer. Here the error reaches every stage once, and within a stage it is BP.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax.errors import BadInput
from fdg_jax.methods.interface import Method
from fdg_jax.schedule import Box, Messages, Op, Schedule, Tick, chain, check_K, existing_ops
from fdg_jax.stage.functions import Spec, make_apply, make_functions, make_outputs
from fdg_jax.stage.stage import Stage


def dfa(K: int) -> Schedule:
    """Tick t: batch t goes forward through all stages, then backward in all of them at once.

    Raises:
        BadInput: K is below 1.
    """
    check_K(K)

    def tick(t: int, last: int | None = None) -> Tick:
        return existing_ops([Op(kind, k, t) for kind in "FB" for k in range(1, K + 1)], last)

    return Schedule("dfa", K, tick, (0,) * K, lambda batches: batches, dfa_messages(K))


def dfa_messages(K: int) -> Messages:
    """Activations go up. F of stage K sends the error to every other stage; no B sends anything."""
    ordinary = chain(K)

    def gives(op: Op) -> tuple[Box, ...]:
        if op.kind == "B":
            return ()
        errors = [Box("dy", k, op.batch) for k in range(1, K)] if op.k == K else []
        return (*ordinary.gives(op), *errors)

    return ordinary._replace(gives=gives)


class DirectFeedbackStage(Stage):
    """A stage below K, whose cotangent is a projection of the error at the outputs; or stage K, which sends the error.

    The projection, [classes, numbers in y per example], is in `own`.
    """

    cotangent_down = False

    def make(self, spec: Spec):
        """The stage's functions, and a fixed projection of the output error; stage K sends that error."""
        functions, state = super().make(spec)
        if spec.last:
            return with_error(spec), state
        if not (isinstance(spec.y, jax.ShapeDtypeStruct) and isinstance(spec.outputs, jax.ShapeDtypeStruct)):
            raise BadInput(f"method dfa projects one array of errors to one of activations; stage k={spec.k} has more.")
        errors, size = int(np.prod(spec.outputs.shape[1:])), int(np.prod(spec.y.shape[1:]))
        # With variance 1 / size, a cotangent is about as long as the error that it is made from.
        dtype = jnp.promote_types(spec.y.dtype, jnp.float32)
        projection = jax.random.normal(spec.key, (errors, size), dtype) / np.sqrt(size)
        return functions, state._replace(own=projection)

    def __init__(self, spec: Spec, place, **options):
        super().__init__(spec, place, **options)
        if spec.last:
            return
        shape, dtype = spec.y.shape[1:], spec.y.dtype
        self._project = jax.jit(lambda e, p: (e.reshape(len(e), -1) @ p).reshape(len(e), *shape).astype(dtype))

    def backward(self, batch: int, dy=None):
        return super().backward(batch, dy if self.spec.last else self._project(dy, self.state.own))


def with_error(spec: Spec):
    """Stage K's functions. Its forward pass returns the gradient of the loss at the outputs, beside the loss."""
    apply, loss = make_apply(spec.module, spec.compute), spec.loss

    def objective(params, extra, x, labels):
        y, changed = apply(params, extra, x, train=True)
        error = jax.grad(lambda y: jnp.sum(loss(y, labels)))(jax.lax.stop_gradient(y))
        value = loss(y, labels)
        return value, ({"loss": value, "dy": error}, changed)

    return make_functions(objective, make_outputs(apply, spec.compute), spec.optimizer, spec.value.dtype, spec.compute)


METHOD = Method(
    name="dfa",
    summary="direct feedback alignment (Nokland 2016): a random projection of the output error to every stage",
    schedule=dfa,
    stage=DirectFeedbackStage,
)

"""DFA, direct feedback alignment (Nokland 2016), by stages: the error at the outputs goes straight to each of them.

Stage k < K takes as its cotangent a fixed random projection of e = d loss / d outputs [batch, classes] and goes back
through itself as in BP; nothing is passed down. The forward pass stays locked; all backward passes run at once.
Deviation: Nokland projects to every layer, here every stage is reached once, inside it is BP.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax.errors import BadInput
from fdg_jax.methods.interface import Method
from fdg_jax.schedule import Box, Messages, Op, Schedule, Tick, chain, check_K, existing_ops
from fdg_jax.stage.functions import Spec, applied, differentiated, ended
from fdg_jax.stage.stage import Stage


def dfa(K: int) -> Schedule:
    """Tick t: batch t forward through all stages, then backward in all of them at once."""
    check_K(K)

    def tick(t: int, last: int | None = None) -> Tick:
        return existing_ops([Op(kind, k, t) for kind in "FB" for k in range(1, K + 1)], last)

    return Schedule("dfa", K, tick, (0,) * K, lambda batches: batches, broadcast(K))


def broadcast(K: int) -> Messages:
    """Activations go up; F of stage K sends the error to every other stage, and no B sends anything."""
    ordinary = chain(K)

    def gives(op: Op) -> tuple[Box, ...]:
        if op.kind == "B":
            return ()
        errors = [Box("dy", k, op.batch) for k in range(1, K)] if op.k == K else []
        return (*ordinary.gives(op), *errors)

    return ordinary._replace(gives=gives)


class Direct(Stage):
    """A stage whose `own` is its projection [classes, numbers in y per example]; stage K gives the error instead."""

    cotangent_down = False

    def make(self, spec: Spec):
        functions, state = super().make(spec)
        if spec.last:
            return with_error(spec), state
        if not (isinstance(spec.y, jax.ShapeDtypeStruct) and isinstance(spec.outputs, jax.ShapeDtypeStruct)):
            raise BadInput(f"method dfa projects one array of errors to one of activations; stage k={spec.k} has more.")
        errors, size = int(np.prod(spec.outputs.shape[1:])), int(np.prod(spec.y.shape[1:]))
        # Variance 1 / size: a cotangent is then about as long as the error it is made of.
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
    """Stage K's functions: beside the loss its gradient at the outputs, which the forward pass already knows."""
    apply, loss = applied(spec.module, spec.how), spec.loss

    def objective(params, extra, x, labels):
        y, changed = apply(params, extra, x, train=True)
        error = jax.grad(lambda y: jnp.sum(loss(y, labels)))(jax.lax.stop_gradient(y))
        value = loss(y, labels)
        return value, ({"loss": value, "dy": error}, changed)

    return differentiated(objective, ended(apply, spec.how), spec.optimizer, spec.value.dtype, spec.how)


METHOD = Method(
    name="dfa",
    summary="direct feedback alignment (Nokland 2016): a random projection of the output error to every stage",
    schedule=dfa,
    stage=Direct,
)

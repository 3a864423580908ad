"""A network trained in plain JAX, as one donated program a step: what the library's steps are compared with."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from fdg_jax import models
from fdg_jax.machine import programs
from fdg_jax.stages.functions import init_variables, make_apply, split_variables

Batch = tuple[Any, Any]


def network(name: str, n: int, size: int) -> tuple[list[nn.Module], Batch]:
    """The blocks of a model, and a random batch: n rows of `size` tokens, or n images of size x size pixels."""
    random = np.random.default_rng(1)
    if models.takes(name) == "tokens":
        x = y = random.integers(0, 256, (n, size), np.int32)
        return models.blocks(name, classes=256), (x, y)
    x = random.normal(size=(n, size, size, 3)).astype(np.float32)
    return models.blocks(name, classes=10), (x, np.arange(n, dtype=np.int32) % 10)


def cross_entropy(outputs: Any, labels: Any) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()


def plain_step(
    blocks: Sequence[nn.Module], batch: Batch, optimizer: optax.GradientTransformation
) -> Callable[[], Any]:
    """Returns a function that makes one step by this batch, and returns the new parameters, collections and state."""
    applied, (given, _) = [make_apply(block) for block in blocks], batch
    params, extras = {}, []
    for i, block in enumerate(blocks):
        params[str(i)], extra = split_variables(init_variables(block, jax.random.key(i), given))
        given, extra = applied[i](params[str(i)], extra, given, train=True)
        extras.append(extra)

    def loss(params, extras, x, y):
        after = []
        for i, apply in enumerate(applied):
            x, extra = apply(params[str(i)], extras[i], x, train=True)
            after.append(extra)
        return cross_entropy(x, y), after

    def step(params, extras, state, x, y):
        grads, extras = jax.grad(loss, has_aux=True)(params, extras, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), extras, state

    program = programs.jit(step, donate_argnums=(0, 1, 2))
    held = [jax.tree.map(jnp.copy, (params, extras, optimizer.init(params)))]

    def run() -> Any:
        held[0] = program(*held[0], *batch)
        return held[0]

    return run

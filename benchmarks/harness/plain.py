"""A network trained in plain JAX by one donated program a step. The library's steps are compared with it."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from fdg_jax import models, split
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
    module = split.Stage(tuple(blocks))
    apply = make_apply(module)
    params, extra = split_variables(init_variables(module, jax.random.key(0), batch[0]))

    def loss(params, extra, x, y):
        outputs, extra = apply(params, extra, x, train=True)
        return cross_entropy(outputs, y), extra

    def step(params, extra, state, x, y):
        grads, extra = jax.grad(loss, has_aux=True)(params, extra, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), extra, state

    program = programs.jit(step, donate_argnums=(0, 1, 2))
    held = [jax.tree.map(jnp.copy, (params, extra, optimizer.init(params)))]

    def run() -> Any:
        held[0] = program(*held[0], *batch)
        return held[0]

    return run

"""Training with delayed gradients in plain JAX on one device, without the engines: what they must agree with.

Back-propagation through the whole network, and a list of old gradients for each stage. tests/oracle.py is the same for
functions; this one takes the stages as modules, so that it needs nothing that is not on the machine.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import optax

Tree = Any


def trained(
    modules: Sequence[Any],
    loss: Callable[[Tree, Tree], jax.Array],
    optimizer: optax.GradientTransformation,
    variables: Sequence[Tree],
    batches: Sequence[tuple[Tree, Tree]],
    delays: Sequence[int],
    beta: float,
) -> tuple[list[Tree], list[float]]:
    """(parameters per stage after all gradients were used, losses).

    Arguments:
        modules: K Flax modules, called with (x, train).
        variables: of each {"params": ..., "batch_stats": ...}.
        delays: how many updates a gradient of stage k = 1..K waits.
        beta: stage k's gradients are multiplied by beta^(K-k).
    """
    K = len(modules)
    params = [each["params"] for each in variables]
    statistics = [{name: value for name, value in each.items() if name != "params"} for each in variables]
    states, waiting, losses = [optimizer.init(each) for each in params], [[] for _ in modules], []

    def objective(params, statistics, x, labels):
        changed = []
        for module, own, kept in zip(modules, params, statistics, strict=True):
            x, new = module.apply({"params": own, **kept}, x, True, mutable=list(kept))
            changed.append(dict(new))
        return loss(x, labels), changed

    def update(params, state, gradient, factor):
        changes, state = optimizer.update(jax.tree.map(lambda g: factor * g, gradient), state, params)
        return optax.apply_updates(params, changes), state

    differentiate, update = jax.jit(jax.value_and_grad(objective, has_aux=True)), jax.jit(update)

    def use_oldest(k: int) -> None:
        params[k], states[k] = update(params[k], states[k], waiting[k].pop(0), beta ** (K - 1 - k))

    for x, labels in batches:
        (value, statistics), gradients = differentiate(params, statistics, x, labels)
        losses.append(float(value))
        for k in range(K):
            waiting[k].append(gradients[k])
            if len(waiting[k]) > delays[k]:
                use_oldest(k)
    for k in range(K):
        while waiting[k]:
            use_oldest(k)
    return params, losses

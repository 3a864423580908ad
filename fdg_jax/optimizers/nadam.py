"""NAdam as in asynchronous Nesterov (Ajanthan et al., 2505.01099): PyTorch's NAdam, b1 = 0.99, decoupled weight decay.

The momentum of optax.nadam is constant. Here the momentum rises with the number n = 1, 2, ... of the update:

    mu_n = b1 (1 - 0.96^(n psi) / 2)
    step = mu_(n+1) M / (1 - mu_1 ... mu_(n+1)) + (1 - mu_n) g / (1 - mu_1 ... mu_n), over sqrt(V / (1 - b2^n)) + eps

M and V are Adam's running means of g and g g. The step looks ahead by one momentum step, as Nesterov's does, so a large
b1 helps against staleness. With b1 = 0.99, M averages over about 100 updates, so training is slow at first. 2505.01099
also has a form without stashed weights, with different learning rates and momenta in each stage; it is not implemented.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


def decoupled(
    scaled: optax.GradientTransformation, learning_rate: optax.ScalarOrSchedule, weight_decay: float, mask: Any
) -> optax.GradientTransformation:
    """Decoupled weight decay, then the learning rate: the last steps of the optimizers in this folder. scaled: the
    transformation of gradients. The other arguments are those of `nadam`."""
    decay = optax.add_decayed_weights(weight_decay, mask) if weight_decay else optax.identity()
    return optax.chain(scaled, decay, optax.scale_by_learning_rate(learning_rate))


PSI = 0.004


class NadamState(NamedTuple):
    """updates: the number of updates so far. product: mu_1 ... mu_n. mu, nu: the running means of g and g g."""

    updates: jax.Array
    product: jax.Array
    mu: Any
    nu: Any


def scale_by_nadam(b1: float = 0.99, b2: float = 0.999, eps: float = 1e-8, psi: float = PSI):
    """Transforms gradients into `step` of the equation above, without learning rate, sign and weight decay.

    Arguments: as for `nadam`.
    """

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return NadamState(jnp.zeros((), jnp.int32), jnp.ones(()), zeros, jax.tree.map(jnp.copy, zeros))

    def momentum(n):
        return b1 * (1 - 0.5 * 0.96 ** (n * psi))

    def update(updates, state, params=None):
        del params
        n = state.updates + 1
        now, after = momentum(n), momentum(n + 1)
        product = state.product * now
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, updates)
        of_mean, of_gradient = after / (1 - product * after), (1 - now) / (1 - product)

        def step(m, v, g):
            return ((of_mean * m + of_gradient * g) / (jnp.sqrt(v / (1 - b2**n)) + eps)).astype(g.dtype)

        return jax.tree.map(step, mu, nu, updates), NadamState(n, product, mu, nu)

    return optax.GradientTransformation(init, update)


def nadam(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.99,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    mask: Any = None,
    psi: float = PSI,
) -> optax.GradientTransformation:
    """PyTorch's NAdam with decoupled weight decay.

    Arguments:
        learning_rate: a number, or an optax schedule.
        b1, b2, eps: as in Adam.
        weight_decay: decoupled, as in AdamW.
        mask: params -> a tree of booleans, which selects the parameters with weight decay; None selects all.
        psi: how fast the momentum rises; 0 keeps it at b1 / 2.
    """
    return decoupled(scale_by_nadam(b1, b2, eps, psi), learning_rate, weight_decay, mask)

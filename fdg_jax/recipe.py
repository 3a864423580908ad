"""The optimizers and learning-rate schedules of the training commands, as optax chains: the paper's, and others.

Each stage has its own optimizer, which sees only the gradients of its stage.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from fdg_jax.optimizers.nadam import nadam
from fdg_jax.optimizers.rotation import OUTSIDE, inner_matrices, rotation

# The optimizers that divide a gradient by its size, so that a constant factor cancels.
SCALE_FREE = ("adamw", "lion", "muon", "nadam", "rotation")
MUON_RMS = 0.2  # rms of Muon's update, about that of AdamW (Liu et al. 2025), so that one learning rate fits both
CLASSIFIER = "dense"  # the name of the classifier in this library's image networks
WSD_DECAY = 0.2  # the fraction of the training during which the learning rate of "wsd" falls


def optimizer(
    name: str,
    learning_rate: optax.ScalarOrSchedule,
    *,
    momentum: float,
    weight_decay: float,
    decay: str = "all",
    b2: float = 0.999,
    clip_norm: float = 0.0,
) -> optax.GradientTransformation:
    """The optimizer of `--optimizer`.

    Arguments:
        name: sgd (`paper_sgd`); adamw, lion or muon from optax; nadam or rotation from fdg_jax.optimizers. muon
            updates all arrays with two axes, including embedding and head, which its author leaves out. It updates
            other arrays, such as convolution kernels, by adamw.
        learning_rate: a number, or an optax schedule, which counts the stage's own updates.
        momentum: the momentum of sgd and muon; beta1 of the other optimizers.
        weight_decay: coupled for sgd, decoupled for the other optimizers.
        decay: the parameters to which weight decay applies: "all", or "matrices" (two axes or more).
        b2: beta2 of all optimizers but sgd; for muon, beta2 of its adamw.
        clip_norm: the norm to which the stage's gradient is clipped; 0 for no clipping.

    Returns: an optax optimizer. Clipping has no state, so checkpoints do not depend on it.
    """
    mask = matrices if decay == "matrices" else None
    if name == "sgd":
        made = paper_sgd(learning_rate, momentum, weight_decay, mask)
    elif name == "muon":
        made = optax.contrib.muon(
            learning_rate, beta=momentum, adam_b1=momentum, adam_b2=b2, weight_decay=weight_decay,
            adam_weight_decay=weight_decay, consistent_rms=MUON_RMS,
        )  # fmt: skip
        made = decaying(made, mask) if mask else made
    else:
        turning = partial(rotation, rotated=partial(inner_matrices, outside={*OUTSIDE, CLASSIFIER}))
        make = {"adamw": optax.adamw, "lion": optax.lion, "nadam": nadam, "rotation": turning}[name]
        made = make(learning_rate, b1=momentum, b2=b2, weight_decay=weight_decay, mask=mask)
    return clipped(made, clip_norm) if clip_norm else made


def matrices(params: Any) -> Any:
    """A mask of the parameters with two axes or more: kernels and embeddings, but not biases and scales of norms."""
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


def decaying(optimizer: optax.GradientTransformation, mask: Any) -> optax.GradientTransformation:
    """Limits an optimizer's weight decay to the parameters that a mask (params -> tree) selects. The optimizer sees
    zeros in place of all other parameters, so it must use parameters for weight decay only. This is needed for optax's
    muon, whose own mask does not reach its adamw. The wrapper adds no state."""

    def update(updates, state, params=None):
        seen = jax.tree.map(lambda leaf, decayed: leaf if decayed else jnp.zeros_like(leaf), params, mask(params))
        return optimizer.update(updates, state, seen)

    return optax.GradientTransformation(optimizer.init, update)


def clipped(optimizer: optax.GradientTransformation, norm: float) -> optax.GradientTransformation:
    """An optimizer whose gradients are clipped to a norm over all its parameters. The wrapper adds no state."""
    clip = optax.clip_by_global_norm(norm)

    def update(updates, state, params=None):
        return optimizer.update(clip.update(updates, optax.EmptyState())[0], state, params)

    return optax.GradientTransformation(optimizer.init, update)


def paper_sgd(
    learning_rate: optax.ScalarOrSchedule, momentum: float = 0.9, weight_decay: float = 5e-4, mask: Any = None
) -> optax.GradientTransformation:
    """The paper's optimizer (Section V), the same as PyTorch's SGD:

    g <- g + weight_decay p;  v <- momentum v + g;  p <- p - learning_rate v

    Arguments:
        learning_rate: a number, or an optax schedule. A schedule counts the stage's own updates, so the learning rate
            belongs to the batch whose gradient is applied. In Eq. 11 it belongs to the batch in the forward pass of the
            same tick. So a change of the learning rate reaches stage k 2(K-k) updates later than in the paper.
        momentum: 0 for none.
        weight_decay: 0 for none. As in the authors' code, it applies to every parameter, including batch norm's.
        mask: params -> a tree of booleans, which selects the parameters with weight decay; None selects all.

    Returns: an optax optimizer.
    """
    return optax.chain(
        optax.add_decayed_weights(weight_decay, mask) if weight_decay else optax.identity(),
        optax.trace(decay=momentum) if momentum else optax.identity(),
        optax.scale_by_learning_rate(learning_rate),
    )


WARMUP_LEARNING_RATE = 0.01
DROPS = (150 / 300, 225 / 300, 275 / 300)
WARMUP = 3 / 300


def warmup_updates(total: float) -> int:
    """The number of warm-up updates in a training of `total` updates."""
    return max(1, round(WARMUP * total))


def learning_rate_changes(base: float, total: float, warmup: bool) -> list[tuple[int, float]]:
    """The paper's schedule for a training of `total` updates: [(first update with this rate, from 0; learning rate)].

    If several rates begin at the same update, the last of them applies.
    """
    drops = [(round(fraction * total), base / 10**n) for n, fraction in enumerate(DROPS, 1)]
    if warmup:
        return [(0, min(base, WARMUP_LEARNING_RATE)), (warmup_updates(total), base), *drops]
    return [(0, base), *drops]


def paper_schedule(base: float, epochs: float, steps_per_epoch: int, warmup: bool) -> optax.Schedule:
    """The paper's learning rate: divided by 10 after 50%, 75% and 91.67% of the epochs (150, 225 and 275 of 300).

    Arguments:
        base: the initial learning rate.
        epochs: the length of the run; 300 in the paper.
        steps_per_epoch: updates in an epoch.
        warmup: whether to begin with 0.01 (or `base` if that is less) for the first 1% of the epochs. The paper does so
            for ResNet-110, ResNet-1202 and K = 3, 4.

    Returns: a function: number of the update, from 0 -> learning rate.
    """
    changes = learning_rate_changes(base, epochs * steps_per_epoch, warmup)
    rates = [optax.constant_schedule(rate) for _, rate in changes]
    return optax.join_schedules(rates, [updates for updates, _ in changes[1:]])


def schedule(name: str, base: float, total: int, warmup_steps: int = 0, final: float = 0.0) -> optax.Schedule:
    """A learning-rate schedule other than the paper's.

    Arguments:
        name: constant, cosine, or wsd (constant, then linear decay in the last fifth of `total`).
        base: the highest learning rate.
        total: the number of batches in all epochs.
        warmup_steps: the number of batches during which the rate rises linearly from `base` / warmup_steps to `base`.
        final: the final learning rate of cosine and wsd, as a fraction of `base`.

    Returns: a function: number of the batch, from 0 -> learning rate.
    """
    left = max(1, total - warmup_steps)
    if name == "cosine":
        rest = optax.cosine_decay_schedule(base, left, final)
    elif name == "wsd":
        falling = max(1, min(left, round(WSD_DECAY * total)))
        rest = optax.linear_schedule(base, base * final, falling, left - falling)
    else:
        rest = optax.constant_schedule(base)
    if not warmup_steps:
        return rest
    return optax.join_schedules([optax.linear_schedule(base / warmup_steps, base, warmup_steps), rest], [warmup_steps])

"""The paper's recipe as optax chains: SGD with momentum and coupled weight decay, and its learning rate.

The shrink beta**(K-k) (Eq. 17) stands first in every stage's chain, before weight decay and momentum, so it is
not a learning-rate scale. The paper multiplies the cotangent that enters each stage by beta, which shrinks the
gradient passed down as well; here the cotangent travels unshrunk and each stage scales by the whole power. The
two are the same in exact arithmetic (tested); this one leaves any user's optax chain as it is.
"""

import optax


def shrink(beta: float, K: int, k: int) -> optax.GradientTransformation:
    """Gradient shrinking of stage k (Eq. 17): g <- beta**(K-k) g. Stage K is exempt; beta = 1 shrinks nothing."""
    return optax.identity() if beta == 1.0 or k == K else optax.scale(beta ** (K - k))


def paper_sgd(
    learning_rate: optax.ScalarOrSchedule, momentum: float = 0.9, weight_decay: float = 5e-4
) -> optax.GradientTransformation:
    """g <- g + weight_decay p;  v <- momentum v + g;  p <- p - learning_rate v  (Section V, as PyTorch's SGD).

    Every parameter decays, BatchNorm's included, as in the authors' code. A schedule counts the stage's own
    updates, so the learning rate belongs to the batch whose gradient is applied (Eq. 11).
    """
    return optax.chain(
        optax.add_decayed_weights(weight_decay) if weight_decay else optax.identity(),
        optax.trace(decay=momentum) if momentum else optax.identity(),
        optax.scale_by_learning_rate(learning_rate),
    )


WARMUP_LEARNING_RATE = 0.01
DROPS = (150 / 300, 225 / 300, 275 / 300)
WARMUP = 3 / 300


def warmup_updates(total: float) -> int:
    """The updates of the warm-up, of a training of `total` updates."""
    return max(1, round(WARMUP * total))


def learning_rate_changes(base: float, total: float, warmup: bool) -> list[tuple[int, float]]:
    """[(updates before it, learning rate)]: where each rate of the paper's schedule begins, of `total` updates.

    If several begin at the same update, the last one counts.
    """
    drops = [(round(fraction * total), base / 10**n) for n, fraction in enumerate(DROPS, 1)]
    if warmup:
        return [(0, min(base, WARMUP_LEARNING_RATE)), (warmup_updates(total), base), *drops]
    return [(0, base), *drops]


def paper_schedule(base: float, epochs: float, steps_per_epoch: int, warmup: bool) -> optax.Schedule:
    """The learning rate of a stage's b-th update: divided by 10 at 150, 225 and 275 of 300 epochs.

    Other lengths keep the proportions (50%, 75%, 91.67%), so `epochs` = 300 is the paper's. `warmup` starts with
    0.01 for 3 of 300 epochs (the paper: ResNet-110, ResNet-1202 and K = 3, 4), or with `base` where that is less.
    """
    changes = learning_rate_changes(base, epochs * steps_per_epoch, warmup)
    rates = [optax.constant_schedule(rate) for _, rate in changes]
    return optax.join_schedules(rates, [updates for updates, _ in changes[1:]])

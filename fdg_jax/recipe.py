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


def paper_schedule(base: float, epochs: float, steps_per_epoch: int, warmup: bool) -> optax.Schedule:
    """The learning rate of a stage's b-th update: divided by 10 at 150, 225 and 275 of 300 epochs.

    Other lengths keep the proportions (50%, 75%, 91.67%), so `epochs` = 300 is the paper's. `warmup` starts with
    0.01 for 3 of 300 epochs (the paper: ResNet-110, ResNet-1202 and K = 3, 4), or with `base` where that is less.
    """
    total = epochs * steps_per_epoch
    drops = [round(fraction * total) for fraction in DROPS]
    pieces = [base, base / 10, base / 100, base / 1000]
    if warmup:
        drops, pieces = [max(1, round(WARMUP * total)), *drops], [min(base, WARMUP_LEARNING_RATE), *pieces]
    return optax.join_schedules([optax.constant_schedule(piece) for piece in pieces], drops)

"""The paper's recipe as optax chains: SGD with momentum and coupled weight decay, and its learning rate."""

import optax


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

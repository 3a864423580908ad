"""The paper's recipe as optax chains: SGD with momentum and coupled weight decay, and its learning-rate schedule."""

import optax


def paper_sgd(
    learning_rate: optax.ScalarOrSchedule, momentum: float = 0.9, weight_decay: float = 5e-4
) -> optax.GradientTransformation:
    """The paper's optimizer (Section V), which is PyTorch's SGD.

    g <- g + weight_decay p;  v <- momentum v + g;  p <- p - learning_rate v

    Arguments:
        learning_rate: a number, or an optax schedule. A schedule counts the stage's own updates, so the learning rate
            belongs to the batch whose gradient is applied (Eq. 11).
        momentum: 0 for none.
        weight_decay: 0 for none. It applies to every parameter, batch norm's included, as in the authors' code.

    Returns: an optax optimizer.
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
    """The paper's learning rate: divided by 10 after 50%, 75% and 91.67% of the epochs (150, 225 and 275 of 300).

    Arguments:
        base: the learning rate at first.
        epochs: the length of the run; 300 in the paper.
        steps_per_epoch: updates in an epoch.
        warmup: whether to begin with 0.01 (or `base` if that is less) for the first 1% of the epochs. The paper does so
            for ResNet-110, ResNet-1202 and K = 3, 4.

    Returns: a function: number of the update, from 0 -> learning rate.
    """
    changes = learning_rate_changes(base, epochs * steps_per_epoch, warmup)
    rates = [optax.constant_schedule(rate) for _, rate in changes]
    return optax.join_schedules(rates, [updates for updates, _ in changes[1:]])

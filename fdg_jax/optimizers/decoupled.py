"""The steps that the optimizers in this folder share: decoupled weight decay, then the learning rate."""

from typing import Any

import optax


def decoupled(
    scaled: optax.GradientTransformation, learning_rate: optax.ScalarOrSchedule, weight_decay: float, mask: Any
) -> optax.GradientTransformation:
    """An optimizer from a transformation of gradients (`scaled`). The other arguments are those of `nadam`."""
    decay = optax.add_decayed_weights(weight_decay, mask) if weight_decay else optax.identity()
    return optax.chain(scaled, decay, optax.scale_by_learning_rate(learning_rate))

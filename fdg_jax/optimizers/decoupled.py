"""What stands behind a scaled gradient in the optimizers of this folder: decoupled weight decay, then the rate."""

from typing import Any

import optax


def decoupled(
    scaled: optax.GradientTransformation, learning_rate: optax.ScalarOrSchedule, weight_decay: float, mask: Any
) -> optax.GradientTransformation:
    """The optimizer. scaled: the transformation of gradients. The others are as those of `nadam`."""
    decay = optax.add_decayed_weights(weight_decay, mask) if weight_decay else optax.identity()
    return optax.chain(scaled, decay, optax.scale_by_learning_rate(learning_rate))

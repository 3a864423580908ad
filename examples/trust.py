"""A correction of late gradients of your own, in one file: trust a gradient less where the weights have moved.

    .venv/bin/python examples/trust.py

A gradient of stage k was taken at the weights `then` of its batch's forward pass, and is used at the weights `now`.
This correction divides each of its numbers by 1 + distrust * |now - then| / mean of |now - then|. It is no published
method, but shows what an idea of your own looks like. A correction may also change the weights of the forward pass,
remember something, or wrap the optimizer (fdg_jax/corrections/interface.py). `make` is called for stages with late
gradients only. All commands take this file: `--correct ./examples/trust.py --distrust 1`.
"""

import argparse
import dataclasses

from fdg_jax.corrections.interface import Correction, CorrectionSpec, Late
from fdg_jax.errors import BadInput
from fdg_jax.options.fields import option


@dataclasses.dataclass(frozen=True)
class Options:
    distrust: float = option(1.0, "trust: how much less a gradient counts for each mean distance that a weight moved.")

    def __post_init__(self):
        if self.distrust < 0:
            raise BadInput(f"distrust={self.distrust}: it cannot be negative. Use 0, which changes nothing, or more.")


def make(late: Late, distrust: float) -> Correction:
    import jax  # here, so that --help does not wait for JAX
    import jax.numpy as jnp

    def trusted(gradient, then, now):
        moved = jnp.abs(now - then)
        mean = moved.mean()
        return gradient / (1 + distrust * jnp.where(mean > 0, moved / mean, 0))

    def gradient(grads, then, now, state):  # traced by JAX, in the program of the stage's update
        return jax.tree.map(trusted, grads, then, now), state

    return Correction(gradient=gradient)


SUMMARY = "less of a gradient where weights have moved"
CORRECTION = CorrectionSpec(name="trust", summary=SUMMARY, make=make, options=Options)


def trained(epochs, **options):
    """(test error in %, staleness) of a small network on scikit-learn's digits, in four stages."""
    import flax.linen as nn
    import jax
    import numpy as np
    import optax
    from sklearn.datasets import load_digits

    import fdg_jax

    def loss(outputs, labels):
        return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()

    images, labels = load_digits(return_X_y=True)
    images, labels, rng = (images / 16).astype(np.float32), labels.astype(np.int32), np.random.default_rng(0)
    stages = [*(nn.Sequential([nn.Dense(64), nn.relu]) for _ in range(3)), nn.Dense(10)]
    pipeline = fdg_jax.Pipeline(stages, loss, optax.sgd(0.02, momentum=0.9), **options)
    pipeline.init(jax.random.key(0), (images[:50], labels[:50]))
    for _ in range(epochs):
        for chosen in rng.permutation(1500).reshape(-1, 50):
            pipeline.step((images[chosen], labels[chosen]))
    pipeline.drain()
    return pipeline.evaluate([(images[1500:], labels[1500:])]).error_percent, pipeline.staleness


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--epochs", type=int, default=10)
    epochs = flags.parse_args().epochs
    import fdg_jax

    fdg_jax.emulate_cpu(4)
    asked = {"none": {}, "beta=0.5": {"beta": 0.5}}
    asked |= {f"trust, distrust={d}": {"correct": CORRECTION, "distrust": d} for d in (0.5, 1.0)}
    for name, options in asked.items():
        error, staleness = trained(epochs, **options)
        print(f"{name:20} staleness {staleness}, test error {error:.1f}%")
    print("One seed and 297 test images: differences of a point or two are chance. Repeat before you believe.")


if __name__ == "__main__":
    main()

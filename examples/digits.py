"""A classifier of handwritten digits, cut into two stages that train at the same time and never wait for each other.

    .venv/bin/python examples/digits.py

The network is a list of blocks. `split="balanced"` cuts it into K=2 stages by their FLOPs, one device each. Every
stage but the last uses gradients of earlier batches; beta shrinks them. BP in the same loop is there for comparison. At
the end the pipeline gives its weights as one Flax dictionary, which plain Flax uses without the pipeline.
"""

import argparse

import flax.linen as nn
import jax
import numpy as np
import optax
from sklearn.datasets import load_digits

import fdg_jax


class Convolution(nn.Module):
    channels: int

    @nn.compact
    def __call__(self, x, train):  # `train` is True in training and False in evaluation: the pipeline sets it
        x = nn.Conv(self.channels, (3, 3), use_bias=False)(x)
        return nn.relu(nn.BatchNorm(use_running_average=not train)(x))


class Scores(nn.Module):
    @nn.compact
    def __call__(self, x):  # no `train`: it makes no difference here
        return nn.Dense(10)(x.mean((1, 2)))


BLOCKS = [Convolution(16), Convolution(32), Convolution(32), Convolution(32), Scores()]


def digits():
    """1,797 images of 8x8 pixels, which come with scikit-learn: ((images, labels) for training, (images, labels) for
    testing)."""
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1), labels.astype(np.int32)
    return (images[:1500], labels[:1500]), (images[1500:], labels[1500:])


def batches(images, labels, epochs, size=50):
    rng = np.random.default_rng(0)
    for _ in range(epochs):
        for chosen in rng.permutation(len(images)).reshape(-1, size):
            yield images[chosen], labels[chosen]


def loss(outputs, labels):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()


def trained(method, epochs, **options):
    """The pipeline after so many epochs, when every batch has been used."""
    training, testing = digits()
    optimizer = optax.sgd(optax.cosine_decay_schedule(0.1, 30 * epochs), momentum=0.9)
    pipeline = fdg_jax.Pipeline(BLOCKS, loss, optimizer, method, split="balanced", K=2, **options)
    pipeline.init(jax.random.key(0), (training[0][:50], training[1][:50]))
    for batch in batches(*training, epochs):
        pipeline.step(batch)  # returns before anything is computed
    pipeline.drain()
    losses = [one.loss for one in pipeline.losses(wait=True)]
    result = pipeline.evaluate([testing])
    print(
        f"{method:3}  stage 2 begins at block {pipeline.cuts}, staleness {pipeline.staleness}, "
        f"loss {losses[0]:.2f} -> {losses[-1]:.3f}, test error {result.error_percent:.1f}%"
    )
    return pipeline


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--epochs", type=int, default=12)
    epochs = flags.parse_args().epochs
    fdg_jax.emulate_cpu(2)  # without accelerators: two devices, before JAX computes anything
    trained("bp", epochs)
    pipeline = trained("fdg", epochs, beta=0.5)
    images = digits()[1][0]
    uncut = fdg_jax.split.whole(BLOCKS)  # a Flax module like any other
    logits = uncut.apply(pipeline.export(whole=True), images, train=False)
    apart = np.abs(logits - pipeline.predict(images)).max()
    print(f"plain Flax with the exported weights: logits at most {apart:.0e} apart")


if __name__ == "__main__":
    main()

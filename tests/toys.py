"""A run of the training command that takes seconds, and a stage in which something can go wrong."""

from collections import deque
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from small import CLASSES, Part

CALLS: deque[Callable[[], object]] = deque()  # what the next forward passes of a Troubled stage do
WORDS = "--model resnet8 --dataset digits --split 1,2 --K 3 --batch-size 8 --epochs 1 --no-tensorboard"  # 8 batches


def trouble(x):
    if CALLS:
        CALLS.popleft()()
    return np.float32(0)


class Troubled(nn.Module):
    """A stage whose forward pass in training asks the host, which may take its time."""

    width: int

    @nn.compact
    def __call__(self, x, train: bool):
        y = Part(self.width)(x, train)
        added = jax.pure_callback(trouble, jax.ShapeDtypeStruct((), np.float32), jax.lax.stop_gradient(x[0, 0]))
        return y.at[0, 0].add(added) if train else y


class Flat(nn.Module):
    """Images as vectors."""

    @nn.compact
    def __call__(self, x, train: bool):
        return jnp.tanh(nn.Dense(8)(x.reshape(len(x), -1)))


def small_command(monkeypatch) -> None:
    """Makes the command train three small blocks, the second one Troubled, on 64 images of noise."""
    from fdg_jax import data, models

    x = np.random.default_rng(0).integers(0, 256, (64, 4, 4, 3)).astype(np.uint8)
    y = np.arange(64, dtype=np.int32) % CLASSES
    images = {"train_images": x, "train_labels": y, "test_images": x[:32], "test_labels": y[:32]}
    digits = data.load("digits")._replace(**images)
    monkeypatch.setattr(data, "load", lambda *_: digits)
    monkeypatch.setattr(models, "blocks", lambda name, classes=10: [Flat(), Troubled(12), Part(classes)])

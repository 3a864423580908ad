"""CIFAR-10: 50,000 training and 10,000 test photographs of 32x32 pixels in 10 classes."""

from __future__ import annotations

from fdg_jax.data import Dataset, cifar, prepared

CIFAR10 = cifar.Cifar(
    prepared.Expected("cifar10", train=50_000, test=10_000, classes=10),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)


def load(data_dir=None) -> Dataset:
    return cifar.load(CIFAR10, data_dir)

"""CIFAR-100: 50,000 training and 10,000 test photographs of 32x32 pixels in 100 (fine) classes."""

from __future__ import annotations

from fdg_jax.data import Dataset, cifar, prepared

CIFAR100 = cifar.Cifar(
    prepared.Expected("cifar100", train=50_000, test=10_000, classes=100),
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)


def load(data_dir=None) -> Dataset:
    return cifar.load(CIFAR100, data_dir)

"""CIFAR-10: 50,000 training and 10,000 test photographs of 32x32 pixels in 10 classes.

Deviation: images are divided by the standard deviations of the training pixels, 0.2470, 0.2435 and 0.2616. The FDG
    authors' code has 0.2023, 0.1994 and 0.2010 (probably means over images of each image's deviation), so its inputs
    are 1.22 to 1.30 times as large. For CIFAR-100 both codes have the same numbers.
"""

from fdg_jax.data import cifar, download
from fdg_jax.data.arrays import Expected
from fdg_jax.data.dataset import Dataset

CIFAR10 = cifar.Cifar(
    Expected("cifar10", train=50_000, test=10_000, classes=10),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    download=download.Download(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        bytes=170_052_171,
        sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    test=("test_batch.bin",),
)


def load(data_dir=None) -> Dataset:
    """Loads CIFAR-10; see `fdg_jax.data.load`."""
    return cifar.load(CIFAR10, data_dir)

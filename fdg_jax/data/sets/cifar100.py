"""CIFAR-100: 50,000 training and 10,000 test photographs of 32x32 pixels in 100 (fine) classes."""

from fdg_jax.data import cifar, download
from fdg_jax.data.arrays import Expected
from fdg_jax.data.dataset import Dataset

CIFAR100 = cifar.Cifar(
    Expected("cifar100", train=50_000, test=10_000, classes=100),
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    download=download.Download(
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        bytes=168_513_733,
        sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    ),
    train=("train.bin",),
    test=("test.bin",),
    label_bytes=2,  # coarse, fine
)


def load(data_dir=None) -> Dataset:
    """Loads CIFAR-100; see `fdg_jax.data.load`."""
    return cifar.load(CIFAR100, data_dir)

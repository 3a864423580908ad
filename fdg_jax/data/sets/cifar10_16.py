"""CIFAR-10 with 16x16 pixels, each the mean of 2x2 pixels: a quarter of the arithmetic, for experiments on a CPU.

Each load makes the images from CIFAR-10, so directories, downloads and errors are CIFAR-10's. The means are rounded in
integer arithmetic, halves upwards, so the bytes are the same on every machine.
"""

import numpy as np

from fdg_jax.data.dataset import Dataset
from fdg_jax.data.sets import cifar10

# `arrays.training_statistics` of the 50,000 training images (12,800,000 pixels), to four places.
MEAN = (0.4919, 0.4827, 0.4470)
STD = (0.2381, 0.2347, 0.2536)


def load(data_dir=None) -> Dataset:
    """Loads CIFAR-10 and halves its images; see `fdg_jax.data.load`. The random crop pads by 2 instead of 4."""
    whole = cifar10.load(data_dir)
    return whole._replace(
        name="cifar10_16",
        train_images=halved(whole.train_images),
        test_images=halved(whole.test_images),
        mean=MEAN,
        std=STD,
        pad=2,
    )


def halved(images: np.ndarray) -> np.ndarray:
    """Images of half the height and width.

    Arguments:
        images: [N, H, W, C] uint8, H and W even.

    Returns: [N, H/2, W/2, C] uint8. Each number is the mean of four, rounded, halves upwards.
    """
    total = np.full((len(images), images.shape[1] // 2, images.shape[2] // 2, images.shape[3]), 2, np.uint16)
    for down in (0, 1):
        for right in (0, 1):
            total += images[:, down::2, right::2]
    return (total >> 2).astype(np.uint8)

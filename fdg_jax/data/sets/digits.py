"""Scikit-learn's embedded handwritten digits: real images that need no file and no network.

They are 1,797 pictures of 8x8 pixels. Here they have 32x32x3 numbers, so that every CIFAR model trains on them
unchanged. Each pixel becomes a 4x4 square (exact on every machine, unlike an interpolation), 0..16 becomes 0..255, and
the channel is repeated three times. The data have no official split. The split here is fixed and
stratified: a fifth of each class, chosen by a frozen generator, is for testing.
"""

import numpy as np

from fdg_jax.data.dataset import Dataset


def load(data_dir=None) -> Dataset:
    """Loads 1,438 training and 359 test images [32, 32, 3]; `data_dir` is not used."""
    # Imported here because scikit-learn takes a second to import and other data sets don't need it.
    from sklearn.datasets import load_digits

    raw, labels = load_digits(return_X_y=True)
    images, labels = to_cifar_shape(np.reshape(raw, (-1, 8, 8))), np.asarray(labels, np.int32)
    test = stratified_fifth(labels)
    train_images = images[~test]
    mean, std = train_images.mean() / 255, train_images.std() / 255
    return Dataset(
        "digits", train_images, labels[~test], images[test], labels[test], classes=10,
        mean=(float(mean),) * 3, std=(float(std),) * 3,
        pad=2,  # half an original pixel; 4, as for CIFAR, would be one of the eight original pixels of a side
        flip=False,  # a mirrored 2 is not a 2
    )  # fmt: skip


def to_cifar_shape(images: np.ndarray) -> np.ndarray:
    """[N, 8, 8] in 0..16 -> [N, 32, 32, 3] uint8 in 0..255."""
    grey = np.round(images * (255 / 16)).astype(np.uint8)
    grey = grey.repeat(4, axis=1).repeat(4, axis=2)
    return np.repeat(grey[..., None], 3, axis=3)


def stratified_fifth(labels: np.ndarray) -> np.ndarray:
    """Labels [N] -> [N] bool, true for a fifth of each class; the same on every machine and with every NumPy."""
    # RandomState's stream will never change; the stream of NumPy's newer Generator may change between versions.
    generator = np.random.RandomState(0)
    chosen = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        chosen[members[: round(len(members) / 5)]] = True
    return chosen

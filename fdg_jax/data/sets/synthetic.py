"""Made-up images of CIFAR's shape, for benchmarks: no file, no network, the same bytes on every machine.

Each class is a coarse random pattern, and each image is its class's pattern with noise. So the classes can be learned,
and a loss that does not fall shows a bug. Crop and flip are CIFAR's, so that benchmarks include the same augmentation.
"""

import numpy as np

from fdg_jax.data.dataset import Dataset

TRAIN, TEST, CLASSES = 10_240, 2_560, 10  # 80 and 20 batches of the usual 128


def load(data_dir=None) -> Dataset:
    """Makes 10,240 training and 2,560 test images [32, 32, 3]; `data_dir` is not used."""
    # RandomState's stream will never change; the stream of NumPy's newer Generator may change between versions.
    generator = np.random.RandomState(0)
    patterns = generator.randint(0, 128, (CLASSES, 8, 8, 3), np.uint8)
    patterns = patterns.repeat(4, axis=1).repeat(4, axis=2)
    labels = generator.randint(0, CLASSES, TRAIN + TEST).astype(np.int32)
    noise = np.frombuffer(generator.bytes(len(labels) * 32 * 32 * 3), np.uint8).reshape(-1, 32, 32, 3)
    images = patterns[labels] + noise // 2  # at most 127 + 127: no overflow
    return Dataset(
        "synthetic", images[:TRAIN], labels[:TRAIN], images[TRAIN:], labels[TRAIN:], classes=CLASSES,
        mean=(0.5,) * 3, std=(0.2,) * 3,  # of the sum of two uniform numbers in 0..127, over 255
        pad=4, flip=True,
    )  # fmt: skip

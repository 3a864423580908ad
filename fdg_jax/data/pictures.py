"""Images that `--dataset` names by a path: a folder, or a file of arrays.

A folder has train/CLASS/*.png (or jpg), and the same in test/ or val/. Images of one size are held in memory up to 2
GiB. Others are decoded while training, as for ImageNet: to 224x224 pixels, cropped and mirrored at random. A file
`.npz` has x_train, y_train, x_test and y_test, as Keras has them. It is not known whether a mirrored image shows the
same class, so images in memory are only cropped at random.
"""

import os
from pathlib import Path

import numpy as np

from fdg_jax.data import arrays, files, jpeg
from fdg_jax.data.arrays import Arrays, Expected
from fdg_jax.data.dataset import Dataset
from fdg_jax.data.stream import Stream, sample_indices
from fdg_jax.errors import BadInput, first_line

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
SUFFIX = ".npz"
MOST_BYTES = 2 * 2**30  # of decoded images in memory
SIDE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, the usual ones for photographs


def is_path(name: str) -> bool:
    """Whether a value of --dataset is a path, and not a name."""
    return os.sep in name or name.endswith(SUFFIX)


def load(name: str, data_dir: str | os.PathLike[str] | None) -> Dataset | Stream:
    """Loads the images. data_dir: where the folder or the file `name` is now, if it has moved. Raises BadInput if the
    folder or file has another form."""
    path = Path(data_dir or name).expanduser()
    return of_arrays(name, path) if name.endswith(SUFFIX) else of_folder(name, path)


def of_arrays(name: str, path: Path) -> Dataset:
    """The images of a file of arrays: uint8 [N, H, W] or [N, H, W, C], labels of any whole numbers [N] or [N, 1]."""
    try:
        with np.load(path, allow_pickle=False) as file:
            images, labels, test_images, test_labels = (file[each] for each in ARRAYS)
    except Exception as error:  # zipfile, zlib and numpy raise a dozen kinds
        fact = f"{path} has no arrays {', '.join(ARRAYS)} that can be read: {first_line(error)}"
        raise BadInput(f"{fact}. Write it with numpy.savez: images in uint8, labels in whole numbers.") from None

    def whole(labels: np.ndarray) -> np.ndarray:
        labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
        return labels.astype(np.int32) if labels.dtype.kind in "iu" else labels

    found = Arrays(images, whole(labels), test_images, whole(test_labels))
    return in_memory(name, found._replace(train_images=coloured(images), test_images=coloured(test_images)))


def coloured(images: np.ndarray) -> np.ndarray:
    """Images with an axis for the channel."""
    return images[..., None] if images.ndim == 3 else images


def in_memory(name: str, found: Arrays) -> Dataset:
    """The data set of these arrays. The images are padded by an eighth of their side, as CIFAR's are."""
    whole = found.train_images.dtype == np.uint8 and found.train_images.ndim == 4
    mean, std = arrays.training_statistics(found.train_images) if whole else ((), ())  # the others are refused
    pad = min(found.train_images.shape[1:3], default=0) // 8
    labels = found.train_labels
    classes = int(labels.max()) + 1 if labels.size and labels.dtype == np.int32 else 1
    return Dataset(name, *found, classes=classes, mean=mean, std=std, pad=pad, flip=False)


def of_folder(name: str, path: Path) -> Dataset | Stream:
    """The images of a folder."""
    tests = [path / each for each in ("test", "val") if (path / each).is_dir()]
    if not tests or not files.classes(path / "train"):
        fact = f"{path} has no folders train/CLASS and test/CLASS (or val/CLASS) with images ({files.KINDS})"
        raise BadInput(f"{fact}. Make them, or name another folder. If the folder has moved, add --data-dir.")
    train, test, classes = files.by_class(path / "train", tests[0])
    sample = (train.read(i) for i in sample_indices(len(train)))
    (width, height), *others = {jpeg.decode_image(content, where).size for content, _, where in sample}
    if others or (len(train) + len(test)) * width * height * 3 > MOST_BYTES:
        return Stream(name, train, test, classes, SIDE, MEAN, STD).check_sample()
    expected = Expected(name, len(train), len(test), classes, (height, width, 3))
    paths = (Path(split.path(i)) for split in (train, test) for i in range(len(split)))
    made = arrays.cached(path, expected, lambda: files.decoded(expected, train, test), paths)
    return in_memory(name, made)

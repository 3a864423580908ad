"""Tiny-ImageNet: 100,000 training and 10,000 test photographs of 64x64 pixels in 200 classes.

The published folder is decoded once into memory (1.3 GB) and kept in the cache. The "test images" of the paper are the
archive's validation images, since the classes of its test images are not public.

Crop and flip are CIFAR's. The paper says "random cropping" without a number of pixels. Here images are padded by 8
pixels, an eighth of the side, as CIFAR's are by 4 of 32.
"""

import itertools
import os
from pathlib import Path

from fdg_jax.data import arrays, files
from fdg_jax.data.arrays import Expected
from fdg_jax.data.dataset import Dataset
from fdg_jax.data.download import Unavailable
from fdg_jax.errors import BadInput

TINY = Expected("tiny_imagenet", train=100_000, test=10_000, classes=200, shape=(64, 64, 3))
MEAN, STD = (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)  # of the training images
FOLDER, CLASSES, ANNOTATIONS = "tiny-imagenet-200", "wnids.txt", "val_annotations.txt"
URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"


def load(data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Loads the data set. Nothing is downloaded, since the archive states no licence for its photographs.

    Arguments:
        data_dir: the folder tiny-imagenet-200, or the folder that contains it. None: TFDS's data directory.

    Raises:
        Unavailable: the data set is missing, and no directory was given.
        BadInput: a file is missing or damaged; the message names it.
    """
    folder = find(data_dir)
    train, test = train_files(folder), test_files(folder)
    images = (Path(split.path(i)) for split in (train, test) for i in range(len(split)))
    paths = itertools.chain((folder / CLASSES, folder / "val" / ANNOTATIONS), images)
    found = arrays.cached(folder, TINY, lambda: files.decoded(TINY, train, test), paths)
    return Dataset(TINY.name, *found, classes=TINY.classes, mean=MEAN, std=STD, pad=8, flip=True)


def find(data_dir: str | os.PathLike[str] | None) -> Path:
    """The unpacked folder: in data_dir, or data_dir itself. Raises Unavailable or BadInput if neither has it."""
    base = arrays.default_data_dir() if data_dir is None else Path(data_dir).expanduser()
    for folder in (base / FOLDER, base):
        if (folder / CLASSES).exists():
            return folder
    way_out = f"Unpack {URL} and give the directory that holds the folder {FOLDER} as --data-dir"
    if data_dir is None:
        raise Unavailable(f"Tiny-ImageNet isn't in {base / FOLDER}, and this program does not download it. {way_out}.")
    found = ", ".join(path.name for path in arrays.list_directory(base)[:5]) or "nothing"
    raise BadInput(f"{CLASSES} is neither in {base / FOLDER} nor in {base}, which begins with {found}. {way_out}.")


def class_names(folder: Path) -> list[str]:
    """The names of classes 0, 1, ...: WordNet's numbers, sorted. Raises BadInput."""
    names = sorted(line.strip() for line in files.lines(folder / CLASSES, "which classes there are"))
    if len(set(names)) != TINY.classes:
        fact = f"{folder / CLASSES} lists {len(set(names))} classes, but Tiny-ImageNet has {TINY.classes}"
        raise BadInput(f"{fact}. Unpack it again.")
    return names


def train_files(folder: Path) -> files.Files:
    """The files `train/<class>/images/<class>_<number>.JPEG`. All names are known, so a missing file can be named."""
    each, names, labels = TINY.train // TINY.classes, [], []
    for label, name in enumerate(class_names(folder)):
        place = folder / "train" / name / "images"
        found = set(files.images(place)[0])
        for image in (f"{name}_{number}.JPEG" for number in range(each)):
            if image not in found:
                raise BadInput(f"{place / image} is missing ({len(found)} of {each} images are there). Unpack again.")
            names.append(f"{name}/images/{image}")
            labels.append(label)
    return files.shuffled(folder / "train", names, labels)


def test_files(folder: Path) -> files.Files:
    """The files `val/images/*.JPEG`. A line of `val/val_annotations.txt` has the name, the class and a box, which is
    not used."""
    source = folder / "val" / ANNOTATIONS
    class_of = {}
    for line in files.lines(source, "what the test images show"):
        name, _, rest = line.partition("\t")
        class_of[name.strip()] = rest.partition("\t")[0].strip()
    if len(class_of) != TINY.test:
        raise BadInput(f"{source} lists {len(class_of)} images, but there are {TINY.test}. Unpack it again.")
    return files.by_list(folder / "val" / "images", source, class_of, class_names(folder))


test_files.__test__ = False  # its name is not meant for pytest

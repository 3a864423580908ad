"""ImageNet (ILSVRC 2012): 1,281,167 training and 50,000 validation photographs of all sizes in 1000 classes.

The files are read in place, in either of the two usual layouts. One is prepared by TFDS: `imagenet2012/<version>/` with
array_record files. The other has folders: `train/<class>/*.JPEG`, and `val/<class>/*.JPEG` or a flat `val/*.JPEG`.
Images become 224x224 (see `jpeg`). Classes 0, 1, ... are WordNet's numbers, sorted, as in TFDS and PyTorch.

Folders with other classes or fewer images are read too; the run then prints a prominent note that this is not ImageNet.
"""

import csv
import os
from importlib import resources
from pathlib import Path

from fdg_jax.data import arrays, files, tfds
from fdg_jax.data.download import Unavailable
from fdg_jax.data.files import Encoded
from fdg_jax.data.pictures import MEAN, SIDE, STD
from fdg_jax.data.stream import Stream
from fdg_jax.errors import BadInput
from fdg_jax.machine.output import say

NAME, PREPARED = "imagenet", "imagenet2012"
TRAIN, TEST, CLASSES = 1_281_167, 50_000, 1000
SOLUTION = "LOC_val_solution.csv"  # Kaggle's. A line: ILSVRC2012_val_00048981,n03995372 85 1 499 272
WAY_OUT = (
    "Register at image-net.org or Kaggle to get ImageNet. As --data-dir give the directory that holds train/ and val/ "
    f"(or imagenet/train/ and imagenet/val/), or a TFDS directory with {PREPARED}/<version>/"
)


def load(data_dir: str | os.PathLike[str] | None = None) -> Stream:
    """Opens the data set. Nothing is downloaded.

    Checks that every class has a folder with images (or every shard its records), and decodes a sample of images.

    Arguments:
        data_dir: where the data set is. None: TFDS's data directory.

    Raises:
        Unavailable: the data set is missing, and no directory was given.
        BadInput: a file is missing or damaged; the message names it.
    """
    base = arrays.default_data_dir() if data_dir is None else Path(data_dir).expanduser()
    train, test, classes = found(base, asked=data_dir is not None)
    note = ""
    if (len(train), len(test), classes) != (TRAIN, TEST, CLASSES):
        note = (
            f"NOT all of ImageNet: {base} has {len(train):,} training and {len(test):,} validation images of {classes} "
            f"classes, instead of {TRAIN:,}, {TEST:,} and {CLASSES}. Errors cannot be compared with the literature's."
        )
    stream = Stream(NAME, train, test, classes, SIDE, MEAN, STD, note).check_sample()
    if note:
        say(note)
    return stream


def found(base: Path, asked: bool) -> tuple[Encoded, Encoded, int]:
    """(training images, validation images, number of classes) in the first layout that exists. Raises BadInput."""
    for folder in (base, base / NAME):
        if (folder / "train").is_dir():
            return of_folders(folder)
    version = arrays.prepared(PREPARED, base)
    if version is not None:
        return of_prepared(version)
    if not asked:
        raise Unavailable(f"ImageNet isn't in {base}, and this program does not download it. {WAY_OUT}.")
    held = ", ".join(path.name for path in arrays.list_directory(base)[:5]) or "nothing"
    raise BadInput(f"{base} has neither a folder train nor a folder {PREPARED}; it holds {held}. {WAY_OUT}.")


def of_folders(folder: Path) -> tuple[Encoded, Encoded, int]:
    """(training images, validation images, classes) of a folder with train/<class>/ and val/. Raises BadInput."""
    train, val = folder / "train", folder / "val"
    classes = files.classes(train)
    if not classes:
        raise BadInput(f"{train} has no folders, but each class needs a folder of images. {WAY_OUT}.")
    if files.classes(val):
        return files.by_class(train, val)
    class_of, source = flat_labels(folder, val)
    return files.by_folder(train, classes), files.by_list(val, source, class_of, classes), len(classes)


def flat_labels(folder: Path, val: Path) -> tuple[dict[str, str], Path]:
    """Returns the class of each file of a flat `val/`, and the path of the list of classes: Kaggle's if it exists, else
    TFDS's."""
    for path in (folder / SOLUTION, val / SOLUTION):
        if path.is_file():
            rows = list(csv.reader(files.lines(path, "what the validation images show")))[1:]
            if not all(len(row) == 2 and row[1].split() for row in rows):
                raise BadInput(f"{path} isn't Kaggle's, with lines <image>,<class> <box> ... Download it again.")
            return {f"{image}.JPEG": boxes.split()[0] for image, boxes in rows}, path
    path = Path(str(resources.files("tensorflow_datasets") / "datasets/imagenet2012/validation_labels.txt"))
    listed = files.lines(path, "what the validation images show")
    class_of = {f"ILSVRC2012_val_{number:08d}.JPEG": name for number, name in enumerate(listed, 1)}
    there, _ = files.images(val)
    if not there:
        raise BadInput(f"{val} holds no images ({files.KINDS}) and no folders of images. {WAY_OUT}.")
    if len(there) < TEST:  # only some of the images; `load` reports that
        class_of = {name: class_of[name] for name in there if name in class_of}
    return class_of, path


def of_prepared(directory: Path) -> tuple[Encoded, Encoded, int]:
    """(training images, validation images, classes) of a directory that TFDS prepared. Raises BadInput."""
    (train, test), _ = tfds.opened(directory, ("train", "validation"))
    return train.shuffled(), test.shuffled(), train.classes

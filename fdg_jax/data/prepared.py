"""Reads a data set that TFDS has prepared, without TensorFlow and without a network.

`tfds.data_source(name)` would first ask a Google bucket about the data set and, offline, retry for minutes. A builder
made from the directory reads the same files without a network. Everything is checked before it is used, cheapest first:
the directory, its two JSON files, the number of records of each shard, and each record, whose checksum `array_record`
verifies. Any fault gives a BadInput that names the file.
"""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fdg_jax import strict_json
from fdg_jax.data.download import Unavailable
from fdg_jax.errors import BadInput
from fdg_jax.machine.stderr import Progress


class Expected(NamedTuple):
    """What the prepared data set must be. Two splits, train and test, of images [H, W, C] with one label."""

    name: str
    train: int  # number of training images
    test: int  # number of test images
    classes: int
    shape: tuple[int, int, int] = (32, 32, 3)


class Arrays(NamedTuple):
    """The arrays of a decoded data set."""

    train_images: np.ndarray  # [N, H, W, C] uint8
    train_labels: np.ndarray  # [N] int32
    test_images: np.ndarray  # [M, H, W, C] uint8
    test_labels: np.ndarray  # [M] int32


def read(directory: Path, expected: Expected) -> Arrays:
    """Decodes a prepared directory. This takes seconds for CIFAR, so `cache` the result.

    It uses one thread: for such small images, passing on the interpreter lock costs more than a second thread gains.

    Arguments:
        directory: such as `.../cifar10/3.0.2`.
        expected: what the data set must be.

    Returns: the decoded arrays.

    Raises:
        BadInput: the directory is not as expected, or a record is damaged; the message names the file.
    """
    try:
        check_metadata(directory, expected)
    except (AttributeError, KeyError, TypeError) as error:  # valid JSON of another structure
        raise BadInput(f"the JSON files in {directory} aren't TFDS's ({error!r}). {WAY_OUT}") from error
    builder = open_builder(directory, ("train", "test"))
    splits = builder.info.splits
    import tensorflow_datasets as tfds

    # Our own decoding is twice as fast as TFDS's, and can name a damaged image.
    progress = Progress(expected.train + expected.test, "images", f"decoding {expected.name} (once)")
    return Arrays(*(
        array
        for split in ("train", "test")
        for array in read_split(
            builder.as_data_source(split=split, decoders={"image": tfds.decode.SkipDecoding()}),
            splits[split], expected, progress,
        )
    ))  # fmt: skip


def open_builder(directory: Path, needed: tuple[str, ...]) -> Any:
    """TFDS's builder of a prepared directory, after a check that the needed splits are complete. Raises BadInput."""
    try:
        import tensorflow_datasets as tfds
        from array_record.python.array_record_module import ArrayRecordReader
    except ImportError as error:
        raise BadInput(
            f"{directory} can't be read, because a package is missing ({error}). "
            f"pip install tensorflow-datasets importlib_resources array_record"
        ) from error
    try:
        builder: Any = tfds.builder_from_directory(directory)  # its decorated methods confuse type checkers
        splits = builder.info.splits
    except Exception as error:  # whatever TFDS makes of JSON that isn't its own
        raise BadInput(f"TFDS can't read {directory}: {error}. {WAY_OUT}") from error
    for split in needed:
        if split not in splits:
            raise BadInput(f"{directory} has no split {split!r}, only {', '.join(splits) or 'none'}. {WAY_OUT}")
        check_shards(splits[split], ArrayRecordReader)
    return builder


def read_info(directory: Path) -> dict:
    """The content of dataset_info.json. Raises BadInput; Unavailable if the data set's files need TensorFlow."""
    path = directory / "dataset_info.json"
    info = read_json(path)
    if info.get("fileFormat") != "array_record":
        # This is no damage, so `--dataset auto` may go on without it.
        raise Unavailable(
            f"{path}: the files are {info.get('fileFormat', 'tfrecord')}, which can't be read without "
            f"TensorFlow. Give a data directory with array_record files, or an unused one as TFDS_DATA_DIR "
            f"to have them made."
        )
    return info


def check_metadata(directory: Path, expected: Expected) -> None:
    """Compares the two JSON files with what is expected, before slow imports. Raises BadInput."""
    info = read_info(directory)
    features = read_json(directory / "features.json")
    path = directory / "dataset_info.json"
    splits = {split.get("name"): split for split in info.get("splits", [])}
    for name, images in (("train", expected.train), ("test", expected.test)):
        found = sum(parse_number(length) for length in splits.get(name, {}).get("shardLengths", []))
        if found != images:
            raise BadInput(f"{path}: {expected.name} has {images} {name} images, but this lists {found}. {WAY_OUT}")
    path = directory / "features.json"
    features = features.get("featuresDict", {}).get("features", {})
    for name, key, subkey in (("image", "image", "shape"), ("label", "classLabel", "numClasses")):
        if subkey not in features.get(name, {}).get(key, {}):
            raise BadInput(f"{path}: the feature {name!r} ({key} with {subkey}) is missing. {WAY_OUT}")
    classes = parse_number(features["label"]["classLabel"]["numClasses"])
    shape = tuple(parse_number(d) for d in features["image"]["image"]["shape"].get("dimensions", []))
    if classes != expected.classes or shape != expected.shape:
        raise BadInput(
            f"{path}: {expected.name} has images {expected.shape} of {expected.classes} classes, "
            f"but this says {shape} of {classes}. {WAY_OUT}"
        )


def parse_number(text: str) -> int:
    """Parses a number, which Protobuf's JSON writes as a string if it has 64 bits. Raises TypeError."""
    if not re.fullmatch(r"[0-9]{1,18}", str(text)):
        raise TypeError(f"{str(text)[:40]!r} is not a number")
    return int(text)


WAY_OUT = "Prepare it again, or use another --data-dir or --dataset."


def read_json(path: Path) -> dict:
    """The object in a JSON file. Raises BadInput if it cannot be read or is something else."""
    try:
        content = strict_json.read(path)
    except FileNotFoundError:
        raise BadInput(f"{path} is missing, and only it says what the other files hold. {WAY_OUT}") from None
    except OSError as error:
        raise BadInput(f"{path} can't be read: {error.strerror}.") from None
    except ValueError as error:
        raise BadInput(f"{path} can't be used: {error}. {WAY_OUT}") from None
    if not isinstance(content, dict):
        raise BadInput(f"{path} is not a JSON object. {WAY_OUT}")
    return content


def check_shards(split, reader_class) -> None:
    """Checks each shard's number of records. The index is at a shard's end, so a truncated one has none. BadInput."""
    for path, images in zip(split.filepaths, split.shard_lengths, strict=True):
        path = os.fspath(path)
        try:
            size = os.stat(path).st_size
            with open(path, "rb"):
                pass
        except FileNotFoundError:
            raise BadInput(f"{path} is missing; it should hold {images} images. {WAY_OUT}") from None
        except OSError as error:
            raise BadInput(f"{path} can't be read: {error.strerror}.") from None
        try:
            reader = reader_class(path)
            found = reader.num_records()
            reader.close()
        except (RuntimeError, ValueError):  # what array_record raises for a file whose index is damaged
            found = 0
        if found != images:
            raise BadInput(
                f"{path} is truncated or damaged: {found} of {images} images can be found in its "
                f"{size:,} bytes. {WAY_OUT}"
            )


def read_split(source, split, expected: Expected, progress: Progress) -> tuple[np.ndarray, np.ndarray]:
    """Decodes one split: (images, labels). It goes shard by shard, so that it can name a damaged file in a BadInput."""
    images = np.empty((split.num_examples, *expected.shape), np.uint8)
    labels = np.empty(split.num_examples, np.int32)
    first = 0
    for path, length in zip(split.filepaths, split.shard_lengths, strict=True):
        for start in range(first, first + length, 500):
            indices = range(start, min(start + 500, first + length))
            try:
                examples = source.__getitems__(list(indices))
            except Exception as error:  # array_record, protobuf and TFDS each have their own
                raise BadInput(f"{os.fspath(path)} is damaged: {error}. {WAY_OUT}") from error
            for i, example in zip(indices, examples, strict=True):
                try:
                    images[i], labels[i] = decode(example, expected)
                except Exception as error:  # whatever Pillow makes of damaged bytes
                    raise BadInput(
                        f"{os.fspath(path)}: image {i - first} of {length} is damaged: {error}. {WAY_OUT}"
                    ) from error
            progress.advance(len(indices))
        first += length
    return images, labels


def decode(example: dict, expected: Expected) -> tuple[np.ndarray, int]:
    """One example of TFDS with its image still encoded (PNG or lossless WebP) -> ([H, W, C] uint8, label)."""
    from PIL import Image

    image = np.asarray(Image.open(io.BytesIO(example["image"]), formats=("PNG", "WEBP")))
    if image.shape != expected.shape or image.dtype != np.uint8:
        raise ValueError(f"it is {image.dtype} {image.shape} and not uint8 {expected.shape}")
    label = int(example["label"])
    if not 0 <= label < expected.classes:
        raise ValueError(f"its label is {label} and not in 0..{expected.classes - 1}")
    return image, label

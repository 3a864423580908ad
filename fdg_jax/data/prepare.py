"""Turns CIFAR's official binary archive into a directory that TFDS reads, without TensorFlow.

TFDS itself needs TensorFlow for this. `tfds.data_source` can read the result, so other programs of the same user find
the data set prepared. Images are stored as PNG, which is lossless. The order is the archive's: TFDS would shuffle it,
but every epoch is shuffled anyway.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, cast

import numpy as np

from fdg_jax.data.prepared import Expected
from fdg_jax.durable import temporary_beside
from fdg_jax.errors import BadInput
from fdg_jax.machine.stderr import Progress

VERSION = "3.0.2"  # TFDS's version of cifar10 and cifar100, so that `tfds.data_source(name)` finds this


class Layout(NamedTuple):
    """What is in the archive. A record is one byte for each label and then 3 x 32 x 32 bytes of image."""

    train: tuple[str, ...]  # file names, in order
    test: tuple[str, ...]
    labels: tuple[tuple[str, str], ...]  # for each label byte: TFDS's feature name, the file of class names


def prepare(archive: Path, layout: Layout, expected: Expected, data_dir: Path) -> Path:
    """Writes `<data_dir>/<name>/3.0.2/`. It appears complete, by a rename, or not at all.

    Arguments:
        archive: the official archive.
        layout: what is in it.
        expected: what the data set must be.
        data_dir: the TFDS data directory.

    Returns: the directory written.

    Raises:
        BadInput: the archive is not what the layout says.
        OSError: the directory cannot be written.
    """
    final = data_dir / expected.name / VERSION
    temporary = temporary_beside(final)
    temporary.mkdir(parents=True)
    try:
        files = members(archive, layout)
        names = {feature: files[file].decode("utf-8").split() for feature, file in layout.labels}
        progress = Progress(expected.train + expected.test, "images", f"preparing {expected.name} in {final} (once)")
        infos = []
        for split, count in (("train", expected.train), ("test", expected.test)):
            raw = b"".join(files[file] for file in getattr(layout, split))
            labels, images = records(raw, names, count, expected.shape, archive)
            infos.append(write_split(temporary, split, labels, images, expected.name, progress))
        write_metadata(temporary, names, expected, infos)
        try:
            temporary.rename(final)
        except OSError:
            if not (final / "dataset_info.json").exists():
                raise
            # Another process was faster and wrote the same.
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def members(archive: Path, layout: Layout) -> dict[str, bytes]:
    """{name without folders: content} of the archive's needed files, read into memory. Raises BadInput."""
    wanted = {*layout.train, *layout.test, *(file for _, file in layout.labels)}
    found = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                if name in wanted and (file := tar.extractfile(member)) is not None:
                    found[name] = file.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise BadInput(f"{archive} can't be unpacked: {error}. Remove or replace it.") from error
    if missing := sorted(wanted - found.keys()):
        raise BadInput(f"{archive} lacks {', '.join(missing)}. Remove or replace it.")
    return found


def records(raw: bytes, names: dict, count: int, shape: tuple[int, int, int], archive: Path):
    """Bytes of a split -> (labels {feature: [N] uint8}, images [N, H, W, C] uint8). Raises BadInput."""
    height, width, channels = shape
    size = len(names) + height * width * channels
    if len(raw) != count * size:
        raise BadInput(
            f"{archive}: {count:,} records of {size:,} bytes are {count * size:,} bytes, but it holds "
            f"{len(raw):,}. Remove or replace it."
        )
    table = np.frombuffer(raw, np.uint8).reshape(count, size)
    labels = {feature: table[:, column] for column, feature in enumerate(names)}
    images = table[:, len(names) :].reshape(count, channels, height, width).transpose(0, 2, 3, 1)
    return labels, images


def write_split(directory: Path, split: str, labels: dict, images: np.ndarray, name: str, progress: Progress):
    """Writes one shard of `array_record`; returns TFDS's description of the split."""
    import tensorflow_datasets as tfds
    from array_record.python.array_record_module import ArrayRecordWriter

    template = tfds.core.ShardedFileTemplate(
        data_dir=cast(Any, directory), dataset_name=name, split=split, filetype_suffix="array_record"
    )
    path = directory / f"{name}-{split}.array_record-00000-of-00001"
    writer = ArrayRecordWriter(os.fspath(path), "group_size:1")  # one record a chunk: fast random access
    total = 0
    try:
        for record in examples(split, labels, images):
            writer.write(record)
            total += len(record)
            progress.advance(1)
    finally:
        writer.close()
    return tfds.core.SplitInfo(name=split, shard_lengths=[len(images)], num_bytes=total, filename_template=template)


def examples(split: str, labels: dict, images: np.ndarray) -> Iterator[bytes]:
    """Serialised `tf.train.Example`s with TFDS's CIFAR features: id, image, label (and coarse_label)."""
    from PIL import Image
    from tensorflow_datasets.proto import tf_example_pb2

    for i, image in enumerate(images):
        png = io.BytesIO()
        Image.fromarray(image).save(png, "PNG")
        example = cast(Any, tf_example_pb2).Example()
        feature = example.features.feature
        feature["id"].bytes_list.value.append(f"{split}_{i:05d}".encode())
        feature["image"].bytes_list.value.append(png.getvalue())
        for name, values in labels.items():
            feature[name].int64_list.value.append(int(values[i]))
        yield example.SerializeToString()


def write_metadata(directory: Path, names: dict, expected: Expected, infos: list) -> None:
    """Writes features.json, dataset_info.json and the class names, in TFDS's own words."""
    import tensorflow_datasets as tfds

    tfds.folder_dataset.write_metadata(
        data_dir=directory,
        features=tfds.features.FeaturesDict({
            "id": tfds.features.Text(),
            "image": tfds.features.Image(shape=expected.shape),
            **{feature: tfds.features.ClassLabel(names=classes) for feature, classes in names.items()},
        }),
        split_infos=infos,
        version=VERSION,
        check_data=False,  # this check needs TensorFlow; ours is the full decoding that follows
        description=f"{expected.name}, from the official binary archive, in its order; images as PNG",
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
        supervised_keys=("image", "label"),
    )  # fmt: skip

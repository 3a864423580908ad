"""Small files of CIFAR's true formats, written without the code under test.

`tfds_directory` writes what TFDS writes (JSON by hand, as found in a directory that TFDS prepared);
`archive` writes what the University of Toronto publishes. Both hold images that are random and therefore
all different, so that a swapped, shifted or lost one shows.
"""

import copy
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from fdg_jax.data import cifar, download
from fdg_jax.data.arrays import Arrays
from fdg_jax.data.cifar import Cifar
from fdg_jax.data.sets import cifar10, cifar100

TRAIN, TEST = 30, 12
CLASS_NAMES = {10: [f"class{i}" for i in range(10)], 100: [f"fine{i}" for i in range(100)]}


def small(cifar: Cifar, **download) -> Cifar:
    """The same data set with so few images that a test can make them."""
    expected = cifar.expected._replace(train=TRAIN, test=TEST)
    return cifar._replace(expected=expected, download=cifar.download._replace(**download))


def images_and_labels(count: int, classes: int = 10, seed: int = 0):
    generator = np.random.RandomState(seed)
    return (
        generator.randint(0, 256, (count, 32, 32, 3), np.uint8),
        generator.randint(0, classes, count).astype(np.int32),
    )


def encode(image: np.ndarray, image_format: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, image_format, **({"lossless": True} if image_format == "WEBP" else {}))
    return file.getvalue()


def example(image: bytes, label: int, name: str, coarse: int | None = None) -> bytes:
    from tensorflow_datasets.proto import tf_example_pb2

    message = tf_example_pb2.Example()  # pyright: ignore[reportAttributeAccessIssue]
    message.features.feature["image"].bytes_list.value.append(image)
    message.features.feature["label"].int64_list.value.append(label)
    if coarse is not None:
        message.features.feature["coarse_label"].int64_list.value.append(coarse)
    message.features.feature["id"].bytes_list.value.append(name.encode())
    return message.SerializeToString()


def tfds_directory(data_dir: Path, image_format: str = "PNG", shards: int = 3, splits=None, classes: int = 10) -> tuple:
    """Writes `<data_dir>/cifar10/3.0.2` (or cifar100); returns it and the arrays (training images, labels, test ...).

    `splits` may give other examples: {split: [(encoded image, label), ...]}.
    """
    directory = data_dir / f"cifar{classes}" / "3.0.2"
    arrays = (*images_and_labels(TRAIN, classes, seed=1), *images_and_labels(TEST, classes, seed=2))
    if splits is None:
        splits = {
            split: [(encode(image, image_format), int(label)) for image, label in zip(*pair, strict=True)]
            for split, pair in (("train", arrays[:2]), ("test", arrays[2:]))
        }
    records = {
        split: [
            example(image, label, f"{split}_{i:05d}", label // 5 if classes == 100 else None)
            for i, (image, label) in enumerate(examples)
        ]
        for split, examples in splits.items()
    }
    module = "tensorflow_datasets.image_classification.cifar"
    write_prepared(directory, module, records, features(classes), CLASS_NAMES[classes], shards)
    if classes == 100:
        (directory / "coarse_label.labels.txt").write_text("".join(f"coarse{i}\n" for i in range(20)))
    return directory, arrays


def write_prepared(
    directory: Path, module: str, records: Mapping[str, list[bytes]], features: dict, labels: Iterable[str], shards: int
) -> None:
    """`<name>/<version>` as TFDS prepares it: {split: [record, ...]} in so many files, and what describes them."""
    from array_record.python.array_record_module import ArrayRecordWriter

    directory.mkdir(parents=True)
    name, infos = directory.parent.name, []
    for split, all_of_it in records.items():
        parts = np.array_split(np.arange(len(all_of_it)), shards)
        for number, part in enumerate(parts):
            path = directory / f"{name}-{split}.array_record-{number:05d}-of-{shards:05d}"
            writer = ArrayRecordWriter(str(path), "group_size:1")
            for i in part:
                writer.write(all_of_it[i])
            writer.close()
        infos.append({
            "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            "name": split,
            "numBytes": "1",
            "shardLengths": [str(len(part)) for part in parts],
        })  # fmt: skip
    info = {"fileFormat": "array_record", "moduleName": module, "name": name, "splits": infos,
            "version": directory.name}  # fmt: skip
    (directory / "dataset_info.json").write_text(json.dumps(info))
    (directory / "features.json").write_text(json.dumps(features))
    (directory / "label.labels.txt").write_text("\n".join(labels) + "\n")


def features(classes: int) -> dict:
    """features.json; CIFAR-100 has a second label, which nobody asks for."""
    made = copy.deepcopy(FEATURES)
    labels = made["featuresDict"]["features"]
    labels["label"]["classLabel"]["numClasses"] = str(classes)
    if classes == 100:
        labels["coarse_label"] = {**labels["label"], "classLabel": {"numClasses": "20"}}
    return made


FEATURES: dict = {
    "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
    "featuresDict": {
        "features": {
            "id": {"pythonClassName": "tensorflow_datasets.core.features.text_feature.Text", "text": {}},
            "image": {
                "pythonClassName": "tensorflow_datasets.core.features.image_feature.Image",
                "image": {"dtype": "uint8", "shape": {"dimensions": ["32", "32", "3"]}},
            },
            "label": {
                "pythonClassName": "tensorflow_datasets.core.features.class_label_feature.ClassLabel",
                "classLabel": {"numClasses": "10"},
            },
        }
    },
}


def archive(classes: int, lacking: str = "", cut: str = "") -> tuple[bytes, tuple]:
    """The bytes of a `cifar-*-binary.tar.gz` and the arrays in it; a file may be left out or shortened."""
    train, test = images_and_labels(TRAIN, classes, seed=3), images_and_labels(TEST, classes, seed=4)
    if classes == 10:
        folder, names = "cifar-10-batches-bin", {"batches.meta.txt": CLASS_NAMES[10]}
        # The real archive ends its list of names with an empty line.
        files = {f"data_batch_{i + 1}.bin": rows(train, slice(i * TRAIN // 5, (i + 1) * TRAIN // 5)) for i in range(5)}
        files["test_batch.bin"] = rows(test, slice(None))
    else:
        folder = "cifar-100-binary"
        names = {
            "fine_label_names.txt": CLASS_NAMES[100],
            "coarse_label_names.txt": [f"coarse{i}" for i in range(20)],
        }
        files = {
            "train.bin": rows(train, slice(None), coarse=True),
            "test.bin": rows(test, slice(None), coarse=True),
        }
    files |= {name: ("\n".join(lines) + "\n\n").encode() for name, lines in names.items()}
    files["readme.html"] = b"<html>not needed</html>"
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, content in files.items():
            if name != lacking:
                info = tarfile.TarInfo(f"{folder}/{name}")
                content = content[:-1] if name == cut else content
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return file.getvalue(), (*train, *test)


def rows(split: tuple, part: slice, coarse: bool = False) -> bytes:
    """Records as published: (coarse label,) label, then 1024 red, 1024 green, 1024 blue bytes."""
    images, labels = split[0][part], split[1][part]
    records = []
    for image, label in zip(images, labels, strict=True):
        head = bytes([label // 5, label]) if coarse else bytes([label])
        records.append(head + b"".join(image[:, :, channel].tobytes() for channel in range(3)))
    return b"".join(records)


def served(content: bytes, url: str) -> dict:
    """What a `Download` must say for this content to be accepted."""
    return {"url": url, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def arrays_of(dataset) -> Arrays:
    return Arrays(*(getattr(dataset, name) for name in Arrays._fields))


def assert_same(dataset, arrays) -> None:
    for found, expected in zip(arrays_of(dataset), arrays, strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


SETS = {10: cifar10.CIFAR10, 100: cifar100.CIFAR100}


def own_directories_and_no_network(tmp_path: Path, monkeypatch) -> None:
    """What every test of a data set begins with: small CIFAR-10, and whatever is read or kept lies in `tmp_path`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "default"))
    monkeypatch.setattr(cifar10, "CIFAR10", small(SETS[10]))

    def offline(*args):
        raise download.Unavailable("nothing can be downloaded in this test.")

    monkeypatch.setattr(cifar, "fetch", offline)


def own_directories_and_no_proxy(tmp_path: Path, monkeypatch) -> None:
    """What every test of a download begins with."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    monkeypatch.setenv("no_proxy", "*")  # a proxy set on this machine is not what is tested

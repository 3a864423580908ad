"""The refusal of whatever is wrong with a directory of prepared data, naming the file."""

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from fdg_jax import data
from fdg_jax.data import cifar, download
from fdg_jax.data.sets import auto
from fdg_jax.errors import BadInput
from tests.cifar_files import (
    TEST,
    TRAIN,
    assert_same,
    encode,
    images_and_labels,
    own_directories_and_no_network,
    tfds_directory,
)


@pytest.fixture(autouse=True)
def _own_directories_and_no_network(tmp_path, monkeypatch):
    own_directories_and_no_network(tmp_path, monkeypatch)


# Wrong directories


def refused(data_dir, *words, name="cifar10") -> str:
    """The message with which loading is refused; in no time, and all `words` in it."""
    start = time.monotonic()
    with pytest.raises(BadInput) as raised:
        data.load(name, data_dir)
    assert time.monotonic() - start < 3  # the import of TFDS at most; decoding CIFAR takes 7 s and more
    message = str(raised.value)
    for word in words:
        assert str(word) in message
    return message


def test_what_is_wrong_with_a_directory_of_cifar10_16_is_said_of_cifar10(tmp_path):
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "has no prepared cifar10 (cifar10/<version>/)", "It is empty", name="cifar10_16")


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "auto"])
def test_a_given_directory_without_the_data_set_is_refused_and_nothing_is_fetched(tmp_path, monkeypatch, name):
    monkeypatch.setattr(cifar, "fetch", lambda *args: pytest.fail("the network was asked"))
    wanted = "cifar10" if name == "auto" else name
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "other" / "mnist").mkdir(parents=True)
    (tmp_path / "hollow" / wanted / "3.0.2").mkdir(parents=True)
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / wanted).write_text("")
    refused(tmp_path / "missing", tmp_path / "missing", "doesn't exist", name=name)
    refused(tmp_path / "empty", tmp_path / "empty", "It is empty", "TFDS_DATA_DIR", name=name)
    refused(tmp_path / "file", tmp_path / "file", "is a file", name=name)
    refused(tmp_path / "other", tmp_path / "other", "It holds mnist", name=name)
    refused(tmp_path / "hollow", tmp_path / "hollow", f"no prepared {wanted}", name=name)
    refused(tmp_path / "hollow" / wanted, f"the directory that holds the folder {wanted}", name=name)
    refused(tmp_path / "hollow" / wanted / "3.0.2", f"the directory that holds the folder {wanted}", name=name)
    refused(tmp_path / "flat", tmp_path / "flat" / wanted, "is a file", name=name)


def test_a_directory_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    # Permissions don't bind root, as whom tests often run: the system's refusal is imitated.
    monkeypatch.setattr(Path, "iterdir", refuse)
    refused(tmp_path, tmp_path, "can't be read: Permission denied")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="permissions don't bind root")
def test_a_directory_without_permission_is_refused(tmp_path):
    tfds_directory(tmp_path / "tfds")
    (tmp_path / "tfds").chmod(0)
    try:
        refused(tmp_path / "tfds", tmp_path / "tfds", "Permission denied")
    finally:
        (tmp_path / "tfds").chmod(0o700)


def test_a_data_set_asked_for_by_name_is_never_replaced():
    with pytest.raises(download.Unavailable, match="--dataset digits"):
        data.load("cifar10")
    with pytest.raises(download.Unavailable, match="cifar100 isn't prepared"):
        data.load("cifar100")


def test_auto_uses_what_is_prepared_and_otherwise_says_loudly_that_it_uses_digits(tmp_path, capsys):
    dataset = data.load("auto")
    assert dataset.name == "digits"
    assert dataset.note.startswith("NOT CIFAR-10")
    assert "nothing can be downloaded" in dataset.note
    assert dataset.note in capsys.readouterr().err
    _, arrays = tfds_directory(tmp_path / "default")
    dataset = data.load("auto")
    assert (dataset.name, dataset.note) == ("cifar10", "")
    assert_same(dataset, arrays)


def test_auto_refuses_damaged_files_instead_of_passing_over_them(tmp_path):
    directory, _ = tfds_directory(tmp_path / "default")
    shard = next(directory.glob("*train*"))
    shard.write_bytes(shard.read_bytes()[:-1000])
    refused(None, shard, name="auto")


def test_auto_takes_digits_where_cifar10_was_prepared_for_tensorflow_only(tmp_path):
    directory, _ = tfds_directory(tmp_path / "default")
    path = directory / "dataset_info.json"
    path.write_text(path.read_text().replace("array_record", "tfrecord"))
    refused(None, path, "tfrecord", "TensorFlow", "TFDS_DATA_DIR")
    assert "tfrecord" in auto.load().note
    refused(tmp_path / "default", path, "tfrecord", name="auto")  # given by name, it was meant


# Wrong files


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("shard", [0, 1, 2])
def test_a_truncated_shard_is_refused_by_name_with_both_counts(tmp_path, split, shard):
    directory, _ = tfds_directory(tmp_path / "tfds")
    path = directory / f"cifar10-{split}.array_record-{shard:05d}-of-00003"
    whole = path.read_bytes()
    images = (TRAIN if split == "train" else TEST) // 3
    for length in (0, 1, 1000, len(whole) // 2, len(whole) - 65536, len(whole) - 1):
        path.write_bytes(whole[:length])
        refused(tmp_path / "tfds", path, f"0 of {images} images", f"{length:,} bytes")
    path.write_bytes(whole + b"x")
    refused(tmp_path / "tfds", path)
    path.unlink()
    refused(tmp_path / "tfds", path, "is missing", f"{images} images")
    path.mkdir()
    refused(tmp_path / "tfds", path, "Is a directory")


def test_no_flipped_bit_ever_changes_an_image(tmp_path):
    # array_record checks each record's hash; padding and some of its index may change unnoticed, harmlessly.
    directory, arrays = tfds_directory(tmp_path / "tfds", shards=1)
    path = directory / "cifar10-train.array_record-00000-of-00001"
    whole = path.read_bytes()
    generator = np.random.RandomState(0)
    messages = []
    for place in [*generator.randint(0, len(whole), 40), *range(len(whole) - 65536, len(whole) - 65536 + 40)]:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << generator.randint(8)
        path.write_bytes(flipped)
        try:
            assert_same(data.load("cifar10", tmp_path / "tfds"), arrays)
        except BadInput as error:
            messages.append(str(error))
    assert len(messages) > 20
    assert all(str(path) in message for message in messages)


def test_a_shard_of_another_split_is_refused(tmp_path):
    directory, _ = tfds_directory(tmp_path / "tfds")
    path = directory / "cifar10-train.array_record-00001-of-00003"
    shutil.copy(directory / "cifar10-test.array_record-00000-of-00003", path)
    refused(tmp_path / "tfds", path, "4 of 10 images")


@pytest.mark.parametrize(
    ("image", "label", "message"),
    [
        (b"not an image", 1, "cannot identify"),
        (encode(images_and_labels(1)[0][0], "PNG")[:-200], 1, "damaged"),
        (encode(images_and_labels(1)[0][0][:16], "PNG"), 1, r"(16, 32, 3)"),
        (encode(images_and_labels(1)[0][0][..., 0], "PNG"), 1, r"(32, 32)"),
        (encode(images_and_labels(1)[0][0], "BMP"), 1, "cannot identify"),  # only what TFDS writes is decoded
        (encode(images_and_labels(1)[0][0], "PNG"), 10, "its label is 10 and not in 0..9"),
        (encode(images_and_labels(1)[0][0], "PNG"), -1, "its label is -1"),
    ],
    ids=["no image", "half an image", "size", "grey", "format", "label too large", "label negative"],
)
def test_an_undecodable_image_is_refused_by_shard_and_number(tmp_path, image, label, message):
    good = encode(images_and_labels(1)[0][0], "PNG")
    train = [(good, 0)] * 17 + [(image, label)] + [(good, 0)] * 12
    directory, _ = tfds_directory(tmp_path / "tfds", splits={"train": train, "test": [(good, 0)] * TEST})
    path = directory / "cifar10-train.array_record-00001-of-00003"
    refused(tmp_path / "tfds", path, "image 7 of 10", message)


def test_records_that_are_no_examples_are_refused_by_file(tmp_path):
    from array_record.python.array_record_module import ArrayRecordWriter

    directory, _ = tfds_directory(tmp_path / "tfds")
    path = directory / "cifar10-test.array_record-00002-of-00003"
    for record in (b"\xff" * 50, b""):
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for _ in range(TEST // 3):
            writer.write(record)
        writer.close()
        refused(tmp_path / "tfds", path)


def info_with(**changes):
    return lambda info, features: (info | changes, features)


def features_with(**changes):
    def change(info, features):
        named = features["featuresDict"]["features"]
        return info, {"featuresDict": {"features": {k: v for k, v in (named | changes).items() if v is not None}}}

    return change


def lengths(train, test):
    return [{"name": name, "shardLengths": list(map(str, part))} for name, part in (("train", train), ("test", test))]


@pytest.mark.parametrize(
    ("change", "file", "words"),
    [
        (info_with(splits=lengths([10, 10, 9], [4, 4, 4])), "dataset_info.json", ["30 train", "29"]),
        (info_with(splits=lengths([10, 10, 10], [])), "dataset_info.json", ["12 test", "lists 0"]),
        (info_with(splits=lengths([10, 11, 9], [4, 4, 4])), "train.array_record-00001", ["10 of 11"]),
        (info_with(splits=lengths([10, 10, "ten"], [4, 4, 4])), "", ["'ten' is not a number"]),
        (info_with(splits=lengths([10, 10, "1" * 5000], [4, 4, 4])), "", ["'1111", "is not a number"]),
        (info_with(splits=None), "", []),
        (info_with(splits={"train": 3}), "", []),
        (info_with(fileFormat="tfrecord"), "dataset_info.json", ["tfrecord", "TensorFlow"]),
        (features_with(label=None), "features.json", ["'label'", "missing"]),
        (features_with(image=None), "features.json", ["'image'", "missing"]),
        (features_with(label={"classLabel": {"numClasses": "9"}}), "features.json", ["10 classes", "of 9"]),
        (features_with(image={"image": {"shape": {"dimensions": ["9", "9"]}}}), "features.json", ["(9, 9)"]),
        (features_with(label=[]), "", []),
    ],
    ids=["one image fewer", "no test images", "shifted shards", "no number", "too many digits", "no splits",
         "other splits", "tfrecord", "no label", "no image", "9 classes", "9x9", "other features"],
)  # fmt: skip
def test_metadata_that_does_not_fit_is_refused_by_file(tmp_path, change, file, words):
    directory, _ = tfds_directory(tmp_path / "tfds")
    paths = directory / "dataset_info.json", directory / "features.json"
    for path, content in zip(paths, change(*(json.loads(path.read_text()) for path in paths)), strict=True):
        path.write_text(json.dumps(content))
    refused(tmp_path / "tfds", directory, file, *words)


@pytest.mark.parametrize("file", ["dataset_info.json", "features.json"])
@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "is missing"), (b"", "not valid JSON"), (b"{", "not valid JSON"), (b"\xff\xfe", "not valid JSON"),
     (b"[]", "not a JSON object"), (b"{}", ""), (b'{"a":' * 100_000, "nested too deeply"),
     (b'{"a": ' + b"1" * 5000 + b"}", "number that is too large"), (b'{"a": 1e999}', "number that is too large")],
)  # fmt: skip
def test_json_that_is_none_is_refused_by_name(tmp_path, file, content, message):
    directory, _ = tfds_directory(tmp_path / "tfds")
    (directory / file).unlink()
    if content is not None:
        (directory / file).write_bytes(content)
    refused(tmp_path / "tfds", directory / file, message)

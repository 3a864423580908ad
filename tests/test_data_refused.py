"""The refusal of whatever is wrong with a directory of prepared data, naming the file."""

import json
import time

import pytest

from fdg_jax import data
from fdg_jax.data import cifar, download
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
    refused(tmp_path / "hollow", tmp_path / "hollow", f"neither {wanted}/<version>/ nor {wanted}.npz", name=name)
    refused(tmp_path / "hollow" / wanted, f"the directory that holds the folder {wanted}", name=name)
    refused(tmp_path / "hollow" / wanted / "3.0.2", f"the directory that holds the folder {wanted}", name=name)
    refused(tmp_path / "flat", tmp_path / "flat" / wanted, "is a file", name=name)


def test_a_data_set_asked_for_by_name_is_never_replaced():
    with pytest.raises(download.Unavailable, match="--dataset digits"):
        data.load("cifar10")
    with pytest.raises(download.Unavailable, match="cifar100 isn't in"):
        data.load("cifar100")


def test_auto_uses_what_is_prepared_and_otherwise_says_loudly_that_it_uses_digits(tmp_path, capsys):
    dataset = data.load("auto")
    assert dataset.name == "digits"
    assert "digits, NOT CIFAR-10. Errors on digits say nothing about CIFAR-10" in dataset.note
    assert "nothing can be downloaded" in dataset.note
    assert dataset.note in capsys.readouterr().err
    _, arrays = tfds_directory(tmp_path / "default")
    dataset = data.load("auto")
    assert (dataset.name, dataset.note) == ("cifar10", "")
    assert_same(dataset, arrays)


# Wrong files


@pytest.mark.parametrize(("split", "shard"), [("train", 0)])
def test_a_truncated_shard_is_refused_by_name_with_both_counts(tmp_path, split, shard):
    directory, _ = tfds_directory(tmp_path / "tfds")
    path = directory / f"cifar10-{split}.array_record-{shard:05d}-of-00003"
    whole = path.read_bytes()
    images = (TRAIN if split == "train" else TEST) // 3
    for length in (0, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        refused(tmp_path / "tfds", path, f"0 of {images} images", f"{length:,} bytes")
    path.write_bytes(whole + b"x")
    refused(tmp_path / "tfds", path)
    path.unlink()
    refused(tmp_path / "tfds", path, f"hold {images} images", "No such file")
    path.mkdir()
    refused(tmp_path / "tfds", path, "Is a directory")


GOOD = encode(images_and_labels(1)[0][0], "PNG")


@pytest.mark.parametrize(("image", "label", "message"), [
    (GOOD[:-200], 1, "can't be decoded"),
    (encode(images_and_labels(1)[0][0][:16], "PNG"), 1, r"(16, 32, 3)"),
    (GOOD, 10, "the label 10 instead of one of 0..9"),
], ids=["half an image", "size", "label too large"])  # fmt: skip
def test_an_undecodable_image_is_refused_by_shard_and_number(tmp_path, image, label, message):
    train = [(GOOD, 0)] * 17 + [(image, label)] + [(GOOD, 0)] * 12
    directory, _ = tfds_directory(tmp_path / "tfds", splits={"train": train, "test": [(GOOD, 0)] * TEST})
    path = directory / "cifar10-train.array_record-00001-of-00003"
    refused(tmp_path / "tfds", f"image 7 in {path}", message)


CLASS_LABEL = {"pythonClassName": "tensorflow_datasets.core.features.class_label_feature.ClassLabel"}


def info_with(**changes):
    return lambda info, features: (info | changes, features)


def features_with(**changes):
    def change(info, features):
        named = features["featuresDict"]["features"]
        left = {name: feature for name, feature in (named | changes).items() if feature is not None}
        return info, {**features, "featuresDict": {"features": left}}

    return change


def lengths(train, test):
    return [{"name": name, "shardLengths": list(map(str, part))} for name, part in (("train", train), ("test", test))]


@pytest.mark.parametrize(("change", "words"), [
    (info_with(splits=lengths([10, 10, 9], [4, 4, 4])), ["00002-of-00003", "10 of 9"]),
    (info_with(fileFormat="tfrecord"), ["dataset_info.json", "tfrecord", "TensorFlow"]),
    (features_with(label=None), ["'label'"]),
    (features_with(label={**CLASS_LABEL, "classLabel": {"numClasses": "9"}}), ["of 9 classes", "of 10 classes"]),
    (lambda info, features: ("{", features), ["dataset_info.json"]),
], ids=["one image fewer", "tfrecord", "no label", "9 classes", "no JSON"])  # fmt: skip
def test_metadata_that_does_not_fit_is_refused_by_file(tmp_path, change, words):
    directory, _ = tfds_directory(tmp_path / "tfds")
    paths = directory / "dataset_info.json", directory / "features.json"
    for path, content in zip(paths, change(*(json.loads(path.read_text()) for path in paths)), strict=True):
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    refused(tmp_path / "tfds", directory, *words)

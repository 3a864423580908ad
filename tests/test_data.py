"""Data sets by name, and the refusal of whatever is wrong with a prepared directory, naming the file."""

import json
import os
import pkgutil
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fdg_jax import data
from fdg_jax.data import cache, cifar, directories, download, prepared
from fdg_jax.data.sets import auto, cifar10, cifar100, digits
from fdg_jax.errors import BadInput
from fdg_jax.machine import stderr
from tests.cifar_files import SETS, TEST, TRAIN, assert_same, encode, images_and_labels, small, tfds_directory

CIFAR10 = cifar10.CIFAR10  # with the true numbers of images; most tests here use a small one
REAL = os.environ.get("FDG_JAX_TEST_DATA")  # a TensorFlow Datasets directory with CIFAR-10 in it


@pytest.fixture(autouse=True)
def _own_directories_and_no_network(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "default"))
    monkeypatch.setattr(cifar10, "CIFAR10", small(SETS[10]))

    def offline(*args):
        raise download.Unavailable("nothing can be downloaded in this test.")

    monkeypatch.setattr(cifar, "fetch", offline)


# Data sets by name


def test_every_file_in_sets_is_a_data_set_and_nothing_else_is():
    folder = Path(data.__file__).parent / "sets"
    assert data.names() == sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    assert {"auto", "cifar10", "cifar100", "digits", "synthetic"} <= set(data.names())


def test_a_new_data_set_is_one_new_file(tmp_path, monkeypatch):
    (tmp_path / "pinwheels.py").write_text(
        "from fdg_jax.data import Dataset\n"
        "def load(data_dir=None):\n"
        "    return Dataset('pinwheels', *[None] * 4, 3, (0.5,), (0.5,), 0, False, str(data_dir))\n"
    )
    monkeypatch.setattr(data.sets, "__path__", [*data.sets.__path__, str(tmp_path)])
    assert "pinwheels" in data.names()
    dataset = data.load("pinwheels", "somewhere")
    assert (dataset.name, dataset.classes, dataset.note) == ("pinwheels", 3, "somewhere")


@pytest.mark.parametrize("name", ["cifar", "CIFAR10", "", "../auto", "sets", "augment"])
def test_an_unknown_name_is_refused_with_the_known_ones(name):
    with pytest.raises(BadInput, match="auto, cifar10, cifar100, digits, synthetic"):
        data.load(name)


@pytest.mark.parametrize(
    "name", sorted({"digits", "synthetic"} | {m.name for m in pkgutil.iter_modules(data.sets.__path__)})
)
def test_every_data_set_keeps_the_contract(name, tmp_path, monkeypatch):
    """For all files in `sets/`, also future ones, that can be had here."""
    tfds_directory(tmp_path / "default")
    try:
        dataset = data.load(name)
    except download.Unavailable as reason:
        pytest.skip(f"{name} isn't here: {reason}")
    for images, labels in (
        (dataset.train_images, dataset.train_labels),
        (dataset.test_images, dataset.test_labels),
    ):
        assert images.dtype == np.uint8
        assert labels.dtype == np.int32
        assert images.ndim == 4
        assert labels.shape == images.shape[:1]
        assert labels.min() >= 0
        assert labels.max() < dataset.classes
        assert images.flags.c_contiguous
    assert dataset.train_images.shape[1:] == dataset.test_images.shape[1:]
    assert len(dataset.mean) == len(dataset.std) == dataset.train_images.shape[3]
    assert all(0 < value < 1 for value in (*dataset.mean, *dataset.std))
    assert 0 <= dataset.pad < dataset.train_images.shape[1]


def test_names_and_cifar_import_neither_jax_nor_tfds_nor_scikit_learn():
    code = (
        "import sys; from fdg_jax import data; data.names(); import fdg_jax.data.sets.auto\n"
        "print(sorted({'jax', 'tensorflow_datasets', 'sklearn', 'PIL'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "[]"


# Embedded and made-up images


def test_digits_are_the_same_images_in_the_same_split_everywhere():
    first, second = data.load("digits"), data.load("digits")
    assert first.train_images.shape == (1438, 32, 32, 3)
    assert first.test_images.shape == (359, 32, 32, 3)
    assert_same(first, second[1:5])
    assert cache.checksum(prepared.Arrays(*first[1:5])) == (
        "8e6f5e82df48c076a2030af1e38e1f09beeb41c774093020fc834b88695eab0b"
    )
    assert first.train_images.max() == 255
    assert not first.flip
    assert first.note == ""


def test_digits_are_stratified_and_no_image_is_in_both_splits():
    dataset = data.load("digits")
    train, test = np.bincount(dataset.train_labels), np.bincount(dataset.test_labels)
    # A fifth of each class, up to the rounding to whole images.
    np.testing.assert_allclose(test / (train + test), 0.2, atol=0.5 / 174)
    everything = {image.tobytes() for image in np.concatenate([dataset.train_images, dataset.test_images])}
    # scikit-learn's 1,797 digits are all different, so nothing was lost or doubled.
    assert len(everything) == 1797


def test_a_digit_is_its_original_enlarged_fourfold():
    from sklearn.datasets import load_digits

    raw, _ = load_digits(return_X_y=True)
    original = np.reshape(raw[:5], (5, 8, 8))
    enlarged = digits.to_cifar_shape(original)
    for channel in range(3):
        for offset in range(4):
            np.testing.assert_array_equal(enlarged[:, offset::4, offset::4, channel], np.round(original * 255 / 16))


def test_synthetic_images_are_the_same_everywhere_and_tell_their_class():
    dataset = data.load("synthetic")
    assert cache.checksum(prepared.Arrays(*dataset[1:5])) == (
        "ec52bea7441cd90815eac7ba9571c21fb0a69be586ea6aeeb90e69be2621d3a2"
    )
    mean, std = dataset.train_images[:1000].mean() / 255, dataset.train_images[:1000].std() / 255
    assert (round(mean, 1), round(std, 1)) == (0.5, 0.2)
    # The nearest class mean finds every test image's class: there is something to learn.
    means = np.stack([dataset.train_images[dataset.train_labels == c].mean(0) for c in range(10)]).reshape(10, -1)
    some = dataset.test_images[:100].reshape(100, 1, -1).astype(np.float32)
    assert (((some - means) ** 2).sum(-1).argmin(1) == dataset.test_labels[:100]).all()


# A prepared directory


@pytest.mark.parametrize("image_format", ["PNG", "WEBP"])
def test_a_prepared_directory_is_read_bit_for_bit(tmp_path, image_format, capsys):
    _, arrays = tfds_directory(tmp_path / "tfds", image_format)
    assert_same(data.load("cifar10", tmp_path / "tfds"), arrays)
    assert_same(data.load("cifar10", str(tmp_path / "tfds")), arrays)
    assert capsys.readouterr().err.count("decoding cifar10 (once): 42 images ...") == 1


def test_a_prepared_cifar_100_is_read_with_its_fine_labels(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar100, "CIFAR100", small(SETS[100]))
    _, arrays = tfds_directory(tmp_path, classes=100)
    found = data.load("cifar100", tmp_path)
    assert_same(found, arrays)
    assert (found.name, found.classes) == ("cifar100", 100)
    assert found.train_labels.max() > 20  # not one of the 20 coarse classes


def test_the_default_directory_is_tfdss_own(tmp_path, monkeypatch):
    _, arrays = tfds_directory(tmp_path / "default")
    assert_same(data.load("cifar10"), arrays)
    monkeypatch.delenv("TFDS_DATA_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "default").rename(tmp_path / "home" / "tensorflow_datasets")
    assert_same(data.load("cifar10"), arrays)


def test_the_newest_version_is_read(tmp_path):
    directory, _ = tfds_directory(tmp_path)
    for other in ("3.0.0", "3.0.10", "notes", ".3.0.11.1-2.tmp"):
        (directory.parent / other).mkdir()
        (directory.parent / other / "file").write_text("")
    assert directories.find("cifar10", tmp_path) == directory.parent / "3.0.10"


def test_progress_is_one_line_kept_up_to_date_on_a_terminal_and_one_sentence_elsewhere(monkeypatch, capsys):
    for terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        bar = stderr.Progress(2000, "images", "decoding")
        for _ in range(20):
            bar.advance(100)
        text = capsys.readouterr().err
        if terminal:
            assert text.endswith("\rdecoding: 2,000 of 2,000 images\n")
            assert text.count("\n") == 1
        else:
            assert text == "decoding: 2,000 images ...\n"


# The cache


def forbid(monkeypatch):
    monkeypatch.setattr(prepared, "read", lambda *args: pytest.fail("the images were decoded again"))


def test_the_second_start_decodes_nothing(tmp_path, monkeypatch):
    _, arrays = tfds_directory(tmp_path / "tfds")
    data.load("cifar10", tmp_path / "tfds")
    forbid(monkeypatch)
    assert_same(data.load("cifar10", tmp_path / "tfds"), arrays)


@pytest.mark.parametrize("change", ["touch", "replace", "rename", "expect"])
def test_changed_source_files_are_decoded_again(tmp_path, monkeypatch, change):
    directory, _ = tfds_directory(tmp_path / "tfds")
    data.load("cifar10", tmp_path / "tfds")
    shard = next(directory.glob("*train*"))
    if change == "touch":
        os.utime(shard)
    elif change == "replace":
        shard.write_bytes(shard.read_bytes()[:-1])
    elif change == "rename":
        shard.rename(shard.with_name("other"))
    else:
        expected = cifar10.CIFAR10.expected._replace(classes=9)
        monkeypatch.setattr(cifar10, "CIFAR10", cifar10.CIFAR10._replace(expected=expected))
    called = []
    read = prepared.read
    monkeypatch.setattr(prepared, "read", lambda *args: called.append(1) or read(*args))
    if change == "touch":
        data.load("cifar10", tmp_path / "tfds")
    else:
        with pytest.raises(BadInput):
            data.load("cifar10", tmp_path / "tfds")
    assert called


def cache_file(tmp_path) -> Path:
    (path,) = (tmp_path / "cache" / "fdg_jax").iterdir()
    return path


def test_a_damaged_cache_is_never_used_and_never_fatal(tmp_path, capsys):
    directory, arrays = tfds_directory(tmp_path / "tfds")
    data.load("cifar10", tmp_path / "tfds")
    path = cache_file(tmp_path)
    good = path.read_bytes()
    source = prepared.Arrays(*arrays)
    generator = np.random.RandomState(0)
    damages = [b"", b"garbage", good[: len(good) // 2], good[:-1], good + b"x", bytes(len(good))]
    for place in generator.randint(0, len(good), 60):
        flipped = bytearray(good)
        flipped[place] ^= 1 << generator.randint(8)
        damages.append(bytes(flipped))
    key = cache.fingerprint(directory, cifar10.CIFAR10.expected)
    for damaged in damages:
        path.write_bytes(damaged)
        found = cache.load(path, key)
        assert found is None or cache.checksum(found) == cache.checksum(source)
    path.write_bytes(good[:-1000])
    capsys.readouterr()
    assert_same(data.load("cifar10", tmp_path / "tfds"), arrays)
    message = capsys.readouterr().err
    assert str(path) in message
    assert "decoding again" in message
    assert path.read_bytes()[:100] == good[:100]


def test_a_cache_whose_arrays_are_not_the_ones_that_were_written_is_not_used(tmp_path):
    arrays = prepared.Arrays(*images_and_labels(5), *images_and_labels(3))
    cache.save(tmp_path / "cache.npz", "key", arrays)
    assert cache.load(tmp_path / "cache.npz", "key") is not None
    with np.load(tmp_path / "cache.npz") as file:
        content = dict(file)
    content["train_labels"] = content["train_labels"][::-1]  # a valid file, also for the archive's own checks
    np.savez(tmp_path / "cache.npz", allow_pickle=False, **content)
    assert cache.load(tmp_path / "cache.npz", "key") is None


def test_a_cache_with_pickled_objects_is_not_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return open, (str(tmp_path / "sprung"), "w")

    trap = np.array([Trap()], object)
    np.savez(tmp_path / "cache.npz", source=np.array("key"), train_images=trap, checksum=trap)
    assert cache.load(tmp_path / "cache.npz", "key") is None
    assert not (tmp_path / "sprung").exists()


def test_a_cache_directory_that_cannot_be_written_only_costs_time(tmp_path, monkeypatch, capsys):
    _, arrays = tfds_directory(tmp_path / "tfds")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        assert_same(data.load("cifar10", tmp_path / "tfds"), arrays)
        assert "the next start will decode them again" in capsys.readouterr().err


def test_a_cache_that_fills_the_disk_leaves_nothing(tmp_path, monkeypatch, capsys):
    _, arrays = tfds_directory(tmp_path / "tfds")

    def full(file, **arrays):
        file.write(b"part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert_same(data.load("cifar10", tmp_path / "tfds"), arrays)
    assert "No space left on device" in capsys.readouterr().err
    assert list((tmp_path / "cache" / "fdg_jax").iterdir()) == []


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


# The real thing


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="set FDG_JAX_TEST_DATA to a TensorFlow Datasets directory with CIFAR-10")
def test_real_cifar10_has_its_known_statistics_and_starts_fast_the_second_time(monkeypatch):
    monkeypatch.setattr(cifar10, "CIFAR10", CIFAR10)
    dataset = data.load("cifar10", REAL)
    assert dataset.train_images.shape == (50_000, 32, 32, 3)
    assert dataset.test_images.shape == (10_000, 32, 32, 3)
    assert np.bincount(dataset.train_labels).tolist() == [5000] * 10
    assert np.bincount(dataset.test_labels).tolist() == [1000] * 10
    pixels = dataset.train_images.reshape(-1, 3)[::7]
    # A seventh of 51 million pixels: the deviation of its mean is 0.0001; the constants have 4 decimals.
    np.testing.assert_allclose(pixels.mean(0) / 255, dataset.mean, atol=5e-4)
    np.testing.assert_allclose(pixels.std(0) / 255, dataset.std, atol=5e-4)

    forbid(monkeypatch)
    start = time.monotonic()
    again = data.load("cifar10", REAL)
    assert time.monotonic() - start < 3
    assert_same(again, dataset[1:5])

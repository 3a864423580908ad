"""Data sets by name: made-up images, prepared directories, and what is said while they are read."""

import pkgutil
import re

import numpy as np
import pytest
from cifar_processes import printed

from fdg_jax import data
from fdg_jax.data import Dataset, arrays, download
from fdg_jax.data.dataset import checked
from fdg_jax.data.sets import cifar100
from fdg_jax.errors import BadInput
from tests.cifar_files import SETS, arrays_of, assert_same, own_directories_and_no_network, small, tfds_directory


@pytest.fixture(autouse=True)
def _own_directories_and_no_network(tmp_path, monkeypatch):
    own_directories_and_no_network(tmp_path, monkeypatch)


# Data sets by name


def test_a_new_data_set_is_one_new_file(tmp_path, monkeypatch):
    (tmp_path / "pinwheels.py").write_text(
        "import numpy as np\n"
        "from fdg_jax.data import Dataset\n"
        "def load(data_dir=None):\n"
        "    images, labels = np.zeros((2, 8, 8, 1), np.uint8), np.array([0, 2], np.int32)\n"
        "    return Dataset('pinwheels', *[images, labels] * 2, 3, (0.5,), (0.5,), 0, False, str(data_dir))\n"
    )
    monkeypatch.setattr(data.sets, "__path__", [*data.sets.__path__, str(tmp_path)])
    assert "pinwheels" in data.names()
    dataset = data.load("pinwheels", "somewhere")
    assert (dataset.name, dataset.classes, dataset.note) == ("pinwheels", 3, "somewhere")


IMAGES, LABELS = np.zeros((5, 8, 8, 3), np.uint8), np.arange(5, dtype=np.int32)
SOUND = Dataset("mine", IMAGES, LABELS, IMAGES, LABELS, 5, (0.5,) * 3, (0.2,) * 3, pad=1, flip=False)


@pytest.mark.parametrize(("changed", "said"), [
    ({"train_images": IMAGES / 255}, "train_images is float64[5, 8, 8, 3]. Images are uint8[N, H, W, C]."),
    ({"test_images": IMAGES[:, :4]}, "test_images is uint8[5, 4, 8, 3], but train_images is uint8[5, 8, 8, 3]."),
    ({"train_labels": LABELS.astype(np.int64)}, "train_labels is int64[5]. Labels are int32[N], one for each"),
    ({"test_labels": LABELS[:4]}, "test_labels is int32[4]. Labels are int32[N], one for each"),
    ({"test_images": IMAGES[:0], "test_labels": LABELS[:0]}, "there is no image in it"),
    ({"train_labels": LABELS + 1}, "train_labels run from 1 to 5. With 5 classes labels are 0 to 4."),
    ({"std": (0.2, 0.0, 0.2)}, "std is (0.2, 0.0, 0.2). It needs 3 numbers between 0 and 1"),
    ({"mean": (0.5,)}, "mean is (0.5,). It needs 3 numbers between 0 and 1"),
    ({"pad": 8}, "pad is 8. Use less than the 8 pixels of an image"),
])  # fmt: skip
def test_what_breaks_the_contract_of_a_data_set_is_refused_when_it_is_loaded(changed, said):
    assert checked(SOUND) is SOUND
    with pytest.raises(BadInput, match=re.escape(said)):
        checked(SOUND._replace(**changed))


@pytest.mark.parametrize("name", ["cifar", "..auto"])
def test_an_unknown_name_is_refused_with_the_known_ones(name):
    with pytest.raises(BadInput, match="auto, cifar10, cifar100, cifar10_16, digits, synthetic"):
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
    # `load` has checked dtypes, shapes, labels and statistics (test_what_breaks_the_contract...).
    assert dataset.train_images.flags.c_contiguous and dataset.test_images.flags.c_contiguous
    black = dataset.without_inputs()
    assert black.train_images.shape == dataset.train_images.shape and black.shape == dataset.shape
    assert black.train_images.strides == black.test_images.strides == (0, 0, 0, 0)  # they take no memory
    assert black.train_labels is dataset.train_labels


def test_names_and_cifar_import_neither_jax_nor_tfds_nor_scikit_learn():
    code = (
        "import sys; from fdg_jax import data; data.names(); import fdg_jax.data.sets.auto\n"
        "print(sorted({'jax', 'tensorflow_datasets', 'sklearn', 'PIL'} & set(sys.modules)))"
    )
    assert printed("-c", code).strip() == "[]"


# Embedded and made-up images


def test_digits_are_the_same_images_in_the_same_split_everywhere():
    first, second = data.load("digits"), data.load("digits")
    assert first.train_images.shape == (1438, 32, 32, 3)
    assert first.test_images.shape == (359, 32, 32, 3)
    assert_same(first, arrays_of(second))
    assert arrays.digest(arrays_of(first)) == (
        "8e6f5e82df48c076a2030af1e38e1f09beeb41c774093020fc834b88695eab0b"
    )
    assert first.train_images.max() == 255
    assert not first.flip
    assert first.note == ""


def test_synthetic_images_are_the_same_everywhere_and_tell_their_class():
    dataset = data.load("synthetic")
    assert arrays.digest(arrays_of(dataset)) == (
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
    _, wrote = tfds_directory(tmp_path / "tfds", image_format)
    assert_same(data.load("cifar10", tmp_path / "tfds"), wrote)
    assert_same(data.load("cifar10", str(tmp_path / "tfds")), wrote)
    assert capsys.readouterr().err.count("decoding cifar10 (once): 42 images ...") == 1


def test_a_prepared_cifar_100_is_read_with_its_fine_labels(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar100, "CIFAR100", small(SETS[100]))
    _, wrote = tfds_directory(tmp_path, classes=100)
    found = data.load("cifar100", tmp_path)
    assert_same(found, wrote)
    assert (found.name, found.classes) == ("cifar100", 100)
    assert found.train_labels.max() > 20  # not one of the 20 coarse classes


def test_cifar10_16_is_cifar10_with_every_two_by_two_pixels_made_one(tmp_path):
    _, (train, train_labels, test, test_labels) = tfds_directory(tmp_path)
    found = data.load("cifar10_16", tmp_path)
    assert (found.name, found.shape, found.classes, found.pad, found.flip) == ("cifar10_16", (16, 16, 3), 10, 2, True)
    for images, original in ((found.train_images, train), (found.test_images, test)):
        blocks = original.reshape(len(original), 16, 2, 16, 2, 3).astype(float).mean((2, 4))
        np.testing.assert_array_equal(images, np.floor(blocks + 0.5))
        assert images.dtype == np.uint8 and images.flags.c_contiguous
    np.testing.assert_array_equal(found.train_labels, train_labels)
    np.testing.assert_array_equal(found.test_labels, test_labels)


def test_the_newest_version_is_read(tmp_path):
    directory, _ = tfds_directory(tmp_path)
    for other in ("3.0.0", "3.0.10", "notes", ".3.0.11.1-2.tmp"):
        (directory.parent / other).mkdir()
        (directory.parent / other / "file").write_text("")
    assert arrays.prepared("cifar10", tmp_path) == directory.parent / "3.0.10"

"""A data set has one fingerprint wherever it lies, and another one where images, labels or their order differ."""

import os
import shutil

import numpy as np
import pytest
from image_files import WNIDS, imagenet, photo

from fdg_jax import data
from fdg_jax.data import fingerprint


@pytest.fixture
def tree(tmp_path):
    imagenet(tmp_path / "there")
    return tmp_path / "there"


def of(folder):
    return fingerprint.of(data.load("imagenet", folder))


def test_a_copy_at_another_place_with_other_times_is_the_same(tree, tmp_path):
    shutil.copytree(tree, tmp_path / "elsewhere" / "imagenet")
    for file in (tmp_path / "elsewhere").rglob("*.JPEG"):
        os.utime(file, (0, 0))
    assert fingerprint.difference(of(tree), of(tmp_path / "elsewhere")) == ""


def added(tree):
    (tree / "train" / WNIDS[0] / "more.JPEG").write_bytes(photo(7))


def swapped(tree):
    first, second = (tree / "train" / name for name in WNIDS[:2])
    first.rename(tree / "aside")
    second.rename(first)
    (tree / "aside").rename(second)


def renamed(tree):
    file = next(iter(sorted((tree / "train" / WNIDS[0]).iterdir())))
    file.rename(file.with_name("zzz.JPEG"))


def replaced(tree):
    file = next(iter(sorted((tree / "val" / WNIDS[0]).iterdir())))
    file.write_bytes(photo(4321))


@pytest.mark.parametrize(("change", "said"), [
    (added, "13 training images now, 12 before"),
    (swapped, "other labels or another order of the training images"),
    (renamed, "other labels or another order of the training images"),
    (replaced, "other pixels in the test images"),
])  # fmt: skip
def test_a_changed_tree_of_images_is_told(tree, change, said):
    before = of(tree)
    change(tree)
    assert fingerprint.difference(before, of(tree)) == said


def test_arrays_in_memory_are_told_to_the_last_bit():
    digits = data.load("digits")
    was = fingerprint.of(digits)
    assert fingerprint.difference(was, fingerprint.of(data.load("digits"))) == ""
    pixel, label = np.array(digits.train_images), np.array(digits.test_labels)
    pixel[3, 2, 1, 0] ^= 1
    label[5] = (label[5] + 1) % 10
    changes = {
        "other pixels in the training images": {"train_images": pixel},
        "other labels or another order of the test images": {"test_labels": label},
        "10 training images now, 1438 before": {
            name: getattr(digits, name)[:10] for name in ("train_images", "train_labels")
        },
        "classes 11 now, 10 before": {"classes": 11},
    }
    for said, change in changes.items():
        assert fingerprint.difference(was, fingerprint.of(digits._replace(**change))) == said


@pytest.mark.parametrize("kept", [None, {}, [], "x", {"format": 0}, {"format": 1, "train": 3, "test": {}}])
def test_what_is_no_fingerprint_of_this_version_is_not_compared(kept):
    assert not fingerprint.comparable(kept)
    assert fingerprint.comparable(fingerprint.of(data.load("digits")))

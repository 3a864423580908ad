"""Tiny-ImageNet from its own folder layout: what is decoded, kept, and refused by name before any work."""

import numpy as np
import pytest

from fdg_jax import data
from fdg_jax.data import files
from fdg_jax.data.sets import tiny_imagenet
from fdg_jax.errors import BadInput
from tests.cifar_files import arrays_of
from tests.image_files import SMALL, WNIDS, photo, pixels
from tests.image_files import tiny_imagenet as write_tiny_imagenet


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The files, a few images of three classes, and what is in them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "default"))
    monkeypatch.setattr(tiny_imagenet, "TINY", SMALL)
    monkeypatch.setattr(files, "CHUNK", 5)  # so that several threads have something to do
    return write_tiny_imagenet(tmp_path / "data")


def test_every_image_is_decoded_with_its_class_and_grey_ones_in_three_channels(written, tmp_path):
    found = data.load("tiny_imagenet", tmp_path / "data")
    assert (found.name, found.classes, found.pad, found.flip, found.note) == ("tiny_imagenet", 3, 8, True, "")
    train = {pixels(content).tobytes(): wnid for name, (content, wnid) in written.items() if name.startswith("n")}
    test = {pixels(content).tobytes(): wnid for name, (content, wnid) in written.items() if name.startswith("val")}
    for images, labels, expected in (
        (found.train_images, found.train_labels, train),
        (found.test_images, found.test_labels, test),
    ):
        assert images.shape == (len(expected), 64, 64, 3)
        assert {image.tobytes(): WNIDS[c] for image, c in zip(images, labels, strict=True)} == expected
        assert (images.dtype, labels.dtype) == (np.uint8, np.int32)


def test_images_are_decoded_once_and_again_when_a_file_changes(written, tmp_path, monkeypatch, capsys):
    first = data.load("tiny_imagenet", tmp_path / "data")
    decode = files.decoded
    monkeypatch.setattr(files, "decoded", lambda *_: pytest.fail("decoded again"))
    second = data.load("tiny_imagenet", tmp_path / "data" / "tiny-imagenet-200")  # the folder itself will do
    for a, b in zip(arrays_of(first), arrays_of(second), strict=True):
        np.testing.assert_array_equal(a, b)
    monkeypatch.setattr(files, "decoded", decode)
    changed = tmp_path / "data" / "tiny-imagenet-200" / "val" / "images" / "val_3.JPEG"
    changed.write_bytes(photo(77))
    third = data.load("tiny_imagenet", tmp_path / "data")
    assert pixels(photo(77)).tobytes() in {image.tobytes() for image in third.test_images}
    assert capsys.readouterr().err.count("decoding tiny_imagenet (once): 18 images ...") == 2


def cut(path):
    path.write_bytes(path.read_bytes()[:-200])


def first_lines(path, count):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:count]))


FILE = f"train/{WNIDS[1]}/images/{WNIDS[1]}_2.JPEG"
DAMAGE = {
    "a class": ("wnids.txt", lambda path: first_lines(path, 2), "wnids.txt lists 2 classes"),
    "an image": (FILE, lambda path: path.unlink(), f"{FILE} is missing (3 of 4 images are there"),
    "the annotations": ("val/val_annotations.txt", lambda path: path.unlink(), "val_annotations.txt is missing:"),
    "an image's end": (FILE, cut, f"{FILE} can't be decoded (1"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_what_is_missing_or_damaged_is_refused_by_name(what, written, tmp_path):
    file, damage, message = DAMAGE[what]
    damage(tmp_path / "data" / "tiny-imagenet-200" / file)
    with pytest.raises(BadInput) as refused:
        data.load("tiny_imagenet", tmp_path / "data")
    assert message in str(refused.value)


def test_an_annotation_of_an_unknown_class_or_another_image_is_refused(written, tmp_path):
    path = tmp_path / "data" / "tiny-imagenet-200" / "val" / "val_annotations.txt"
    text = path.read_text()
    path.write_text(text.replace(f"val_2.JPEG\t{WNIDS[0]}", "val_2.JPEG\tn00000000"))
    with pytest.raises(BadInput, match=r"says that val_2\.JPEG is of class n00000000"):
        data.load("tiny_imagenet", tmp_path / "data")
    path.write_text(text.replace("val_2.JPEG", "val_9.JPEG"))
    with pytest.raises(BadInput, match=r"val_2\.JPEG is not listed in .*val_annotations\.txt"):
        data.load("tiny_imagenet", tmp_path / "data")

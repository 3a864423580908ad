"""ImageNet in each layout, and batches that follow from (seed, number) however many processes make them."""

import hashlib
import os

import jax
import numpy as np
import pytest

from fdg_jax import data
from fdg_jax.data import download, jpeg, stream
from fdg_jax.data.augment import train_transform
from fdg_jax.data.stream import Loader, TestBatches, TrainBatches
from fdg_jax.data.streams import imagenet
from fdg_jax.errors import BadInput, Damaged
from tests.image_files import WNIDS, decoded, imagenet_prepared, pixels
from tests.image_files import imagenet as write_imagenet


@pytest.fixture(autouse=True)
def _nothing_by_default(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "default"))
    monkeypatch.delenv(stream.WORKERS, raising=False)


def content(images) -> dict[bytes, int]:
    """{a hash of the pixels: label} of all images."""
    return {hashlib.sha256(decoded(images, i)).digest(): images.read(i)[1] for i in range(len(images))}


def expected(examples) -> dict[bytes, int]:
    return {hashlib.sha256(pixels(image)).digest(): label for image, label in examples}


# Layouts


@pytest.mark.parametrize("layout", ["folders", "flat", "kaggle"])
def test_folders_are_read_with_validation_images_by_class_or_flat(tmp_path, layout):
    val = 3 if layout == "flat" else 6  # TFDS's list knows the true images only, and these are the first of them
    made = write_imagenet(tmp_path, val=val, layout=layout)
    found = data.load("imagenet", tmp_path)
    assert (found.name, found.classes, found.shape) == ("imagenet", 3, (224, 224, 3))
    for images, begins in ((found.train_images, "n"), (found.test_images, "ILSVRC2012_val_")):
        wanted = [(image, WNIDS.index(wnid)) for name, (image, wnid) in made.items() if name.startswith(begins)]
        assert content(images) == expected(wanted)
    assert "NOT all of ImageNet" in found.note and f"12 training and {val} validation images of 3" in found.note


def test_a_directory_that_tfds_prepared_is_read_record_by_record(tmp_path):
    _, splits = imagenet_prepared(tmp_path)
    found = data.load("imagenet", tmp_path)
    assert content(found.train_images) == expected(splits["train"])
    assert content(found.test_images) == expected(splits["validation"])
    assert found.classes == 3
    labels = [found.train_images.read(i)[1] for i in range(12)]
    assert labels != sorted(labels) and labels != [i % 3 for i in range(12)]  # shuffled


def test_the_default_directory_and_a_folder_named_imagenet_are_looked_into(tmp_path):
    with pytest.raises(download.Unavailable, match=r"ImageNet isn't in .*default, and this program does not download"):
        data.load("imagenet")
    write_imagenet(tmp_path / "default" / "imagenet")
    assert len(data.load("imagenet").train_images) == 12


def cut(path):
    path.write_bytes(path.read_bytes()[:-300])


TRAIN, VAL = f"train/{WNIDS[1]}", "val/ILSVRC2012_val_00000002.JPEG"
DAMAGE = {
    "everything": ("folders", "train", lambda path: path.rename(path.with_name("x")), "has neither a folder train nor"),
    "an image's end": ("folders", f"{TRAIN}/{WNIDS[1]}_11.JPEG", cut, f"{WNIDS[1]}_11.JPEG can't be decoded (1"),
    "a listed image": ("kaggle", VAL, lambda path: path.unlink(), f"{VAL} is missing (1 of the 6 images listed in"),
    "the list": ("kaggle", "LOC_val_solution.csv", lambda path: path.write_text("a,b\nc\n"), "isn't Kaggle's"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_what_is_missing_or_damaged_in_folders_is_refused_by_name(what, tmp_path):
    layout, file, damage, message = DAMAGE[what]
    write_imagenet(tmp_path, layout=layout, val=3 if layout == "flat" else 6)
    damage(tmp_path / file)
    with pytest.raises(BadInput) as refused:
        data.load("imagenet", tmp_path)
    assert message in str(refused.value)


def test_a_damaged_record_is_named(tmp_path):
    directory, _ = imagenet_prepared(tmp_path)
    shard = directory / "imagenet2012-validation.array_record-00001-of-00003"
    records = bytearray(shard.read_bytes())
    middle = records.index(b"\xff\xd8\xff") + 200  # in the first photograph of the shard
    records[middle : middle + 8] = b"\0" * 8
    shard.write_bytes(records)
    with pytest.raises(Damaged, match=r"image 0 in .*validation.array_record-00001-of-00003 can't be read"):
        data.load("imagenet", tmp_path)


# Batches


@pytest.fixture
def small(tmp_path):
    """10 training images, and 6 validation images."""
    write_imagenet(tmp_path)
    return data.load("imagenet", tmp_path).first(10)._replace(side=32)


def sha256(batches) -> list[str]:
    return [hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest() for images, labels in batches]


def test_an_epoch_has_every_image_once_and_ends_in_a_smaller_batch(small):
    batches = TrainBatches(small, batch_size=4, seed=0)
    for epoch in range(2):
        three = [batches[3 * epoch + b] for b in range(3)]
        assert [images.shape for images, _ in three] == [(4, 32, 32, 3), (4, 32, 32, 3), (2, 32, 32, 3)]
        assert {(images.dtype, labels.dtype) for images, labels in three} == {(np.dtype(np.uint8), np.dtype(np.int32))}
        labels = np.concatenate([labels for _, labels in three])
        assert sorted(labels) == sorted(small.train_images.read(i)[1] for i in range(10))


def test_a_batch_depends_on_seed_and_number_alone(small):
    one, two = TrainBatches(small, 4, seed=0), TrainBatches(small, 4, seed=0)
    forwards = sha256(one[g] for g in range(9))
    assert forwards == sha256(two[g] for g in reversed(range(9)))[::-1]
    assert len(set(forwards)) == 9  # another order and other crops in every epoch
    assert not set(forwards) & set(sha256(TrainBatches(small, 4, seed=1)[g] for g in range(9)))


@pytest.mark.slow  # three processes import JAX, because grain does
def test_the_number_of_workers_changes_no_batch(small):
    plain = sha256(TrainBatches(small, 4, seed=0)[g] for g in range(2, 9))
    for workers in (0, 1, 2):
        with Loader(TrainBatches(small, 4, seed=0), start=2, workers=workers) as loader:
            assert sha256(next(loader) for _ in range(7)) == plain, workers


def test_test_batches_are_all_test_images_in_order(small):
    with Loader(TestBatches(small, 4), workers=0) as loader:
        batches = list(loader)
    assert [len(labels) for _, labels in batches] == [4, 2]
    images, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    for i in range(6):
        image, label, _ = small.test_images.read(i)
        np.testing.assert_array_equal(images[i], jpeg.test_crop(jpeg.decode_image(image, "it"), 32))
        assert labels[i] == label


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_an_image_that_is_damaged_later_is_named_whoever_decodes_it(small, workers):
    victim = small.train_images.path(3)
    with open(victim, "r+b") as file:
        file.truncate(300)
    loader = Loader(TrainBatches(small, 4, seed=0), workers=workers)
    with loader, pytest.raises(Damaged, match=f"{os.path.basename(victim)} can't be decoded"):
        sha256(next(loader) for _ in range(3))


def test_the_device_only_normalises_what_was_cropped_and_mirrored_before(small):
    images, _ = TrainBatches(small, 4, seed=0)[0]
    found = jax.jit(train_transform(small, 0))(images, 5)
    wanted = (images / 255 - np.array(imagenet.MEAN)) / np.array(imagenet.STD)
    np.testing.assert_allclose(found, wanted, atol=2e-6)  # float32 of numbers up to 2.7

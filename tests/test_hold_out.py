"""--hold-out N: options are chosen by training examples that were put aside, and never by the test examples."""

import dataclasses

import numpy as np
import pytest

from fdg_jax import data
from fdg_jax.config import Config
from fdg_jax.data.dataset import Dataset
from fdg_jax.errors import BadInput
from fdg_jax.training.job import load_data

FEW = Config(dataset="digits", batch_size=8)


@pytest.fixture(autouse=True)
def fifty_images(monkeypatch):
    """Instead of the digits: 50 training and 20 test images, no two alike."""
    pixels = np.random.RandomState(0).randint(0, 256, (70, 32, 32, 3), np.uint8)
    labels = np.arange(70, dtype=np.int32) % 10
    made = Dataset(
        "digits", pixels[:50], labels[:50], pixels[50:], labels[50:], classes=10, mean=(0.5,) * 3, std=(0.2,) * 3,
        pad=4, flip=True,
    )  # fmt: skip
    monkeypatch.setattr(data, "load", lambda *_: made)


def with_(options, **changed):
    return load_data(dataclasses.replace(options, **changed), "")


def test_the_last_training_images_are_tested_on_and_the_others_are_trained_on():
    whole, found = with_(FEW), with_(FEW, hold_out=10)
    shorter = with_(FEW, train_size=40)  # what such a run trains on is what this one does
    for name in ("train_images", "train_labels"):
        np.testing.assert_array_equal(getattr(found, name), getattr(shorter, name))
    np.testing.assert_array_equal(found.test_images, whole.train_images[40:])
    np.testing.assert_array_equal(found.test_labels, whole.train_labels[40:])
    assert (len(whole.train_images), len(found.train_images), len(found.test_images)) == (50, 40, 10)


def test_no_test_image_is_looked_at_and_the_data_set_is_still_recognised():
    whole, found = with_(FEW), with_(FEW, hold_out=10)
    shown = {image.tobytes() for image in found.test_images}
    assert shown <= {image.tobytes() for image in whole.train_images}
    assert found.fingerprint == whole.fingerprint  # of the whole data set, so a run goes on with the same files only
    assert "last 10 training images are held out" in found.note and not whole.note


def test_train_size_counts_what_is_left():
    whole, found = with_(FEW), with_(FEW, hold_out=10, train_size=16)
    np.testing.assert_array_equal(found.train_images, whole.train_images[:16])
    assert len(found.test_images) == 10
    with pytest.raises(BadInput, match="digits has 40 training images"):
        with_(FEW, hold_out=10, train_size=44)


def test_blocks_of_a_text_are_held_out_with_their_labels(tmp_path):
    (tmp_path / "text").write_bytes(bytes(range(256)) * 8)
    options = Config(dataset="text", text=str(tmp_path / "text"), block_size=16, batch_size=2)
    whole, found = with_(options), with_(options, hold_out=10)
    n = len(whole.train_inputs) - 10
    np.testing.assert_array_equal(found.train_inputs, whole.train_inputs[:n])
    np.testing.assert_array_equal(found.test_inputs, whole.train_inputs[n:])
    np.testing.assert_array_equal(np.array(found.test_labels)[:, :-1], np.array(found.test_inputs)[:, 1:])


@pytest.mark.parametrize("n", [50, 5000])
def test_nothing_would_be_left_to_train_on(n):
    with pytest.raises(BadInput, match=f"--hold-out {n}: digits has 50 training images"):
        with_(FEW, hold_out=n)

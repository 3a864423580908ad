"""--hold-out N: options are chosen by training examples that were put aside, and never by the test examples."""

import dataclasses

import numpy as np
import pytest

from fdg_jax import data
from fdg_jax.errors import BadInput
from fdg_jax.runs import option_checks
from fdg_jax.runs.options import Options
from fdg_jax.training.setup import load_data

DIGITS = Options(dataset="digits", batch_size=32)


def with_(options, **changed):
    return load_data(dataclasses.replace(options, **changed), "")


def test_the_last_training_images_are_tested_on_and_the_others_are_trained_on():
    whole, found = with_(DIGITS), with_(DIGITS, hold_out=100)
    shorter = with_(DIGITS, train_size=1338)  # what such a run trains on is what this one does
    for name in ("train_images", "train_labels"):
        np.testing.assert_array_equal(getattr(found, name), getattr(shorter, name))
    np.testing.assert_array_equal(found.test_images, whole.train_images[1338:])
    np.testing.assert_array_equal(found.test_labels, whole.train_labels[1338:])
    assert (len(whole.train_images), len(found.train_images), len(found.test_images)) == (1438, 1338, 100)


def test_no_test_image_is_looked_at_and_the_data_set_is_still_recognised():
    whole, found = with_(DIGITS), with_(DIGITS, hold_out=100)
    shown = {image.tobytes() for image in found.test_images}
    assert shown <= {image.tobytes() for image in whole.train_images}
    assert found.fingerprint == whole.fingerprint  # of the whole data set, so a run goes on with the same files only
    assert "last 100 training images are held out" in found.note and not whole.note


def test_train_size_counts_what_is_left():
    whole, found = with_(DIGITS), with_(DIGITS, hold_out=100, train_size=64)
    np.testing.assert_array_equal(found.train_images, whole.train_images[:64])
    assert len(found.test_images) == 100
    with pytest.raises(BadInput, match="digits has 1338 training images"):
        with_(DIGITS, hold_out=100, train_size=1400)


def test_blocks_of_a_text_are_held_out_with_their_labels(tmp_path):
    (tmp_path / "text").write_bytes(bytes(range(256)) * 8)
    options = Options(dataset="text", text=str(tmp_path / "text"), block_size=16, batch_size=2)
    whole, found = with_(options), with_(options, hold_out=10)
    n = len(whole.train_inputs) - 10
    np.testing.assert_array_equal(found.train_inputs, whole.train_inputs[:n])
    np.testing.assert_array_equal(found.test_inputs, whole.train_inputs[n:])
    np.testing.assert_array_equal(found.test_labels[:, :-1], found.test_inputs[:, 1:])


@pytest.mark.parametrize("n", [1438, 5000])
def test_nothing_would_be_left_to_train_on(n):
    with pytest.raises(BadInput, match=f"--hold-out {n}: digits has 1438 training images"):
        with_(DIGITS, hold_out=n)


def test_a_negative_number_is_refused_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr(data, "load", None)
    with pytest.raises(BadInput, match="--hold-out -1: use a number"):
        option_checks.check(Options(method="bp", K=1, hold_out=-1), frozenset())

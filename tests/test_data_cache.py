"""Decoded images are kept: the second start decodes nothing, and a damaged cache is never used."""

import os

import numpy as np
import pytest

from fdg_jax import data
from fdg_jax.data import arrays, tfds
from fdg_jax.data.sets import cifar10
from fdg_jax.errors import BadInput
from tests.cifar_files import assert_same, own_directories_and_no_network, tfds_directory

CIFAR10 = cifar10.CIFAR10  # with the true numbers of images; most tests here use a small one
REAL = os.environ.get("FDG_JAX_TEST_DATA")  # a TensorFlow Datasets directory with CIFAR-10 in it


@pytest.fixture(autouse=True)
def _own_directories_and_no_network(tmp_path, monkeypatch):
    own_directories_and_no_network(tmp_path, monkeypatch)


def decodings(monkeypatch) -> list:
    """Gets an element for each time that a prepared directory is decoded."""
    called, read = [], tfds.read
    monkeypatch.setattr(tfds, "read", lambda *given: called.append(given) or read(*given))
    return called


def test_the_second_start_decodes_nothing_unless_a_file_has_changed(tmp_path, monkeypatch):
    directory, wrote = tfds_directory(tmp_path / "tfds")
    called, shard = decodings(monkeypatch), next(directory.glob("*train*"))
    for time in (1, 1, 2, 2):
        os.utime(shard, (time, time))
        assert_same(data.load("cifar10", tmp_path / "tfds"), wrote)
        assert len(called) == time
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(BadInput):
        data.load("cifar10", tmp_path / "tfds")
    assert len(called) == 3


def test_a_damaged_cache_is_never_used_and_never_fatal(tmp_path, capsys):
    _, wrote = tfds_directory(tmp_path / "tfds")
    data.load("cifar10", tmp_path / "tfds")
    (path,) = (tmp_path / "cache" / "fdg_jax").iterdir()
    good, generator = path.read_bytes(), np.random.RandomState(0)
    damages = [b"", b"garbage", good[: len(good) // 2], good[:-1], bytes(len(good))]
    for place in generator.randint(0, len(good), 60):
        flipped = bytearray(good)
        flipped[place] ^= 1 << generator.randint(8)
        damages.append(bytes(flipped))
    with np.load(path) as file:
        content, source = dict(file), str(file["source"])
    for damaged in damages:
        path.write_bytes(damaged)
        try:
            assert arrays.digest(arrays.read(path, source) or wrote) == arrays.digest(wrote)
        except ValueError:
            continue
    content["train_labels"] = content["train_labels"][::-1]  # a valid file, also for the archive's own checks
    np.savez(path, allow_pickle=False, **content)
    assert_same(data.load("cifar10", tmp_path / "tfds"), wrote)
    message = capsys.readouterr().err
    assert str(path) in message and "decoding again" in message
    assert path.read_bytes()[:100] == good[:100]


def test_a_cache_directory_that_cannot_be_written_only_costs_time(tmp_path, monkeypatch, capsys):
    _, wrote = tfds_directory(tmp_path / "tfds")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        assert_same(data.load("cifar10", tmp_path / "tfds"), wrote)
        assert "the next start will decode them again" in capsys.readouterr().err


# The real thing


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="set FDG_JAX_TEST_DATA to a TensorFlow Datasets directory with CIFAR-10")
def test_real_cifar10_has_its_known_statistics(monkeypatch):
    monkeypatch.setattr(cifar10, "CIFAR10", CIFAR10)
    dataset = data.load("cifar10", REAL)
    assert np.bincount(dataset.train_labels).tolist() == [5000] * 10
    assert np.bincount(dataset.test_labels).tolist() == [1000] * 10
    pixels = dataset.train_images.reshape(-1, 3)[::7]
    # A seventh of 51 million pixels: the deviation of its mean is 0.0001; the constants have 4 decimals.
    np.testing.assert_allclose(pixels.mean(0) / 255, dataset.mean, atol=5e-4)
    np.testing.assert_allclose(pixels.std(0) / 255, dataset.std, atol=5e-4)


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="set FDG_JAX_TEST_DATA to a TensorFlow Datasets directory with CIFAR-10")
def test_real_cifar10_16_has_the_statistics_that_stand_in_its_file(monkeypatch):
    monkeypatch.setattr(cifar10, "CIFAR10", CIFAR10)
    dataset = data.load("cifar10_16", REAL)
    assert dataset.train_images.shape == (50_000, 16, 16, 3)
    assert dataset.test_images.shape == (10_000, 16, 16, 3)
    mean, std = arrays.training_statistics(dataset.train_images)
    assert (mean, std) == (dataset.mean, dataset.std)

"""Decoded images are kept: the second start decodes nothing, and a damaged cache is never used."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from fdg_jax import data
from fdg_jax.data import cache, prepared
from fdg_jax.data.sets import cifar10, cifar10_16
from fdg_jax.errors import BadInput
from tests.cifar_files import (
    assert_same,
    images_and_labels,
    own_directories_and_no_network,
    tfds_directory,
)

CIFAR10 = cifar10.CIFAR10  # with the true numbers of images; most tests here use a small one
REAL = os.environ.get("FDG_JAX_TEST_DATA")  # a TensorFlow Datasets directory with CIFAR-10 in it


@pytest.fixture(autouse=True)
def _own_directories_and_no_network(tmp_path, monkeypatch):
    own_directories_and_no_network(tmp_path, monkeypatch)


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


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="set FDG_JAX_TEST_DATA to a TensorFlow Datasets directory with CIFAR-10")
def test_real_cifar10_16_has_the_statistics_that_stand_in_its_file(monkeypatch):
    monkeypatch.setattr(cifar10, "CIFAR10", CIFAR10)
    dataset = data.load("cifar10_16", REAL)
    assert dataset.train_images.shape == (50_000, 16, 16, 3)
    assert dataset.test_images.shape == (10_000, 16, 16, 3)
    mean, std = cifar10_16.training_statistics(dataset.train_images)
    assert tuple(round(each, 4) for each in mean) == dataset.mean
    assert tuple(round(each, 4) for each in std) == dataset.std

"""Decoded images are kept: the second start decodes nothing, and a damaged cache is never used."""

import os

import numpy as np
import pytest

from fdg_jax import data
from fdg_jax.data import arrays, tfds
from fdg_jax.errors import BadInput
from tests.cifar_files import assert_same, own_directories_and_no_network, tfds_directory


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

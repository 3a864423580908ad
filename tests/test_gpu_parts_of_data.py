"""CIFAR-10 brought to a machine in parts."""

import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from gpu_fakes import Fakes, at, failing, raises

from experiments.gpu import __main__ as command
from experiments.gpu import parts as packed
from experiments.gpu import steps
from experiments.gpu.settings import FULL, rows
from fdg_jax.data.arrays import Arrays, Expected
from fdg_jax.data.dataset import Dataset
from fdg_jax.data.sets import cifar10
from fdg_jax.errors import BadInput


@pytest.fixture(autouse=True)
def environment_as_it_was():
    with mock.patch.dict(os.environ):
        yield


# The data


def made_up(train: int, test: int) -> Arrays:
    random = np.random.default_rng(0)
    images = [random.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for n in (train, test)]
    labels = [random.integers(0, 10, n, dtype=np.int32) for n in (train, test)]
    return Arrays(images[0], labels[0], images[1], labels[1])


@pytest.fixture
def packed_cifar(tmp_path, monkeypatch):
    """CIFAR-10 of 700 and 200 images, in three parts: (arrays, folder)."""
    arrays, expected = made_up(700, 200), Expected("cifar10", 700, 200, 10)
    small = cifar10.CIFAR10._replace(expected=expected)
    dataset = Dataset("cifar10", *arrays, 10, small.mean, small.std, 4, True)
    with monkeypatch.context() as patched:
        patched.setattr(cifar10, "load", lambda data_dir: dataset)
        files = packed.pack(None, tmp_path / "parts", 1)
    assert [file.stat().st_size for file in files[1:3]] == [2**20, 2**20] and len(files) == 4
    monkeypatch.setattr(cifar10, "CIFAR10", small)
    return arrays, tmp_path / "parts"


def bring(folder: Path, into: Path, *names: str) -> Path:
    into.mkdir()
    for name in (packed.MANIFEST, *names):
        (into / name).write_bytes((folder / name).read_bytes())
    return into


def test_parts_that_arrive_one_by_one_are_the_data_set_in_the_end(tmp_path, packed_cifar, monkeypatch):
    arrays, folder = packed_cifar
    first = bring(folder, tmp_path / "first", "cifar10-part2.bin")
    second = bring(folder, tmp_path / "second", "cifar10-part1.bin", "cifar10-part3.bin")
    brought = packed.Brought(tmp_path / "data", [first])
    assert brought.collect() == ["cifar10-part1.bin", "cifar10-part3.bin"]
    assert packed.Brought(tmp_path / "data", [second]).collect() == []
    assert packed.Brought(tmp_path / "data", [tmp_path / "nothing here"]).collect() == []
    monkeypatch.setattr("fdg_jax.data.tfds.read", raises(AssertionError("TFDS is not on that machine")))
    loaded = cifar10.load(tmp_path / "data")
    for name in Arrays._fields:
        np.testing.assert_array_equal(getattr(loaded, name), getattr(arrays, name))


def test_a_damaged_part_is_refused(tmp_path, packed_cifar):
    _, folder = packed_cifar
    file = folder / "cifar10-part2.bin"
    file.write_bytes(b"x" + file.read_bytes()[1:])
    with pytest.raises(BadInput, match=r"cifar10-part2\.bin is damaged"):
        packed.Brought(tmp_path / "data", [folder]).collect()
    (tmp_path / "data" / "parts" / file.name).write_bytes(file.read_bytes())  # damaged after it arrived
    with pytest.raises(BadInput, match=r"are damaged\. Remove that folder"):
        packed.Brought(tmp_path / "data", [folder]).collect()
    assert packed.Brought(tmp_path / "other", []).collect() == [packed.MANIFEST]


def test_rows_say_which_parts_are_missing(tmp_path, packed_cifar):
    _, folder = packed_cifar
    brought = bring(folder, tmp_path / "brought", "cifar10-part1.bin")
    here = at(tmp_path, data_dir=tmp_path / "data", brought=(brought,))._replace(settings=FULL)
    said = steps.row_refusal("resnet20", rows(FULL)[:3], here)
    assert said == "of CIFAR-10 still to be brought with --parts: cifar10-part2.bin, cifar10-part3.bin"


def test_what_has_arrived_is_collected_with_every_call_whatever_is_done_in_it(
    tmp_path, packed_cifar, monkeypatch, capsys
):
    _, folder = packed_cifar
    monkeypatch.setattr(steps, "steps", lambda settings, choices: [Fakes()("check", does=failing)])
    for number, missing in ((1, "cifar10-part2.bin, cifar10-part3.bin"), (2, "cifar10-part3.bin"), (3, "all of it")):
        brought = bring(folder, tmp_path / f"brought{number}", f"cifar10-part{number}.bin")
        words = ["--minutes", "1", "--folder", str(tmp_path / "kept"), "--data-dir", str(tmp_path / "data")]
        assert command.main([*words, "--parts", str(brought)]) == 1
        assert missing in capsys.readouterr().out.splitlines()[0]
    assert (tmp_path / "data" / "cifar10.npz").is_file()

"""Text as a data set: blocks of the bytes of a file, and nothing else."""

import math
import os
from unittest import mock

import numpy as np
import pytest

from fdg_jax import data
from fdg_jax.config import Config
from fdg_jax.data import fingerprint
from fdg_jax.data.text import Blocks
from fdg_jax.errors import BadInput, Damaged
from fdg_jax.training.loop import InMemory

CONTENT = bytes(np.random.default_rng(0).integers(0, 256, 1000).astype(np.uint8))


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "bytes.bin"
    path.write_bytes(CONTENT)
    return path


def test_a_label_is_the_byte_after_its_token_and_the_last_tenth_is_for_testing(file):
    text = data.load_text("text", [str(file)], block_size=32)
    whole = np.frombuffer(CONTENT, np.uint8)
    assert (text.train_inputs.shape, text.test_inputs.shape) == ((28, 32), (3, 32))  # 31 blocks, 8 bytes are left
    inputs, labels = (np.concatenate([a, b]) for a, b in
                      [(text.train_inputs, text.test_inputs), (text.train_labels, text.test_labels)])  # fmt: skip
    np.testing.assert_array_equal(inputs.ravel(), whole[: 31 * 32])
    np.testing.assert_array_equal(labels.ravel(), whole[1 : 31 * 32 + 1])
    assert (text.unit, text.per_example, text.shape, text.labels_shape) == ("tokens", 32, (32,), (32,))
    assert text.classes == 256


def test_blocks_are_read_when_they_are_indexed(file):
    text = data.load_text("text", [str(file)], block_size=32)
    blocks, whole = text.first(20).train_inputs, np.frombuffer(CONTENT[: 20 * 32], np.uint8).reshape(20, 32)
    assert isinstance(blocks, Blocks) and (len(blocks), blocks.shape, blocks.dtype) == (20, (20, 32), np.uint8)
    for rows in (3, -1, np.int32(7), [5, 0, 5], np.array([[1, -20], [19, 2]]), np.zeros(0, int)):
        np.testing.assert_array_equal(blocks[rows], whole[rows])
    for rows in (slice(None), slice(2, 5), slice(-3, None), slice(5, 100), slice(7, 3)):
        assert isinstance(blocks[rows], Blocks)
        np.testing.assert_array_equal(np.asarray(blocks[rows], np.int32), whole[rows])
    np.testing.assert_array_equal(list(blocks), whole)
    for rows in (20, -21, [0, 20], 0.5, [True] * 20, slice(None, None, 2)):
        with pytest.raises(IndexError):
            blocks[rows]
    nothing = text.without_inputs()
    assert nothing.train_inputs.strides == (0, 0) and nothing.train_labels is text.train_labels


def test_several_files_are_one_text_that_leaves_nothing(file, tmp_path):
    parts = [tmp_path / "a", tmp_path / "b"]
    parts[0].write_bytes(CONTENT[:333])
    parts[1].write_bytes(CONTENT[333:])
    one, two = (data.load_text("text", list(map(str, paths)), 32) for paths in ([file], parts))
    np.testing.assert_array_equal(one.train_inputs, two.train_inputs)
    assert fingerprint.of(one) == fingerprint.of(two)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]  # the joined one has no name


@pytest.mark.parametrize(("block", "content", "said"), [
    (32, b"", "0 bytes make 0 blocks of --block-size 32"), (32, b"x" * 64, "64 bytes make 1 blocks"),
    (1000, CONTENT, "Use more text or smaller blocks"),
])  # fmt: skip
def test_too_little_text_is_refused(block, content, said, file):
    file.write_bytes(content)
    with pytest.raises(BadInput, match=said):
        data.load_text("text", [str(file)], block)


def test_a_file_that_was_cut_short_is_noticed(file):
    text = data.load_text("text", [str(file)], block_size=32)
    feed = InMemory(text, Config(dataset="text", batch_size=4, epochs=1), steps=7)
    file.rename(file.with_name("elsewhere"))  # the open file stays the old one
    file.write_bytes(b"")
    feed.next(1)
    os.truncate(file.with_name("elsewhere"), 999)
    for read in (lambda: feed.next(2), lambda: next(feed.test())):  # before a byte is missed
        with pytest.raises(Damaged, match=r"bytes.bin was cut short: 999 of 1,000 bytes are left\.$"):
            read()
    os.truncate(file.with_name("elsewhere"), 100)
    for read in (lambda: feed.batch(0), lambda: np.array(text.train_labels), lambda: text.test_inputs[0]):
        with pytest.raises(Damaged, match=r"bytes.bin was cut short: 100 of 1,000 bytes are left\.$"):
            read()
    with file.with_name("elsewhere").open("wb") as longer:
        longer.write(CONTENT + b"what is behind the text's end changes nothing")
    feed.next(2)


def test_a_batch_holds_what_it_was_read_from_the_file(file):
    """So that a batch entered or repeated later is the same, whatever becomes of the file."""
    text = data.load_text("text", [str(file)], block_size=32)
    feed = InMemory(text, Config(dataset="text", batch_size=4, epochs=1, window=3), steps=7)
    work, entered, expected = feed.next(0), mock.Mock(), [feed.batch(step) for step in range(3)]
    os.truncate(file, 0)
    for _ in range(2):
        work.enter(entered)
    for (inputs, labels, indices), _ in entered.train.call_args_list:
        assert work.shape == indices.shape == (3, 4)
        for row, (x, y) in zip(indices, expected, strict=True):
            np.testing.assert_array_equal(inputs[row], x)
            np.testing.assert_array_equal(labels[row], y)


def test_the_text_of_pythons_help_is_there_without_any_file():
    text = data.load_text("text")
    assert len(text.train_inputs) > 4000 and text.files == ("topics.py",)
    assert b"assert" in np.array(text.train_inputs[:100]).tobytes()


def test_another_text_has_another_fingerprint_and_the_message_speaks_of_bytes(file):
    was = fingerprint.of(data.load_text("text", [str(file)], 32))
    file.write_bytes(CONTENT[:-1] + b"x")
    assert fingerprint.difference(was, fingerprint.of(data.load_text("text", [str(file)], 32))) == (
        "other bytes in the training blocks; other bytes in the test blocks"
    )
    file.write_bytes(CONTENT * 2)
    changed = fingerprint.difference(was, fingerprint.of(data.load_text("text", [str(file)], 32)))
    assert changed == "56 training blocks now, 28 before; 6 test blocks now, 3 before"
    assert fingerprint.difference(fingerprint.of(data.load("digits")), was) == "tokens now, images before"


def test_batches_are_a_function_of_seed_and_step(file):
    text = data.load_text("text", [str(file)], 32)
    feeds = [InMemory(text, Config(batch_size=5, seed=3, window=1), 12) for _ in range(2)]
    seen = [feeds[0].batch(step) for step in range(12)]  # two epochs
    for step in (7, 2, 11):
        for ours, theirs in zip(feeds[1].batch(step), seen[step], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    rows = sorted(bytes(row) for inputs, _ in seen[:6] for row in inputs)
    assert rows == sorted(bytes(row) for row in text.train_inputs)
    assert [len(inputs) for inputs, _ in seen[:6]] == [5] * 5 + [3]
    assert all(len(inputs) <= 5 for inputs, _ in feeds[0].test())


def test_a_loss_is_reported_in_bits_too(file):
    text = data.load_text("text", [str(file)], 32)
    assert text.measures(math.log(256)) == {"test_bits_per_byte": pytest.approx(8)}
    assert data.load("digits").measures(1.0) == {}

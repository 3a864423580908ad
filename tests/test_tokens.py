"""Files of tokens that others have made: read as they are documented, refused if they are damaged, never unpickled."""

import dataclasses
import importlib.util
import json
import os
import signal
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from cifar_processes import finish, printed, read, started
from token_files import VOCABULARY, damaged, llm_c, nanogpt, tokens

from fdg_jax import cli, data, recipe
from fdg_jax.config import Config
from fdg_jax.data import __main__ as encoder
from fdg_jax.data import fingerprint
from fdg_jax.errors import BadInput, Damaged
from fdg_jax.experiments import language_model
from fdg_jax.training import job
from fdg_jax.training.loop import InMemory

SHORT = "--model transformer1x32 --block-size 8 --batch-size 4 --log-every 1 --no-tensorboard --vocabulary 300"


def load(files, size=32, **more):
    return data.load_text("tokens", [str(file) for file in files], size, **more)


@pytest.mark.parametrize("write", [nanogpt, llm_c])
def test_tokens_are_read_as_their_authors_document_them(write, tmp_path):
    whole = tokens(5000)
    shards = [write(tmp_path / f"{n}.bin", part) for n, part in enumerate(np.split(whole, [1000, 1001, 3333]))]
    for files in (shards, [tmp_path / "*.bin"]):
        text = load(files, validation=[str(write(tmp_path / "val", tokens(100, 1)))])
        assert text.train_inputs.shape == text.train_labels.shape == (156, 32)  # over the ends of files
        np.testing.assert_array_equal(np.array(text.train_inputs).ravel(), whole[: 156 * 32])
        np.testing.assert_array_equal(np.array(text.train_labels).ravel(), whole[1 : 156 * 32 + 1])
        np.testing.assert_array_equal(np.array(text.test_inputs).ravel(), tokens(100, 1)[:96])
        assert (text.dtype, text.labels_dtype, text.unit) == (np.uint16, np.uint16, "tokens")
        assert text.classes == max(whole.max(), tokens(100, 1).max()) + 1
    assert text.measures(1.0) == {} and "tokens" in text.described()
    assert load(shards, vocabulary=VOCABULARY).classes == VOCABULARY


def test_the_fingerprint_is_of_the_tokens_not_of_their_files(tmp_path):
    one, two = nanogpt(tmp_path / "one", tokens(1000)), llm_c(tmp_path / "two", tokens(1000))
    assert fingerprint.of(load([one])) == fingerprint.of(load([two]))
    assert fingerprint.of(load([one])) != fingerprint.of(load([llm_c(two, tokens(1000, 1))], vocabulary=50000 + 257))


def test_tokens_of_32_bits_are_read_by_their_header_or_as_asked(tmp_path):
    values = np.random.default_rng(0).integers(0, 128256, 1000).astype(np.uint32)
    raw, shard = tmp_path / "raw.bin", tmp_path / "llama3.bin"
    values.tofile(raw)
    header = np.zeros(256, np.int32)
    header[:3] = 20240801, 7, 1000
    shard.write_bytes(header.tobytes() + values.tobytes())
    for text in (load([raw], token_dtype="uint32"), load([shard])):
        np.testing.assert_array_equal(np.array(text.train_inputs).ravel(), values[: 28 * 32])


BAD = {
    "odd": (lambda path: path.write_bytes(b"x" * 101), "101 bytes, which is not a whole number of uint16 tokens"),
    "text": (lambda path: path.write_text("The quick brown fox. " * 50), "is text, not tokens"),
    "wide": (lambda path: np.arange(500, dtype=np.uint32).tofile(path), "Add --token-dtype uint32"),
    "folder": (Path.mkdir, "is not a file"),
    "absent": (lambda path: None, "cannot be read: No such file"),
    "few": (lambda path: nanogpt(path, tokens(64)), "64 tokens make 1 blocks of --block-size 32, and 2 are needed"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_file_of_tokens_is_refused(case, tmp_path):
    write, said = BAD[case]
    write(tmp_path / "bad.bin")
    with pytest.raises(BadInput, match=said):
        load([tmp_path / "bad.bin"])


def test_files_that_contradict_one_another_are_refused(tmp_path):
    one, shard = nanogpt(tmp_path / "one", tokens(1000)), tmp_path / "llama3"
    shard.write_bytes(np.array([20240801, 7, 99, *[0] * 253, *range(99)], np.int32).tobytes())
    for files, validation, said in (
        ([one], [one], "is among the training files, too"), ([one, one], [], "named twice"),
        ([tmp_path / "*.x"], [], "no file matches"), ([one, shard], [], "llama3 has uint32 tokens, and"),
        ([tmp_path / "meta.pkl"], [], "not a file of tokens: its name"), ([], [], "Name files of tokens with --tokens"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=said):
            load(files, validation=[str(file) for file in validation])


def test_500_damaged_files_give_a_sentence_each_and_no_wrong_token(tmp_path):
    seen = Counter()
    for number in range(500):
        path = tmp_path / f"{number}.bin"
        kind, before = damaged(path, number)
        seen[kind] += 1
        if kind == "shorter":  # raw numbers do not say how many there were
            text = load([path], vocabulary=VOCABULARY)
            found = np.concatenate([np.array(text.train_inputs), np.array(text.test_inputs)]).ravel()
            np.testing.assert_array_equal(found, before[: len(found)])
            continue
        with pytest.raises(BadInput, match=f"^--tokens: {path}") as found:
            load([path], vocabulary=VOCABULARY)
        assert str(found.value).endswith(".") and "\n" not in str(found.value), (kind, str(found.value))
    assert len(seen) == 11 and min(seen.values()) > 20


def test_a_token_beyond_the_vocabulary_is_named_with_file_and_position_also_while_training(tmp_path):
    paths = [llm_c(tmp_path / f"{n}.bin", tokens(1000, n, 300)) for n in range(2)]
    with pytest.raises(BadInput, match=r"0.bin: token number \d+ is \d+, but --vocabulary 200 ends at 199"):
        load(paths, vocabulary=200)
    text = load(paths, vocabulary=300)
    with paths[1].open("r+b") as file:  # changed, not cut short
        file.seek(1024 + 2 * 5)
        file.write((1234).to_bytes(2, "little"))
    with pytest.raises(Damaged, match=r"1.bin: token number 5 is 1,234, but --vocabulary 300 ends at 299"):
        text.train_inputs[1005 // 32]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_shards(tmp_path):
    """The most that Python and NumPy hold while shards are opened, hashed and read: of one, and of four as long."""
    paths = [llm_c(tmp_path / f"{n}.bin", tokens(5_000_000, n)) for n in range(4)]

    def most(files):
        tracemalloc.start()
        feed = InMemory(load(files, 256), Config(dataset="tokens", blocks="random", batch_size=32), 100)
        for step in range(100):
            feed.batch(step)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert most(paths) < 1.2 * most(paths[:1]) < 10e6  # a file has 10 MB


def test_random_blocks_begin_anywhere_and_depend_on_seed_and_step_alone(tmp_path):
    whole = np.arange(1000, dtype=np.uint16)  # a token is its position
    text = load([nanogpt(tmp_path / "one", whole)], 10)  # 90 blocks for training
    options = Config(dataset="tokens", blocks="random", batch_size=20, seed=3)
    feeds = [InMemory(text.first(80), options, 100) for _ in range(2)]
    seen = [feeds[0].batch(step) for step in range(50)]
    for step in (31, 2, 49):
        np.testing.assert_array_equal(feeds[1].batch(step)[0], seen[step][0])
    inputs, labels = (np.stack(each) for each in zip(*seen, strict=True))
    assert (np.diff(inputs) == 1).all() and (labels == inputs + 1).all()
    starts = np.unique(inputs[..., 0])
    assert starts.min() < 10 and 770 < starts.max() <= 790 and len(starts) > 500
    wide = InMemory(text.first(80), dataclasses.replace(options, window=3), 100)
    np.testing.assert_array_equal(wide.indices(0), np.concatenate([feeds[0].indices(step) for step in range(3)]))


def test_steps_decide_the_length_of_a_training_on_tokens():
    options, _ = cli.parse(["--tokens", "a.bin", "b.bin", "--steps", "500"], language_model.PROGRAM)
    assert (options.dataset, options.tokens, options.epochs) == ("tokens", "a.bin:b.bin", 0)
    assert (options.evaluate_every, options.checkpoint_every) == (50, 50)
    options, _ = cli.parse(["--tokens", "a.bin", "--steps", "500", "--epochs", "2"], language_model.PROGRAM)
    assert (options.epochs, options.evaluate_every) == (2, 1)
    rates = recipe.schedule("cosine", 1.0, 10, final=0.1)
    assert [float(rates(step)) for step in (0, 5, 10)] == pytest.approx([1, 0.55, 0.1])
    assert float(recipe.schedule("wsd", 1.0, 10, final=0.5)(10)) == pytest.approx(0.5)
    config = Config(epochs=0, steps=10, lr_schedule="cosine", final_rate=0.1, learning_rate=1.0)
    assert float(job.rate_by_batch(config, 999)(10)) == pytest.approx(0.1)


REFUSED = {
    "--tokens missing.bin": "missing.bin cannot be read",
    "--vocabulary 5": "--dataset text has no such option; --text names files of text, --tokens files of tokens",
    "--tokens a --text b": "--text b: --dataset tokens has no such option",
    "--epochs 0": "with 0 epochs --steps sets the length, and --steps is not given",
    "--final-rate 0.1 --lr-schedule constant": "the schedule constant has no final rate",
    "--epochs 0 --steps 5 --lr-schedule paper": "the paper's schedule counts epochs",
}


@pytest.mark.parametrize("words", REFUSED)
def test_wrong_options_are_one_sentence(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert language_model.main([*words.split(), "--run-dir", "run"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and REFUSED[words] in err and not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--blocks random --engine pipeline", "--engine delay-line"])
def test_a_run_that_is_killed_in_mid_shard_ends_in_the_same_bits(words, tmp_path):
    for n in range(3):
        llm_c(tmp_path / f"train_{n}.bin", tokens(900, n, 300))
    (tmp_path / "tokenizer.json").write_text("{}")
    nanogpt(tmp_path / "val.bin", tokens(100, 9, 300))
    more = ["--tokens", str(tmp_path / "train_*.bin"), "--validation", str(tmp_path / "val.bin"), "--steps", "200"]
    more += [*SHORT.split(), "--K", "2", *words.split(), "--final-rate", "0.1", "--checkpoint-every", "7"]

    def training(name, *flags):
        return started("-m", "fdg_jax.experiments.language_model", "--run-dir", str(tmp_path / name), *flags)

    code, _, err = finish(training("whole", *more))
    assert code == 0, err
    killed = training("killed", *more)
    while not list((tmp_path / "killed" / "checkpoints").glob("step-*")) and killed.poll() is None:
        pass
    killed.send_signal(signal.SIGKILL)
    assert finish(killed)[0] == -signal.SIGKILL
    code, _, err = finish(training("killed", "--resume", "--steps", "300"))
    assert code == 2 and "--steps 300 contradicts" in err  # the schedule follows it
    code, _, err = finish(training("killed", "--resume"))
    assert code == 0, err
    ours, theirs = (read(tmp_path / name / "summary.json") for name in ("killed", "whole"))
    assert ours["final_state_sha256"] == theirs["final_state_sha256"] and ours["sessions"] == 2
    assert ours["test_loss"] == theirs["test_loss"] and "test_bits_per_byte" not in ours
    config = read(tmp_path / "whole" / "config.json")
    assert (config["vocabulary"], config["epochs"], len(config["tokenizer"])) == (300, 0, 64)
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "test_loss" in line] == [*range(20, 201, 20)]
    assert [line["learning_rate"] for line in lines if "learning_rate" in line][-1] == pytest.approx(1e-4, rel=0.01)
    (tmp_path / "val.bin").rename(tmp_path / "moved.bin")
    evaluated = printed("-m", "fdg_jax.evaluate", tmp_path / "whole", "--validation", tmp_path / "moved.bin")
    loss = float(evaluated.partition("test loss ")[2].partition(",")[0])
    assert loss == pytest.approx(theirs["test_loss"], abs=1e-5)  # other programs compute it


@pytest.fixture
def tokenizer(tmp_path):
    """A tokenizer.json of words."""
    words = {word: n for n, word in enumerate(["[UNK]", "<end>", "a", "b", "c"])}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"}
    none = dict.fromkeys(["truncation", "padding", "normalizer", "post_processor", "decoder"])
    made = {"version": "1.0", **none, "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (tmp_path / "words.json").write_text(json.dumps(made))
    return tmp_path / "words.json"


def encode(*words):
    return encoder.main(["encode", *map(str, words)])


@pytest.mark.skipif(not importlib.util.find_spec("tokenizers"), reason="the package tokenizers is not installed")
def test_text_is_encoded_to_shards_that_are_read_again(tokenizer, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(encoder, "PIECE", 4)  # so that files are cut at line ends
    for name, text in (("one", "a b c\nc b a\nx" * 20), ("two", "c c\n")):
        (tmp_path / name).write_text(text)
    out = tmp_path / "shards"
    words = ("--tokenizer", tokenizer, "--out", out, "--end", "<end>", "--shard-size", 50)
    assert encode(*words, tmp_path / "one", tmp_path / "two") == 0
    assert f"Train: --tokens '{out}/tokens_*.bin' --vocabulary 5" in capsys.readouterr().out
    text = load([out / "tokens_*.bin"], 8, vocabulary=5)
    line = [2, 3, 4, 4, 3, 2]
    found = np.concatenate([np.array(text.train_inputs), np.array(text.test_inputs)]).ravel()
    assert len(text.files) == 3 and found[:6].tolist() == line
    assert text.tokenizer == data.texts.tokens.tokenizer_sha256(tokenizer)
    size = sum((tmp_path / name).stat().st_size for name in ("one", "two"))
    bits = size / (sum(shard.stat().st_size - 1024 for shard in out.glob("*.bin")) / 2)  # bytes of a token
    assert text.measures(np.log(2)) == {"test_bits_per_byte": pytest.approx(1 / bits)}
    assert load([out / "tokens_000000.bin"], 8).measures(1.0) == {}  # only a part of what was encoded
    assert encode(*words, tmp_path / "one") == 2
    assert "holds tokens_000000.bin already" in capsys.readouterr().err


def test_encode_without_its_package_or_files_is_one_sentence(tmp_path, capsys, monkeypatch):
    words = ("--tokenizer", tmp_path / "none.json", "--out", tmp_path / "out", tmp_path / "none.txt")
    if importlib.util.find_spec("tokenizers"):
        assert encode(*words) == 2
        assert "none.json is not a tokenizer" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert encode(*words) == 2
    err = capsys.readouterr().err
    assert "pip install tokenizers" in err and err.count("\n") == 1 and not os.path.exists(tmp_path / "out")

"""The command that trains a transformer on text: its defaults, its files, what it refuses, and that nothing is lost."""

import json
import math
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from cifar_processes import read
from small import jit, mostly_slow

from fdg_jax import cli, models, recipe
from fdg_jax.checks import options as checks
from fdg_jax.config import ADDED, FIELDS, Config, defaults_of_others, model_options
from fdg_jax.experiments import cifar, language_model
from fdg_jax.runs import run_files
from fdg_jax.training import lifecycle, record

SHORT = """--model transformer2x32 --train-size 24 --batch-size 8 --epochs 2 --block-size 512 --log-every 1
    --no-tensorboard --dropout 0.1 --warmup-steps 2"""


def run(path, *more):
    assert language_model.main([*SHORT.split(), "--run-dir", str(path), *more]) == 0
    return read(path / "summary.json")


def events(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_the_optimizer_brings_its_own_defaults_and_given_ones_are_kept():
    options, given = cli.parse([], language_model.PROGRAM)
    assert (options.optimizer, options.learning_rate, options.weight_decay, options.decay) == (
        "adamw", 1e-3, 0.1, "matrices",
    )  # fmt: skip
    assert not given
    options, given = cli.parse(["--optimizer", "lion", "--learning-rate", "0.5"], language_model.PROGRAM)
    assert (options.learning_rate, options.weight_decay, options.b2) == (0.5, 1.0, 0.99)
    assert given == {"optimizer", "learning_rate"}
    options, _ = cli.parse(["--lr-schedule", "paper"], language_model.PROGRAM)
    assert options.warmup_steps == 0  # that schedule has a warm-up of its own
    options, given = cli.parse(["--method", "bp"], language_model.PROGRAM)
    assert (options.K, given) == (1, {"method"}) and cli.parse(["--method", "bp", "--K", "3"], cifar.PROGRAM)[0].K == 3
    options, _ = cli.parse([], cifar.PROGRAM)
    assert all(getattr(options, name) == FIELDS[name].default for name in FIELDS)


def test_a_published_network_brings_its_options_and_its_block_unless_others_are_given(tmp_path):
    options, given = cli.parse(["--model", "nanogpt-cpu"], language_model.PROGRAM)
    assert (options.heads, options.norm, options.tied, options.block_size) == (4, "layer", True, 64)
    assert given == {"model"} and models.blocks("nanogpt-cpu", 65) == models.blocks(
        "nanogpt-cpu", 65, **model_options(options)
    )
    other, _ = cli.parse(["--model", "gpt2", "--norm", "rms", "--no-tied", "--block-size", "8"], language_model.PROGRAM)
    assert (other.heads, other.norm, other.tied, other.block_size) == (12, "rms", False, 8)
    (tmp_path / "config.json").write_text(json.dumps(run_files.config(options, options, [], "")))
    again = ["--config", str(tmp_path / "config.json"), "--model", "transformer4x64"]
    plain, _ = cli.parse(again, language_model.PROGRAM)  # what the other network brought does not come along
    assert all(getattr(plain, name) == FIELDS[name].default for name in ("heads", "norm", "tied", "block_size"))


def test_several_files_are_one_value():
    options, _ = cli.parse(["--text", "a", "b", "--K", "3"], language_model.PROGRAM)
    assert options.text == "a:b" and options.K == 3


def test_a_run_from_before_these_options_goes_on_with_what_they_then_meant():
    assert {*ADDED, "dropout", "tied", "positions"} <= defaults_of_others({"method": "fdg"}).keys()
    found = defaults_of_others({"method": "fdg"})
    assert (found["optimizer"], found["lr_schedule"], found["clip_norm"]) == ("sgd", "paper", 0.0)


BAD = {
    "--model resnet20": "takes images, but --dataset text has tokens. Models for tokens are transformer",
    "--dataset digits": "this command trains on text, tokens. Other data have their own commands",
    "--text missing.txt": "missing.txt cannot be read or copied: No such file",
    "--block-size 1000000": "make 0 blocks of --block-size 1000000",
    "--dropout 1": "it must lie in [0, 1)",
    "--lr-schedule paper --warmup-steps 5": "the paper's schedule has a warm-up of its own",
    "--optimizer sgd --b2 0.9": "sgd has no such option",
    "--K 11": "transformer8x64 has 10 blocks",
}


def test_bad_input_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words, said in BAD.items():
        assert language_model.main([*words.split(), "--run-dir", "run"]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and said in err, (words, err)
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("words", "said"), [
    ("--text a", "this option is for text"),
    ("--model transformer8x64 --dataset digits", "takes tokens, but --dataset digits has images"),
])  # fmt: skip
def test_the_command_for_images_refuses_what_is_for_text(words, said, tmp_path, capsys):
    assert cifar.main([*words.split(), "--run-dir", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err


def test_what_can_be_judged_alone_is_judged_before_the_text_is_read(monkeypatch, tmp_path):
    monkeypatch.setattr(lifecycle, "prepare_and_run", lambda *_: pytest.fail("work was begun"))
    assert language_model.main(["--b2", "1", "--run-dir", str(tmp_path / "x")]) == 2
    checks.check(Config(optimizer="adamw", lr_schedule="cosine", warmup_steps=5), frozenset())


@pytest.mark.slow
def test_a_run_has_the_files_of_every_run_and_counts_tokens(tmp_path, capsys):
    summary = run(tmp_path / "run", "--K", "2")
    out = capsys.readouterr().out
    assert "training and 147 test blocks of 512 bytes from topics.py" in out and "tokens/s" in out
    assert "images" not in out and "test bits per byte" in out
    assert summary["tokens_per_second"] is None or summary["tokens_per_second"] > 0
    assert "images_per_second" not in summary
    assert math.isclose(summary["test_bits_per_byte"], summary["test_loss"] / math.log(2))
    assert summary["flops_per_token"] == models.flops("transformer2x32", 256, summary["parameters"], 512)
    assert summary["mfu_percent"] is None and "MFLOP a token" in out  # the peak of a CPU is not known
    assert summary["staleness"] == [1, 0] and summary["updates"] == [6, 6]
    assert (summary["dropout"], summary["block_size"], summary["optimizer"]) == (0.1, 512, "adamw")
    lines = events(tmp_path / "run")
    trained = [line for line in lines if "train_loss" in line]
    np.testing.assert_allclose([line["learning_rate"] for line in trained][:3], [5e-4, 7.5e-4, 1e-3], rtol=1e-6)
    assert all("tokens_per_second" in line for line in trained)
    assert all("test_bits_per_byte" in line for line in lines if "test_loss" in line)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "tokens a second" in page and "last bits per byte" in page and "images a second" not in page
    assert read(tmp_path / "run" / "config.json")["text"] is None


@pytest.mark.slow
def test_text_of_a_users_files_may_lie_elsewhere_when_the_run_goes_on_but_not_be_another(tmp_path, capsys):
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_bytes(b"The quick brown fox jumps over the lazy dog. " * 400)
    words = ["--run-dir", str(tmp_path / "run"), "--K", "2"]
    short = [*SHORT.split(), "--steps", "2", "--text", str(one)]
    assert language_model.main([*short, *words]) == 0
    one.rename(two)
    assert language_model.main([*words[:2], "--resume", "--steps", "4", "--text", str(two)]) == 0
    two.write_bytes(two.read_bytes().replace(b"lazy", b"busy"))
    assert language_model.main([*words[:2], "--resume", "--steps", "6", "--text", str(two)]) == 2
    assert "other bytes in the test blocks. Give the same files as --text" in capsys.readouterr().err


RATES = {  # after the warm-up
    "constant": [1] * 8,
    "cosine": [(1 + math.cos(math.pi * n / 8)) / 2 for n in range(8)],
    "wsd": [1, 1, 1, 1, 1, 1, 1, 0.5],
}


@pytest.mark.parametrize("name", RATES)
def test_schedules_rise_and_fall_as_their_names_say(name):
    rates = recipe.schedule(name, 1.0, 10, warmup_steps=2)
    np.testing.assert_allclose([float(rates(n)) for n in range(10)], [0.5, 0.75, *RATES[name]], atol=1e-6)


@pytest.mark.parametrize("name", mostly_slow(["sgd", "adamw", "lion", "muon"], "adamw"))
def test_only_matrices_are_decayed_and_clipping_has_no_state(name):
    params = {"kernel": np.full((4, 4), 2.0, np.float32), "bias": np.full(4, 2.0, np.float32)}
    still = {key: np.zeros_like(value) for key, value in params.items()}
    settings = {"momentum": 0.9, "weight_decay": 0.5, "decay": "matrices"}
    plain = recipe.optimizer(name, 0.1, **settings)
    updates, _ = jit(plain.update)(still, plain.init(params), params)
    np.testing.assert_allclose(updates["bias"], 0, atol=1e-7)
    np.testing.assert_allclose(updates["kernel"], -0.1 * 0.5 * 2, rtol=1e-5)
    clipping = recipe.optimizer(name, 0.1, **settings, clip_norm=1.0)
    assert str(clipping.init(params)) == str(plain.init(params))


@pytest.mark.slow
def test_clipping_scales_the_whole_gradient_of_a_stage():
    params = {"a": np.zeros(3, np.float32), "b": np.zeros(1, np.float32)}
    grads = {"a": np.full(3, 4.0, np.float32), "b": np.full(1, 4.0, np.float32)}  # of norm 8
    clipping = recipe.optimizer("sgd", 1.0, momentum=0.0, weight_decay=0.0, clip_norm=2.0)
    updates, _ = clipping.update(grads, clipping.init(params), params)
    np.testing.assert_allclose(updates["a"], -1.0, rtol=1e-6)


def test_flops_are_counted_as_nanogpt_counts_and_related_to_the_peak_of_all_devices():
    N = 124_439_808 - 1024 * 768  # GPT-2's parameters without its positions
    counted = models.flops("gpt2", 50257, 124_439_808, 1024, positions="learned", tied=True)
    assert counted == 6 * N + 12 * 12 * 768 * 1024
    assert models.flops("gpt2", 50257, N + 50257 * 768, 1024) == counted  # a table that is only looked up
    assert models.flops("resnet20", 10, 269_722, 1) is None
    class Device(NamedTuple):
        id: int
        device_kind: str = "NVIDIA H200"

    places = [SimpleNamespace(devices=[Device(n)]) for n in (0, 1, 1)]
    own = {"model": "gpt2", "positions": "learned", "tied": True, "heads": 12, "norm": "layer", "biases": True}
    data = SimpleNamespace(unit="tokens", classes=50257, per_example=1024)
    pipeline = SimpleNamespace(parameter_count=124_439_808, places=places)
    for dtype, percent in (("bfloat16", round(100 * 1e6 * counted / (2 * 989e12), 2)), ("float32", None)):
        job = SimpleNamespace(options=Config(**own, dtype=dtype), dataset=data, pipeline=pipeline)
        found = record.utilization(job, 1e6)
        assert (found["flops_per_token"], found["mfu_percent"]) == (counted, percent)
        said = record.utilization_words(found)
        assert "855.2 MFLOP" in said and ("MFU 43.2% of 2 x 989 TFLOP/s of NVIDIA H200" in said) is bool(percent), said

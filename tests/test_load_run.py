"""A run's network comes out uncut: the right weights of the right checkpoint, into Python, a file, and numbers."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from cifar_processes import QUICK, ROOT, command, finish, read
from small import CLASSES, Part, batches, cross_entropy, recipe
from stored_runs import asked, stored_run

import fdg_jax
from fdg_jax import evaluate, export, models, split
from fdg_jax.checkpoint import state as states
from fdg_jax.checkpoint.weights import HASH
from fdg_jax.errors import BadInput
from fdg_jax.machine import programs
from fdg_jax.training import trained as load_run
from fdg_jax.training.trained import Inputs, Trained, network_shapes

DATA = batches(4)
BLOCKS = [Part(12), Part(12), Part(12), Part(CLASSES)]
INPUTS = Inputs((32, 32, 3), "uint8", 10, (0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
SLOW = [{"engine": "scan"}, {"method": "data_parallel"}, {"method": "dgl"}, {"method": "fr"}, {"guard": True}]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, *SLOW], ids=str)
def test_the_networks_variables_are_read_from_a_state_with_batches_in_flight(options):
    ours = fdg_jax.Pipeline(BLOCKS, cross_entropy, recipe(), split=[2], **options)
    ours.init(jax.random.PRNGKey(0), DATA[0])
    for batch in DATA:
        ours.step(batch)
    inputs = [Inputs((size,), "uint8", CLASSES, (0.5,), (1.0,)) for size in (8, 9)]
    shapes = [network_shapes(BLOCKS, each, "here") for each in inputs]
    found, expected = load_run.network_variables(ours.state(), shapes[0]), ours.export(whole=True)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    with pytest.raises(BadInput, match=r"no params\['block000'\]\['Dense_0'\]\['kernel'\] float32\[9, 12\]"):
        load_run.network_variables(ours.state(), shapes[1])


@pytest.fixture(scope="module")
def untrained():
    blocks = models.blocks("resnet8", 10)
    variables = jax.device_get(split.init_whole(blocks, jax.random.key(0), INPUTS.example(1)))
    variables["batch_stats"] = jax.tree.map(lambda leaf: leaf + np.float32(0.25), variables["batch_stats"])
    about = {"step": 7, "drained": False, HASH: states.parameters_sha256([variables["params"]]), "data": None}
    options = asked(model="resnet8", dataset="digits", K=2, split="3", beta=0.5, data_dir="/home/someone", run_dir="a")
    return Trained(options, INPUTS, variables, about)


def is_plain_flax(ours, images, logits):
    """The logits are those of plain Flax: to the last bit by the same programs, and by one program for all but so."""
    x = ours.preprocess(images)
    uncut = jax.jit(lambda variables, x: split.whole(models.blocks("resnet8", 10)).apply(variables, x, train=False))
    # XLA fuses other operations of one large program, and its library YNNPACK computes the convolutions.
    np.testing.assert_allclose(uncut(ours.variables, x), logits, rtol=1e-4, atol=1e-5)
    stages = split.stages(models.blocks("resnet8", 10), ours.cuts)
    for stage, own in zip(stages, split.split_variables(ours.variables, ours.cuts), strict=True):
        run = programs.jit(lambda own, x, stage=stage: stage.apply(own, x, train=False))
        x = run(own, x)
    np.testing.assert_array_equal(logits, np.asarray(x))


@pytest.mark.slow
def test_an_exported_network_comes_back_and_is_plain_flax(untrained, tmp_path):
    file = tmp_path / "w.safetensors"
    untrained.save(file)
    assert b"someone" not in file.read_bytes()  # paths of this machine are nobody's business
    again = fdg_jax.load_run(file)
    assert (again.options.model, again.options.K, again.options.beta, again.cuts) == ("resnet8", 2, 0.5, (3,))
    assert (again.inputs, again.about) == (untrained.inputs, untrained.about)
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3)).astype(np.uint8)
    found = again.predict(images)
    is_plain_flax(again, images, found)
    assert again.evaluate([(images, found.argmax(1).astype(np.int32))]).error_percent == 0.0
    about = fdg_jax.load_weights(file).about
    assert (about["model"], about["input_shape"], about["input_dtype"]) == ("resnet8", "[32, 32, 3]", "float32")
    with pytest.raises(BadInput, match="has no checkpoints"):
        fdg_jax.load_run(file, 3)
    with pytest.raises(BadInput, match=r"the inputs are float32\[4, 32, 32, 3\], but the network takes uint8 \[n, 32"):
        again.predict(images.astype(np.float32))


def test_weights_without_a_network_are_refused_with_the_way_out(tmp_path):
    fdg_jax.save_weights(tmp_path / "w", {"params": {"kernel": np.zeros(2)}})
    with pytest.raises(BadInput, match=r"header has no 'options'.*Read it with fdg_jax\.load_weights"):
        fdg_jax.load_run(tmp_path / "w")


@pytest.fixture
def run(tmp_path):
    """A run directory of 24 batches with three checkpoints, which are empty, and evaluations after 8, 16 and 24."""
    stored_run(tmp_path / "run")
    for step in (8, 16, 24):
        (tmp_path / "run" / "checkpoints" / f"step-{step:09d}").mkdir(parents=True)
    errors = {8: 40.0, 12: 30.0, 16: 30.0, 24: 50.0}
    lines = [{"step": step, "epoch": 1.0, "test_loss": 1.0, "test_error_percent": errors[step]} for step in errors]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "run"


def test_the_checkpoint_that_is_asked_for_is_found(run):
    assert load_run.chosen(run, None) == (24, True)
    assert load_run.chosen(run, 8) == (8, False)
    with pytest.raises(BadInput, match=r"no checkpoint after batch 9\. There are checkpoints after batches 8, 16, 24"):
        load_run.chosen(run, 9)
    with pytest.raises(BadInput, match=r"'first' is neither a number of batches nor \"best\""):
        load_run.chosen(run, "first")
    with pytest.raises(BadInput, match=r"best test error, 30\.00% after batch 12, has no checkpoint .*--keep-best"):
        load_run.chosen(run, "best")
    (run / "checkpoints" / "step-000000012").mkdir()
    assert load_run.chosen(run, "best") == (12, False)


@pytest.mark.parametrize(("main", "words", "fact"), [
    (evaluate.main, ["none"], "none holds no run (config.json is missing)"),
    (evaluate.main, ["run", "--checkpoint", "9"], "run has no checkpoint after batch 9"),
    (evaluate.main, ["notes.txt"], "notes.txt is damaged or is no safetensors file"),
    (export.main, ["run", "--to", "notes.txt"], "--to notes.txt exists already"),
    (export.main, ["run", "--to", "no/w"], "its folder does not exist"),
])  # fmt: skip
def test_bad_input_ends_with_exit_code_2_and_a_sentence(main, words, fact, run, monkeypatch, capsys):
    monkeypatch.chdir(run.parent)
    (run.parent / "notes.txt").write_text("not ours")
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and fact in err
    assert (run.parent / "notes.txt").read_text() == "not ours"


def answered(*words):
    """The lines that Python prints in a process of its own, whose programs are compiled as those of the run."""
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=ROOT, timeout=300, check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **QUICK},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run in four stages of 2 epochs of 4 batches, with a checkpoint in the middle."""
    path = tmp_path_factory.mktemp("trained") / "run"
    flags = "--model resnet8 --dataset digits --train-size 128 --batch-size 32 --epochs 2 --K 4 --learning-rate 0.05"
    code, _, err = finish(command(*flags.split(), "--run-dir", str(path), environment=QUICK))
    assert code == 0, err
    return path


@pytest.mark.slow
def test_a_finished_run_evaluates_as_in_its_summary_and_a_checkpoint_as_in_its_metrics(trained):
    summary = read(trained / "summary.json")
    said = answered("-m", "fdg_jax.evaluate", str(trained))
    assert said[0] == "resnet8 on digits, fdg with K=4; after batch 8, including batches in flight"
    expected = f"test loss {summary['test_loss']:.6f}, test error {summary['test_error_percent']:.2f}% of 359 images"
    assert said[1] == expected
    program = f"import fdg_jax; print(*fdg_jax.load_run({str(trained)!r}).evaluate()[:2])"
    loss, error = map(float, answered("-c", program)[0].split())
    assert (loss, error) == (summary["test_loss"], summary["test_error_percent"])  # to the last bit
    tested = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines() if "test_loss" in line]
    assert [event["step"] for event in tested] == [4, 8]
    said = answered("-m", "fdg_jax.evaluate", str(trained), "--checkpoint", "4")
    assert said[0].endswith("after batch 4, without batches in flight")
    assert said[1].startswith(f"test loss {tested[0]['test_loss']:.6f}, ")

"""A run goes on as another one: what belongs to blocks stays what it was to the last bit, the rest is said."""

import hashlib
import json
import os
import subprocess
import sys
from functools import cache
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest
from small import CLASSES, Part, batches, pipeline
from toys import WORDS, small_command

from fdg_jax import corrections, split
from fdg_jax.errors import BadInput
from fdg_jax.machine.facts import usable_cores
from fdg_jax.recipe import paper_sgd
from fdg_jax.runs import checkpoints, run_files
from fdg_jax.runs.options import FIELDS, Options
from fdg_jax.storage import manifest
from fdg_jax.training import resume_into
from fdg_jax.training.moving import leaves, move, repartitioned

DATA = batches(9)
BLOCKS = [Part(12), Part(10), Part(8), Part(CLASSES)]
CUTS = {1: (), 2: (2,), 4: (1, 2, 3)}


ADAM, BARE = optax.adam(optax.constant_schedule(0.01)), optax.trace(0.9)


def job(K, method="fdg", momentum=0.9, cuts=None, accumulate=1, correct="none", optimizer=None, **options):
    """As much of a Job as `move` looks at."""
    cuts = CUTS[K] if cuts is None else cuts
    options |= {"accumulate": accumulate} if accumulate > 1 else {}
    made = pipeline(
        K, DATA[0], optimizer=optimizer or paper_sgd(lambda count: 0.1 / (1 + count), momentum),
        stages=split.stages(BLOCKS, cuts),
        variables=variables(cuts), method=method, guard=True, correct=correct, learning_rate=0.1, **options,
    )  # fmt: skip
    kinds = corrections.parse(correct)
    asked = {name: option.default for kind in kinds for name, option in kind.declared.items()}
    given = SimpleNamespace(K=K, accumulate=accumulate, correct=correct, **asked)
    return SimpleNamespace(pipeline=made, partition=SimpleNamespace(cuts=cuts), options=given)


@cache
def variables(cuts):
    """Weights of NumPy's: a program that draws those of the blocks would compile longer than all others."""
    x, random = jax.ShapeDtypeStruct(DATA[0][0].shape, np.float32), np.random.default_rng(0)
    whole = dict(jax.eval_shape(lambda key, x: split.init_whole(BLOCKS, key, x), jax.random.key(0), x))
    params = jax.tree.map(lambda leaf: 0.3 * random.normal(size=leaf.shape).astype(leaf.dtype), whole.pop("params"))
    statistics = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), whole)
    return split.split_variables({"params": params, **statistics}, cuts)


def of_blocks(pipeline):
    """sha256 of the path-sorted leaves of all blocks: parameters, statistics, momentum."""
    digest, flat = hashlib.sha256(), pipeline.state()
    keys = {leaf.key: name for name, leaf in leaves(flat).items() if leaf.key}
    for key in sorted(keys):
        digest.update(repr(key[::2]).encode() + flat[keys[key]].tobytes())
    return digest.hexdigest(), len(keys)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [
    ({"K": 2, "beta": 0.5}, {"K": 4, "method": "ddg"}),
    ({"K": 4, "method": "ddg"}, {"K": 1, "method": "bp"}),
    ({"K": 2, "method": "dgl"}, {"K": 4, "beta": 0.5}),
    ({"K": 2, "cuts": (1,)}, {"K": 2, "cuts": (3,)}),
    ({"K": 2, "engine": "scan"}, {"K": 4}),
    ({"K": 4}, {"K": 2, "engine": "scan"}),
    ({"K": 1}, {"K": 2, "method": "data_parallel"}),
])  # fmt: skip
def test_blocks_keep_everything_and_training_goes_on(before, after):
    old, new = job(**before), job(**after)
    for batch in DATA[:6]:
        old.pipeline.step(batch)
    state = old.pipeline.state()
    moved = move(old, new, state)
    new.pipeline.restore(moved.state)
    old.pipeline.drain()  # a second time: there is nothing left
    assert new.pipeline.parameters_sha256() == old.pipeline.parameters_sha256()
    if after.get("method") != "data_parallel":  # whose statistics are copied for every replica
        assert of_blocks(new.pipeline) == of_blocks(old.pipeline)
    ours, theirs = new.pipeline.evaluate(DATA[:2]), old.pipeline.evaluate(DATA[:2])
    if after.get("method") == "data_parallel":  # each replica has half of a batch: XLA sums in another order
        np.testing.assert_allclose(ours.loss, theirs.loss, rtol=1e-6)
        theirs = theirs._replace(loss=ours.loss)
    assert ours == theirs
    counts = [int(v) for name, v in new.pipeline.state().items() if name.endswith(".count")]
    assert counts == [6] * new.options.K and new.pipeline.updates == counts
    start = new.pipeline.parameters_sha256()
    for batch in DATA[6:]:
        new.pipeline.step(batch)
    new.pipeline.drain()
    losses = new.pipeline.losses(wait=True)
    assert [each.step for each in losses] == [7, 8, 9] and all(np.isfinite(each.loss) for each in losses)
    assert new.pipeline.updates == [9] * new.options.K and new.pipeline.parameters_sha256() != start


T1 = {"correct": "rate", "anneal_updates": 9}


@pytest.mark.parametrize(("before", "after"), [
    pytest.param({"K": 2}, {"K": 2, **T1}, marks=pytest.mark.slow),
    ({"K": 2, **T1}, {"K": 4, **T1}),
    ({"K": 4, "beta": 0.5, "correct": "cosine"}, {"K": 2, "beta": 0.5, "correct": "cosine,rate"}),
    pytest.param({"K": 2, "gradient_norms": True}, {"K": 2, **T1}, marks=pytest.mark.slow),
    pytest.param({"K": 2, **T1}, {"K": 4, "engine": "delay-line"}, marks=pytest.mark.slow),
    pytest.param({"K": 2, "engine": "scan"}, {"K": 2, "engine": "scan", **T1}, marks=pytest.mark.slow),
    pytest.param({"K": 2, "optimizer": ADAM}, {"K": 4, "optimizer": ADAM, **T1}, marks=pytest.mark.slow),
    pytest.param({"K": 4, "optimizer": BARE, **T1}, {"K": 2, "optimizer": BARE}, marks=pytest.mark.slow),
])  # fmt: skip
def test_momentum_stays_with_its_block_whatever_stands_around_the_optimizer(before, after):
    old, new = job(**before), job(**after)
    for batch in DATA[:4]:
        old.pipeline.step(batch)
    moved = move(old, new, old.pipeline.state())
    momentum = [
        {leaf.key: flat[name] for name, leaf in leaves(flat).items() if leaf.part == "opt_state" and leaf.key}
        for flat in (old.pipeline.state(), moved.state)  # the first is drained by now
    ]
    assert momentum[0].keys() == momentum[1].keys() and momentum[0]
    assert all((momentum[1][key] == value).all() and value.any() for key, value in momentum[0].items())
    assert not any("optimizer state (" in line for line in moved.said)
    assert "parameters, running statistics and optimizer state of every block are unchanged" in moved.said
    counts = [int(value) for name, value in moved.state.items() if name.endswith(".count")]
    assert set(counts) == (set() if after.get("optimizer") is BARE else {4})  # schedules, Adam's mean and T1's
    new.pipeline.restore(moved.state)


@pytest.mark.slow
def test_the_losses_of_batches_that_were_in_flight_are_not_lost():
    old, new = job(2), job(1)
    for batch in DATA[:6]:
        old.pipeline.step(batch)
    known = [each.step for each in old.pipeline.losses(wait=True)]
    moved = move(old, new, old.pipeline.state())
    assert known + [each.step for each in moved.losses] == [1, 2, 3, 4, 5, 6]
    assert moved.said[0] == "batches in flight were used first: stages 1 to 2 made [2, 1] more updates"


@pytest.mark.parametrize("K", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_same_stages_go_on_to_the_same_last_bit(K):
    old, new = job(K, beta=0.5), job(K, beta=0.5)
    start = old.pipeline.state()
    for batch in DATA:
        old.pipeline.step(batch)
    whole = old.pipeline.state_sha256()
    old.pipeline.restore(start)
    for batch in DATA[:5]:
        old.pipeline.step(batch)
    moved = move(old, new, old.pipeline.state())
    assert moved.said == ["the stages are the same and go on exactly, batches in flight included"]
    new.pipeline.restore(moved.state)
    for batch in DATA[5:]:
        new.pipeline.step(batch)
    assert new.pipeline.state_sha256() == whole


@pytest.mark.slow
def test_what_has_no_place_is_given_up_aloud():
    old, new = job(2, momentum=0.9), job(2, momentum=0.0)
    old.pipeline.step(DATA[0])
    said = move(old, new, old.pipeline.state()).said
    assert any(line.startswith("dropped: optimizer state (") for line in said)
    assert "parameters and running statistics of every block are unchanged" in said
    old, new = job(2, momentum=0.0), job(2, method="dgl")
    old.pipeline.step(DATA[0])
    said = " ".join(move(old, new, old.pipeline.state()).said)
    assert "new: optimizer state (" in said and "new: what the method adds (auxiliary networks, feedback) (" in said


@pytest.mark.slow
def test_a_schedule_that_counts_other_updates_goes_on_at_the_same_batch():
    old, new = job(2), job(2, accumulate=2)
    for batch in DATA[:6]:
        old.pipeline.step(batch)
    state = move(old, new, old.pipeline.state()).state
    assert [int(v) for name, v in state.items() if name.endswith(".count")] == [3, 3]


@pytest.mark.slow
def test_refused_gradients_are_not_told_a_second_time():
    old, new = job(1), job(2)
    old.pipeline.step((DATA[0][0] * np.float32(np.nan), DATA[0][1]))
    state = move(old, new, old.pipeline.state()).state
    assert {int(v) for name, v in state.items() if name.endswith((".bad", ".refused"))} == {0}


def test_another_model_is_refused():
    old = job(2)
    stages = split.stages([Part(9), Part(CLASSES)], (1,))
    other = pipeline(2, DATA[0], optimizer=paper_sgd(0.1), guard=True, stages=stages)
    with pytest.raises(BadInput, match="it is of another model"):
        repartitioned(old.pipeline.state(), other.state(), (2,), (1,))


def given(**options):
    asked = Options(**{"resume_into": "new", **options})
    return asked, frozenset(options)


def test_options_are_those_of_the_old_run_under_those_given_now():
    used = {name: field.default for name, field in FIELDS.items() if name != "resume"}
    used |= {"split": "5", "beta": 0.5, "engine": "pipeline", "window": 1, "warmup": "off", "train_size": 64}
    config = used | {"asked": used | {"split": None, "engine": "auto", "window": None, "warmup": "paper"}}
    same = resume_into.changed(config, *given(epochs=400))
    assert (same.split, same.engine, same.epochs, same.beta, same.run_dir) == ("5", "pipeline", 400, 0.5, "new")
    other = resume_into.changed(config, *given(K=4))
    assert (other.split, other.engine, other.warmup, other.beta) == (None, "auto", "off", 0.5)
    assert resume_into.changed(config, *given(method="fr")).beta == 1.0  # which fr does not have
    for change in ({"seed": 1}, {"batch_size": 64}, {"model": "resnet56"}):
        with pytest.raises(BadInput, match="Its network and its batches cannot change"):
            resume_into.changed(config, *given(**change))


def summary(path):
    return json.loads((path / "summary.json").read_text())


def files(path):
    return {str(file): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.mark.slow
def test_the_command_leaves_the_old_run_alone_and_says_what_it_gave_up(tmp_path, monkeypatch, capsys):
    from fdg_jax.experiments import cifar
    from fdg_jax.training import session

    small_command(monkeypatch)
    old, new = tmp_path / "old", tmp_path / "new"
    assert cifar.main([*WORDS.split(), "--steps", "5", "--beta", "0.5", "--run-dir", str(old)]) == 0
    before = files(old)
    now = session.versions()
    monkeypatch.setattr(session, "versions", lambda: {**now, "jax": "9.9"})
    assert cifar.main(["--run-dir", str(old), "--resume-into", str(new), "--K", "2", "--method", "ddg"]) == 2
    assert "split 1,2 for K=2" in capsys.readouterr().err  # asked for by number, for three stages
    words = ["--run-dir", str(old), "--resume-into", str(new), "--K", "2", "--method", "ddg", "--split", "2"]
    assert cifar.main(words) == 2
    assert "stands at batch 5, and the new run would end at batch 5. Give more" in capsys.readouterr().err
    assert not new.exists()
    assert cifar.main([*words, "--steps", "8"]) == 0
    assert files(old) == before
    out = capsys.readouterr().out
    assert f"goes on from {old} after batch 5\n  batches in flight were used first: stages 1 to 3" in out
    assert f"made with jax {now['jax']}, this is 9.9: the last bits may differ" in out
    config, done = json.loads((new / "config.json").read_text()), summary(new)
    assert config["resumed_from"]["batch"] == 5 and config["resumed_from"]["run_dir"] == str(old)
    assert (done["method"], done["K"], done["split"], done["steps"]) == ("ddg", 2, [2], 8)
    assert done["updates"] == [8, 8]
    events = run_files.read_metrics(new / "metrics.jsonl")
    assert [event["step"] for event in events if "train_loss" in event] == [8]
    assert cifar.main([*words, "--steps", "8"]) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert cifar.main(["--run-dir", str(new), "--resume"]) == 0  # finished, like any other
    assert cifar.main(["--run-dir", str(old), "--resume", "--steps", "8"]) == 2
    assert f"was made with jax {now['jax']}, this is 9.9: the run would not be" in capsys.readouterr().err
    assert files(old) == before


@pytest.mark.slow
def test_a_run_that_changed_nothing_but_its_directory_ends_with_the_same_hashes(tmp_path, monkeypatch):
    from fdg_jax.experiments import cifar

    small_command(monkeypatch)
    words = f"{WORDS} --method bp"
    for name, steps in (("whole", "8"), ("old", "5")):
        assert cifar.main([*words.split(), "--steps", steps, "--run-dir", str(tmp_path / name)]) == 0
    words = ["--run-dir", str(tmp_path / "old"), "--resume-into", str(tmp_path / "new"), "--steps", "8"]
    assert cifar.main(words) == 0
    a, b = summary(tmp_path / "whole"), summary(tmp_path / "new")
    for name in ("final_state_sha256", "final_parameters_sha256", "train_loss", "test_error_percent"):
        assert a[name] == b[name], name


@pytest.mark.slow
@pytest.mark.skipif(usable_cores() == 1, reason="on one core one device stands in for all stages")
def test_a_process_of_its_own_emulates_a_device_for_every_stage(tmp_path):
    base = f"{sys.executable} -m fdg_jax.experiments.cifar --run-dir {tmp_path / 'old'}"
    small = "--dataset digits --model resnet8 --train-size 16 --batch-size 8 --epochs 2 --no-tensorboard"
    for more in (f"{small} --K 2 --steps 2", f"--resume-into {tmp_path / 'new'} --K 3 --steps 4"):
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        subprocess.run(f"{base} {more}".split(), check=True, stdin=subprocess.DEVNULL, env=environment, timeout=300)
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert (config["engine"], config["devices"]) == ("pipeline", ["cpu:0", "cpu:1", "cpu:2"])
    assert config["cpu_devices"] >= 3


def test_a_checkpoint_of_another_format_is_refused_and_not_put_aside(tmp_path, monkeypatch):
    saver = checkpoints.Saver(tmp_path, {}, 2)
    saver.save(1, {"a": np.zeros(3)}, {"step": 1})
    saver.wait()
    monkeypatch.setattr(manifest, "FORMAT", manifest.FORMAT + 1)
    with pytest.raises(BadInput, match="has format 1; this version reads 2"):
        checkpoints.load_newest(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]


def test_a_folder_reached_through_a_link_is_inside_as_well(tmp_path):
    (tmp_path / "old" / "checkpoints").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "old")
    old, link = tmp_path / "old", tmp_path / "link" / "checkpoints" / "new"
    assert resume_into.one_in_the_other(old, link) and resume_into.one_in_the_other(link, old)
    assert not resume_into.one_in_the_other(old, tmp_path / "older")


@pytest.mark.parametrize(("words", "said"), [
    ("--resume-into new", "add that, and leave --resume out"),
    ("--run-dir old --resume --resume-into new", "leave --resume out"),
    ("--run-dir old --resume-into old", "in another directory"),
    ("--run-dir old --resume-into old/checkpoints/step-000000001", "neither inside it nor around it"),
    ("--run-dir old --resume-into .", "neither inside it nor around it"),
    ("--run-dir old --resume-into new", "holds no run"),
])  # fmt: skip
def test_what_cannot_be_gone_on_with_is_one_sentence(words, said, tmp_path, monkeypatch, capsys):
    from fdg_jax.experiments import cifar

    monkeypatch.chdir(tmp_path)
    assert cifar.main(words.split()) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1 and not list(tmp_path.iterdir())

"""--init-from: a new run begins with the weights and statistics of another network, and with nothing else of it."""

import json
import shutil

import jax
import numpy as np
import pytest
from toys import WORDS, small_command
from training_processes import each_needs_a_core, same, trained

import fdg_jax
from fdg_jax import export
from fdg_jax.experiments import cifar
from fdg_jax.runs import run_files
from fdg_jax.training import lifecycle

pytestmark = pytest.mark.slow  # the network that the others begin with is trained first
NETWORK = "--model resnet8 --dataset digits --batch-size 8 --epochs 1 --no-tensorboard"  # without method, K and split
OLD = "--beta 0.5 --checkpoint-every 2 --keep 9 --evaluate-every 0 --steps 5"


@pytest.fixture
def small(monkeypatch):
    small_command(monkeypatch)


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """A finished run of FDG with K = 3: checkpoints after batches 2, 4 and 5, and its export."""
    root = tmp_path_factory.mktemp("old")
    with pytest.MonkeyPatch.context() as patch:
        small_command(patch)
        assert cifar.main([*WORDS.split(), *OLD.split(), "--run-dir", str(root / "run")]) == 0
        assert export.main([str(root / "run"), "--to", str(root / "file")]) == 0
    return root


@pytest.fixture
def begun(monkeypatch):
    """The jobs that a command was about to train."""
    jobs = []

    def stop(run, *_):
        yield jobs.append(run.job)
        return 0

    monkeypatch.setattr(lifecycle, "train", stop)
    return jobs


def summary(path):
    return json.loads((path / "summary.json").read_text())


@pytest.mark.parametrize(("given", "words"), [
    ("run", "--K 2 --method ddg --split 2"), ("run@4", "--K 1 --method bp --optimizer adamw"),
    ("run@best", "--K 3 --split even --method fr"), ("file", "--K 2 --method data_parallel"),
])  # fmt: skip
def test_weights_and_statistics_are_those_of_the_other_network(given, words, old, small, begun, tmp_path, capsys):
    new, place = tmp_path / "new", str(old / given)
    assert cifar.main([*NETWORK.split(), *words.split(), "--init-from", place, "--run-dir", str(new)]) == 0
    theirs = fdg_jax.load_run(old / given.partition("@")[0], 4 if given == "run@4" else None)
    (job,) = begun
    jax.tree.map(np.testing.assert_array_equal, job.pipeline.export(whole=True), theirs.variables)
    assert job.pipeline.updates == [0] * job.options.K and not job.pipeline.losses()
    moments = [v for name, v in job.pipeline.state().items() if ".opt_state" in name]
    assert moments and not any(np.any(value) for value in moments)
    config = json.loads((new / "config.json").read_text())
    assert config["init_from"] == place and config["initial"]["from"] == place
    assert config["initial"]["parameters_sha256"] == job.pipeline.parameters_sha256()
    if given == "run":
        assert config["initial"]["parameters_sha256"] == summary(old / "run")["final_parameters_sha256"]
    assert f"weights    from {old / given.partition('@')[0]}" in capsys.readouterr().out


def test_a_run_and_its_export_begin_alike_and_a_resumed_run_needs_neither(old, small, tmp_path):
    shutil.copytree(old, tmp_path / "old")
    words = f"{NETWORK} --K 2 --method ddg --split 2 --seed 5".split()
    for name, given, steps in (("a", "run", "8"), ("b", "file", "8"), ("c", "run", "3")):
        asked = [*words, "--steps", steps, "--init-from", str(tmp_path / "old" / given)]
        assert cifar.main([*asked, "--run-dir", str(tmp_path / name)]) == 0
    shutil.rmtree(tmp_path / "old")
    assert cifar.main(["--run-dir", str(tmp_path / "c"), "--resume", "--steps", "8"]) == 0
    a, b, c = (summary(tmp_path / name) for name in "abc")
    assert a["final_state_sha256"] == b["final_state_sha256"] == c["final_state_sha256"]


REFUSED = {
    "{old}/run@99": "no checkpoint after batch 99. There are checkpoints after batches 2, 4, 5",
    "{old}/nothing": "neither a file of weights nor a run",
    "{old}/file@3": "is a file of weights, which has no checkpoints",
    "{old}/run/summary.json": "--init-from",
}


def test_what_has_no_weights_is_refused_in_one_sentence(old, small, tmp_path, capsys):
    for given, fact in REFUSED.items():
        words = f"{NETWORK} --init-from {given.format(old=old)} --run-dir {tmp_path / 'new'}"
        assert cifar.main(words.split()) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and fact in err
        assert not (tmp_path / "new").exists()


def test_another_network_is_told_with_its_numbers(old, tmp_path, capsys):
    words = f"{NETWORK} --K 1 --method bp --init-from {old / 'file'} --run-dir {tmp_path / 'new'}"
    assert cifar.main(words.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: --init-from {old / 'file'}: it has ") and err.count("\n") == 1
    assert "it has 674 parameters in 3 blocks, but resnet8 has 75,290 parameters in 5 blocks; ['batch_stats']" in err
    assert "is absent there and float32[16] here" in err
    assert not (tmp_path / "new").exists()


def test_a_run_of_another_version_gives_its_weights_and_is_not_resumed(
    old, small, begun, tmp_path, monkeypatch, capsys
):
    now = lifecycle.versions()
    monkeypatch.setattr(lifecycle, "versions", lambda: {**now, "jax": "9.9"})
    earlier = tmp_path / "earlier"
    shutil.copytree(old / "run", earlier)
    config = run_files.read_json(earlier / "config.json")
    del config["init_from"], config["asked"]["init_from"]
    retired = {"resume_into": None, "replay_check": 0}  # as the version before has them
    run_files.write_json(earlier / "config.json", {**config, **retired, "asked": {**config["asked"], **retired}})
    assert cifar.main(["--run-dir", str(earlier), "--resume", "--steps", "8"]) == 2
    assert "begin another run with its weights: --init-from RUN" in capsys.readouterr().err
    words = f"--config {earlier / 'config.json'} --init-from {earlier} --K 1 --split paper"
    assert cifar.main([*words.split(), "--run-dir", str(tmp_path / "new")]) == 0
    assert begun[0].pipeline.parameters_sha256() == summary(old / "run")["final_parameters_sha256"]


@each_needs_a_core
def test_several_processes_begin_as_one(tmp_path):
    small = f"{NETWORK} --train-size 16 --K 2"
    trained(tmp_path / "old", 2, *small.split())
    new = f"{small} --method ddg --init-from {tmp_path / 'old'}"
    same(trained(tmp_path / "two", 2, *new.split()), trained(tmp_path / "one", 1, *new.split()))

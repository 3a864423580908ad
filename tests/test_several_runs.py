"""`--seeds` and `--sweep`: which runs are made, what is refused before the first one, and their comparison.

Here the training command is another process that makes a run directory within a moment. Real runs, stopped and gone on
with: tests/faults/test_sweep.py.
"""

import json

import pytest

from fdg_jax import cli, sweep
from fdg_jax.config import Config
from fdg_jax.experiments import cifar

STAND_IN = """
import json, sys
from pathlib import Path
from fdg_jax import cli
from fdg_jax.config import FIELDS

options, given = cli.parse(sys.argv[1:], "command")
if options.beta == 0.125:
    sys.exit("error: made up")
path = Path(options.run_dir)
path.mkdir(parents=True, exist_ok=True)
values = {name: getattr(options, name) for name in FIELDS if name != "resume"}
rest = {"asked": values, "note": "", "devices": ["cpu:0"], "versions": {}}
(path / "config.json").write_text(json.dumps({**values, "train_size": 50_000, **rest}))
error = 10 * options.beta + options.seed
(path / "summary.json").write_text(
    json.dumps({"steps": options.steps, "epochs": 1, "seconds": 1.0, "test_error_percent": error})
)
print("done: made up")
"""


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """Instead of the training command: a process that makes a run directory. Returns the directory of the runs."""
    real = sweep.command

    def command(*arguments):
        return ["-c", STAND_IN, *real(*arguments)[2:]]

    monkeypatch.setattr(sweep, "command", command)
    monkeypatch.setattr(sweep, "POLL_SECONDS", 0.01)
    return tmp_path / "runs"


def combinations(words):
    return list(sweep.combinations(cli.read(words.split(), "command"), cli.Program("command")))


def test_every_combination_is_a_run_and_seeds_change_fastest():
    found = combinations("--sweep beta=0.2,1 K=2,3 --seeds 0,1 --epochs 5")
    assert len(found) == 8
    assert [one.name for one in found[:3]] == ["beta-0.2_K-2_seed-0", "beta-0.2_K-2_seed-1", "beta-0.2_K-3_seed-0"]
    assert found[2].options == Config(beta=0.2, K=3, seed=0, epochs=5)
    assert found[2].given == {"beta", "K", "seed", "epochs"}


@pytest.mark.parametrize("learning_rate", ["0.1", "0.123456789", "1e-05"])
def test_a_run_is_started_with_exactly_its_options(learning_rate, tmp_path):
    told = f"--run-dir {tmp_path} --learning-rate {learning_rate} --no-drain --sweep train_size=7,None"
    for one in combinations(told):
        started = sweep.command(one, tmp_path, cifar.PROGRAM, cli.read(told.split(), "command").start)
        assert started[:2] == ["-m", "fdg_jax.experiments.cifar"]
        options, _ = cli.parse(started[2:], cifar.PROGRAM)
        assert options == Config(
            learning_rate=float(learning_rate), drain=False, train_size=one.options.train_size,
            run_dir=str(tmp_path / one.name), resume="auto",
        )  # fmt: skip


REFUSED = {
    "--sweep bta=0.2": "there is no option 'bta'. Did you mean beta?",
    "--sweep beta": "write NAME=VALUES",
    "--sweep beta=0.2,x": "'x' is not a number",
    "--sweep beta=0.2,0.2": "a value is listed twice",
    "--sweep beta=0.2 --beta 0.5": "--beta sets the same option",
    "--sweep run_dir=a,b": "run_dir is the same for all runs",
    "--sweep drain=maybe": "drain is 'maybe', not true or false",
    "--seeds 0,1 --sweep seed=3": "--seeds 0,1: seed is swept twice",
    "--sweep method=bp,fdg beta=0.5": "method bp has no such option",
    "--seeds 0 --jobs 1000": "each run needs a core",
    "--seeds 0 --resume": "resumes its runs by itself",
    f"--sweep seed={','.join(map(str, range(1001)))}": "1,001 runs",
}


def test_what_cannot_be_is_refused_before_the_first_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sweep, "start", lambda *_: pytest.fail("a run was started"))
    for told, said in REFUSED.items():
        assert cifar.main([*told.split(), "--run-dir", str(tmp_path / "runs")]) == 2
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1 and not (tmp_path / "runs").exists(), told


def test_seeds_need_a_directory_that_holds_no_run_itself(tmp_path, capsys):
    assert cifar.main(["--seeds", "0,1"]) == 2 and "add --run-dir DIR" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{}")
    assert cifar.main(["--seeds", "0,1", "--run-dir", str(tmp_path)]) == 2
    assert "is itself the directory of a run" in capsys.readouterr().err


def test_a_dry_run_lists_the_commands_and_starts_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sweep, "start", lambda *_: pytest.fail("a run was started"))
    assert cifar.main(["--sweep", "beta=0.5,1", "--dry-run", "--quiet", "--run-dir", str(tmp_path / "runs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0].endswith(f"--beta 0.5 --run-dir {tmp_path}/runs/beta-0.5 --resume auto")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_runs_are_made_once_and_compared(stand_in, capsys):
    told = ["--sweep", "beta=0.5,1", "--seeds", "0,1", "--steps", "1", "--run-dir", str(stand_in)]
    assert cifar.main(told) == 0
    out = capsys.readouterr().out
    assert "fdg, K=2, beta=0.5  2     5.50 (5.00 to 6.00)" in out and out.count(": started, log in ") == 4
    assert out.splitlines()[-1].startswith("Against fdg, K=2, beta=0.5: fdg, K=2 has +5.00 ")
    assert "5.50 (5.00 to 6.00)" in (stand_in / "compared.html").read_text()
    assert cifar.main([*told, "--quiet"]) == 0  # nothing left to do
    assert capsys.readouterr().out.startswith(f"\n{stand_in / 'compared.html'} has ")
    assert cifar.main([*told, "--epochs", "7"]) == 2
    assert "--epochs 7 contradicts" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_fails_is_not_compared_and_is_made_again(stand_in, capsys):
    told = ["--sweep", "beta=0.125,1", "--steps", "1", "--run-dir", str(stand_in)]
    assert cifar.main(told) == 1
    out = capsys.readouterr().out
    assert "beta-0.125: ended with exit code 1: error: made up" in out and out.count("fdg, K=2  1 ") == 1
    assert cifar.main(told) == 1
    assert capsys.readouterr().out.count(": started") == 1


def test_what_is_swept_goes_before_a_file(tmp_path, capsys):
    (tmp_path / "a.toml").write_text("beta = 0.5\nepochs = 5")
    found = combinations(f"--config {tmp_path / 'a.toml'} --sweep beta=0.2,1")
    assert [(one.options.beta, one.options.epochs) for one in found] == [(0.2, 5), (1.0, 5)]
    told = ["--config", str(tmp_path / "a.toml"), "--sweep", "beta=1.5", "--run-dir", str(tmp_path / "x")]
    assert cifar.main(told) == 2
    assert "line 1" not in capsys.readouterr().err


def test_swept_optimizers_and_methods_have_their_own_values_and_not_those_of_the_file(tmp_path):
    """The file is a run's own, so what it has by default for its optimizer or method is not asked for."""
    own = {"learning_rate": 0.1, "weight_decay": 0.0005, "optimizer": "sgd", "method": "fdg", "beta": 0.5, "K": 3}
    (tmp_path / "config.json").write_text(json.dumps({**own, "asked": own, "versions": {}}))
    told = f"--config {tmp_path / 'config.json'} --sweep"
    assert [(one.options.learning_rate, one.options.decay) for one in combinations(f"{told} optimizer=sgd,adamw")] == [
        (0.1, "all"), (0.001, "matrices"),
    ]  # fmt: skip
    fdg, bp = combinations(f"{told} method=fdg,bp K=1")
    assert (fdg.options.beta, bp.options.beta) == (0.5, 1.0) and "beta" in fdg.given - bp.given

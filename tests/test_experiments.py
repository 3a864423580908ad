"""The tables: which runs they have, how far those are, and how those that are missing are run.

No training happens here: run directories are made up, and a few lines of Python stand in for the training command.
"""

import json

import pytest
from made_up_runs import config, make

import experiments
from experiments import cifar10_short
from experiments.harness import result_files, run_table, table_command
from experiments.harness.run_table import RESULTS
from fdg_jax import cli, sweep
from fdg_jax.checks import options as checks
from fdg_jax.config import FIELDS
from fdg_jax.errors import BadInput
from fdg_jax.experiments import cifar, language_model, tiny_imagenet

TABLE = cifar10_short.TABLE
NAMES = [run.name for run in TABLE.runs]
PROGRAMS = {module.__name__: module.PROGRAM for module in (cifar, language_model, tiny_imagenet)}


# The runs


def test_every_table_is_found_by_its_file_name_and_its_runs_have_different_names():
    assert NAMES[:3] == ["bp", "fdg-K2-beta1", "fdg-K2-beta0.5"] and len(NAMES) == 7
    for name in experiments.names():
        table = experiments.find(name)
        assert table.name == name and table.title
        assert len({run.name for run in table.runs}) == len(table.runs)


def test_every_command_line_is_accepted_and_leaves_nothing_to_the_defaults_of_its_program():
    """Of runs that are read alike one. What a program changes by default would make `list` refuse its own run."""
    own = ("method", "correct", "prediction", "compensation", "optimizer", "weights", "engine", "order", "dataset")
    alike = {}
    for name in experiments.names():
        table = result_files.complete(experiments.find(name), RESULTS)
        for run in table.runs if not table.measure else ():
            alike[(run.module, *(run.flags.get(option) for option in own))] = run
    free = {name for name, field in FIELDS.items() if field.free}
    wanted = {name: field.default for name, field in FIELDS.items() if name not in free}
    for run in alike.values():
        options, given = cli.parse(run_table.command(run, None, "somewhere")[3:], PROGRAMS[run.module])
        checks.check(options, given)
        asked = wanted | dict(run.flags)
        assert {name: getattr(options, name) for name in asked} == asked, run.name


# States


def test_a_run_is_missing_then_cut_off_then_done(tmp_path):
    run = TABLE.runs[1]
    assert str(run_table.state(run, tmp_path)) == "missing"
    path = make(tmp_path, run, error=None, trained=2)
    assert str(run_table.state(run, tmp_path)) == "cut off at epoch 2.00"
    summary = {"steps": 1955, "epochs": 5, "seconds": 9.0, "test_error_percent": 30.0}
    (path / "summary.json").write_text(json.dumps(summary))
    assert str(run_table.state(run, tmp_path)) == "done, test error 30.00%"


def test_a_directory_with_another_run_is_refused_by_name_of_the_option(tmp_path):
    for name, value in {"epochs": 6, "train_size": 500, "order": "x"}.items():
        make(tmp_path / name, TABLE.runs[0], **{name: value})
        with pytest.raises(BadInput, match=f"another run than bp: {name} is"):
            run_table.state(TABLE.runs[0], tmp_path / name)


# Running

STAND_IN = """
import json, os, signal, sys, time
from pathlib import Path
config, seconds, code, path = json.loads(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
if code:
    sys.exit("error: no such data" if code == 1 else code)
path.mkdir(parents=True, exist_ok=True)
(path / "config.json").write_text(json.dumps(config))
(path / "cores").write_text(json.dumps(sorted(os.sched_getaffinity(0))))
def leave(number, frame):
    (path / "checkpointed").touch()
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, leave)
print("epoch 1/5", flush=True)
(path / "ready").touch()
time.sleep(seconds)
(path / "summary.json").write_text(json.dumps({"steps": 1955, "epochs": 5, "seconds": 9.0, "test_error_percent": 20.0}))
(path / "resumed").write_text(str("--resume" in sys.argv))
print("done: test error 20%")
"""


@pytest.fixture
def stand_in(monkeypatch):
    """Instead of the training command: a process that makes a run directory within a moment."""

    def use(seconds: float = 0.0, code: int = 0):
        def command(run, data_dir, run_dir, resume=False):
            told = [json.dumps(config(run)), str(seconds), str(code), run_dir]
            return ["python", "-c", STAND_IN, *told, *(["--resume"] * resume)]

        monkeypatch.setattr(table_command, "command", command)
        monkeypatch.setattr(sweep, "POLL_SECONDS", 0.01)

    return use


def test_run_starts_what_is_missing_continues_what_was_cut_off_and_leaves_the_rest(tmp_path, stand_in, capsys):
    stand_in()
    finished, cut = make(tmp_path, TABLE.runs[0]), make(tmp_path, TABLE.runs[1], error=None, trained=2)
    before = (finished / "summary.json").read_text()
    assert table_command.main(TABLE, ["run", "--runs-dir", str(tmp_path)]) == 0
    assert (finished / "summary.json").read_text() == before
    assert (cut / "resumed").read_text() == "True"
    assert [(tmp_path / name / "resumed").read_text() for name in NAMES[2:]] == ["False"] * 5
    out = capsys.readouterr().out
    assert out.index("fdg-K2-beta1: continued") < out.index("fdg-K2-beta0.5: started")
    assert "fdg-K4-beta1: finished: done: test error 20%" in out


@pytest.mark.parametrize(
    ("code", "said", "times"), [(2, "not starting the other 6", 1), (1, "exit code 1: error: no such data", 7)]
)
def test_a_refusal_stops_the_others_and_a_failure_does_not(tmp_path, stand_in, capsys, code, said, times):
    stand_in(code=code)
    assert table_command.main(TABLE, ["run", "--runs-dir", str(tmp_path)]) == code
    assert capsys.readouterr().out.count(said) == times

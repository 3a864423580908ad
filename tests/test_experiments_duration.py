"""How long the runs of the paper's tables would take.

No training happens here, but for the slow test of what `--dry-run` measures.
"""


import pytest
from made_up_runs import make

from experiments import differences, table3, table5
from experiments.harness import estimate, table_command
from experiments.harness.run_table import CUT_OFF, DONE, MISSING, State
from experiments.tuning import images, texts

pytestmark = pytest.mark.usefixtures("own_cache")
RUNS = {run.name: run for run in (*table3.TABLE.runs, *table5.TABLE.runs)}
TEXT, HELD_OUT = texts.EIGHT.tune_runs[0], images.OF_BP.tune_runs[0]


def test_the_steps_that_are_left_are_those_of_the_epochs_that_are_left():
    for run, state, steps in (
        (RUNS["resnet20-cifar10-bp-K1-seed0"], State(MISSING), 300 * 391),  # 390 batches of 128 and one of 80
        (RUNS["resnet20-cifar10-bp-K1-seed0"], State(CUT_OFF, 299.5), round(391 / 2)),
        (RUNS["resnet20-cifar10-bp-K1-seed0"], State(DONE, 300), 0),
        (differences.run_of("full-batches", 0), State(MISSING), 20 * 390),
        (TEXT, State(MISSING), 1000),
        (HELD_OUT, State(MISSING), 2 * 352),  # 45,000 images
    ):
        assert estimate.steps_left(run, state) == steps
    assert estimate.examples_per_second(TEXT, {"tokens_per_second": 6400.0}) == 100.0


DRY_RUN = ["run", "--dry-run", "--only", "resnet20-*"]  # two kinds of run


@pytest.fixture
def counted(monkeypatch):
    """Measuring takes no time and gives two seconds a step for BP, nothing for FDG; the runs that were measured."""
    asked = []

    def measured(run, core):
        asked.append(run.name)
        return estimate.Step(2.0 if run.flags["K"] == 1 else None, "made up")

    monkeypatch.setattr(estimate, "measured", measured)
    return asked


def test_a_dry_run_measures_a_step_once_for_all_runs_it_is_the_same_for(tmp_path, counted, capsys):
    make(tmp_path, RUNS["resnet20-cifar10-bp-K1-seed1"], error=None, trained=100, lines=1)
    make(tmp_path, RUNS["resnet20-cifar10-bp-K1-seed2"], trained=300, lines=1)
    assert table_command.main(table3.TABLE, [*DRY_RUN, "--runs-dir", str(tmp_path)]) == 0
    assert counted == ["resnet20-cifar10-bp-K1-seed0", "resnet20-cifar10-fdg-K2-beta1-seed0"]
    out = capsys.readouterr().out
    assert "2 of 2 kinds of run are measured now, one after another: 60 s to 6 minutes" in out
    assert "bp-K1-seed0: missing, 117,300 steps to go: 2.72 days" in out  # 234,600 s
    assert "bp-K1-seed1: cut off at epoch 100.00, 78,200 steps to go: 43.4 hours" in out  # 156,400 s
    assert "bp-K1-seed2: done" in out and "not in it: 6 runs without an estimate" in out
    assert "total: 4.53 days of training, 1 at a time" in out
    assert len([*tmp_path.iterdir()]) == 2  # nothing was made


def test_what_was_measured_is_kept_until_asked_again_and_what_was_not_is_tried_again(tmp_path, counted, capsys):
    here = ["--runs-dir", str(tmp_path)]
    for again, times in (([], 2), ([], 3), (["--measure-again"], 5)):  # FDG gave nothing to keep
        assert table_command.main(table3.TABLE, [*DRY_RUN, *here, *again]) == 0
        assert len(counted) == times
    assert capsys.readouterr().out.count("2 s a step, measured before") == 1

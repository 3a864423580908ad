"""How long the runs of the paper's tables would take.

No training happens here, but for the slow test of what `--dry-run` measures.
"""

import os
import re
import signal
import subprocess
import sys

import pytest
from made_up_runs import make
from paper_tables import run_of

from experiments import table3
from experiments.harness import estimate, table_command
from experiments.harness.run_table import CUT_OFF, DONE, MISSING, Run, State

pytestmark = pytest.mark.usefixtures("own_cache")


def test_the_steps_that_are_left_are_those_of_the_epochs_that_are_left():
    cifar, tiny = run_of("resnet20-cifar10-bp-K1-seed0"), run_of("resnet18-tiny_imagenet-bp-K1-seed0")
    assert estimate.steps_left(cifar, State(MISSING)) == 300 * 391  # 390 batches of 128 and one of 80
    assert estimate.steps_left(tiny, State(MISSING)) == 300 * 782
    assert estimate.steps_left(cifar, State(CUT_OFF, 299.5)) == round(391 / 2)
    assert estimate.steps_left(cifar, State(DONE, 300)) == 0


def test_a_dry_run_measures_a_step_once_for_all_runs_it_is_the_same_for(tmp_path, monkeypatch, capsys):
    asked = []

    def measured(run, core):
        asked.append(run.name)
        return estimate.Step(2.0 if run.flags["K"] == 1 else None, "made up")

    monkeypatch.setattr(estimate, "measured", measured)
    make(tmp_path, run_of("resnet20-cifar10-bp-K1-seed1"), error=None, trained=100, lines=1)
    make(tmp_path, run_of("resnet20-cifar10-bp-K1-seed2"), trained=300, lines=1)
    told = ["run", "--dry-run", "--runs-dir", str(tmp_path), "--only", "resnet20-*"]
    assert table_command.main(table3.TABLE, told) == 0
    assert asked == ["resnet20-cifar10-bp-K1-seed0", "resnet20-cifar10-fdg-K2-beta1-seed0"]
    out = capsys.readouterr().out
    assert "bp-K1-seed0: missing, 117,300 steps to go: 2.72 days" in out  # 234,600 s
    assert "bp-K1-seed1: cut off at epoch 100.00, 78,200 steps to go: 43.4 hours" in out  # 156,400 s
    assert "bp-K1-seed2: done" in out
    assert "total: 4.53 days of training, one run at a time" in out
    assert "not in it: 6 runs without an estimate" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "resnet20-cifar10-bp-K1-seed1", "resnet20-cifar10-bp-K1-seed2"
    ]  # fmt: skip


DRY_RUN = ["run", "--dry-run", "--only", "resnet20-*"]  # two kinds of run


@pytest.fixture
def counted(monkeypatch):
    """Measuring takes no time and gives two seconds a step; the runs that were measured."""
    asked = []

    def measured(run, core):
        asked.append(run.name)
        return estimate.Step(2.0, "2 s a step, made up")

    monkeypatch.setattr(estimate, "measured", measured)
    return asked


def test_a_dry_run_says_first_how_many_kinds_of_run_it_measures_and_then_how_far_it_is(tmp_path, counted, capsys):
    assert table_command.main(table3.TABLE, [*DRY_RUN, "--runs-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 kinds of run are measured now, one after another, which takes 60 s to 6 minutes"
    assert [line for line in lines if "left" in line] == [
        "  1 of 2, about 60 s left: resnet20, bp, K=1, batches of 128",
        "  2 of 2, about 0 s left: resnet20, fdg, K=2, batches of 128",
    ]


def test_what_a_dry_run_measured_is_kept_for_the_next_one_until_asked_again(tmp_path, counted, capsys):
    here = ["--runs-dir", str(tmp_path)]
    assert table_command.main(table3.TABLE, [*DRY_RUN, *here]) == 0
    first = capsys.readouterr().out.splitlines()
    assert table_command.main(table3.TABLE, [*DRY_RUN, *here]) == 0
    second = capsys.readouterr().out.splitlines()
    assert len(counted) == 2
    assert second[0] == "2 kinds of run were measured before; --measure-again measures again"
    assert second[-1] == first[-1] and "measured now" not in "".join(second)
    assert table_command.main(table3.TABLE, [*DRY_RUN, *here, "--measure-again"]) == 0
    assert len(counted) == 4


@pytest.mark.parametrize(
    "changed",
    [{"machine": "another"}, {"code": "other"}, {"versions": {}}, {"cores": 1000}, {"environment": {"XLA_FLAGS": "x"}}],
)
def test_what_was_measured_elsewhere_or_with_other_code_is_not_used(changed, tmp_path, counted, monkeypatch):
    here = ["--runs-dir", str(tmp_path)]
    assert table_command.main(table3.TABLE, [*DRY_RUN, *here]) == 0
    conditions = estimate.conditions
    monkeypatch.setattr(estimate, "conditions", lambda *of: {**conditions(*of), **changed})
    assert table_command.main(table3.TABLE, [*DRY_RUN, *here]) == 0
    assert len(counted) == 4


def test_what_could_not_be_measured_is_tried_again(tmp_path, monkeypatch, own_cache):
    monkeypatch.setattr(estimate, "measured", lambda *_: estimate.Step(None, "not measured"))
    assert table_command.main(table3.TABLE, [*DRY_RUN, "--runs-dir", str(tmp_path)]) == 0
    assert not own_cache.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_dry_run_that_is_stopped_keeps_what_it_measured_and_leaves_no_process(number, tmp_path, monkeypatch, capsys):
    started = []

    class Process(subprocess.Popen):
        """Stands for a training that takes long; the second one is stopped."""

        def __init__(self, words, **options):
            super().__init__([sys.executable, "-c", "import time; time.sleep(60)"], **options)
            started.append(self)

        def communicate(self, *arguments, **options):
            os.kill(os.getpid(), number)
            return super().communicate(*arguments, **options)

    monkeypatch.setattr(estimate.subprocess, "Popen", Process)
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    assert table_command.main(table3.TABLE, [*DRY_RUN, "--runs-dir", str(tmp_path)]) == 128 + number
    assert "what has been measured is kept" in capsys.readouterr().err
    assert [process.returncode for process in started] == [-signal.SIGKILL]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_measuring_again_goes_with_a_dry_run_that_measures(capsys):
    assert table_command.main(table3.TABLE, ["run", "--measure-again"]) == 2
    assert table_command.main(table3.TABLE, [*DRY_RUN, "--measure-again", "--seconds-per-step", "1"]) == 2
    assert capsys.readouterr().err.count("--measure-again goes with --dry-run") == 2


def test_seconds_per_step_replaces_measuring_and_jobs_divide_the_total(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(estimate.child_runs, "cores_for", lambda jobs: [None] * jobs)
    told = ["run", "--dry-run", "--runs-dir", str(tmp_path), "--only", "resnet20-*-bp-*", "--jobs", "3"]
    assert table_command.main(table3.TABLE, [*told, "--seconds-per-step", "0.5"]) == 0
    assert "total: 16.3 hours of training, 3 runs at a time" in capsys.readouterr().out  # 3 * 117,300 * 0.5 / 3 s
    assert table_command.main(table3.TABLE, [*told, "--seconds-per-step", "0"]) == 2
    assert table_command.main(table3.TABLE, ["run", "--seconds-per-step", "1"]) == 2
    assert "--seconds-per-step goes with --dry-run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "words"), [(40, "40 s"), (719, "12 minutes"), (27_000, "7.5 hours"), (3_550_000, "41.1 days")]
)
def test_durations_are_told_in_the_unit_a_person_would_take(seconds, words):
    assert estimate.duration(seconds) == words


@pytest.mark.parametrize(
    ("rates", "steps", "seconds"),
    [
        ([(50.0, "")], [9], 2.56),  # 5 steps of 128 images in 12.8 s
        ([(None, ""), (12_800.0, "")], [9, 154], 0.01),  # one dispatch, which is not timed
        ([(6_400.0, ""), (12_800.0, "")], [9, 154], 0.01),  # 5 steps in 0.1 s
        ([(50.0, "180 s were not enough")], [9], 2.56),  # what it had logged by then
        ([(None, "180 s were not enough")], [9], None),
    ],
)
def test_more_steps_are_made_where_a_few_tell_too_little(monkeypatch, rates, steps, seconds):
    asked = []
    monkeypatch.setattr(estimate, "once", lambda run, steps, core: (asked.append(steps), rates[len(asked) - 1])[1])
    run = run_of("resnet20-cifar10-fdg-K2-beta1-seed0")
    assert estimate.measured(run, None).seconds == seconds and asked == steps
    asked.clear()
    tiny = estimate.measured(run._replace(flags={**run.flags, "dataset": "tiny_imagenet"}), None)
    assert tiny.seconds == (seconds and 4 * seconds)  # 64x64 pixels


@pytest.mark.slow
def test_a_step_is_measured_with_the_runs_own_flags_and_what_it_refuses_is_told(monkeypatch):
    monkeypatch.setattr(estimate, "SHORT_SECONDS", 0.0)  # a few steps must do here
    flags = {"dataset": "tiny_imagenet", "model": "resnet8", "epochs": 300, "batch_size": 16, "method": "fdg", "K": 2}
    plain = estimate.measured(Run("x", {**flags, "dataset": "cifar10"}), None)
    assert plain.seconds is not None and 0 < plain.seconds < 10  # 16 small images: 0.1 s even on a busy core
    assert re.search("from up to 5 steps made now on synthetic images$", plain.how)
    unknown = estimate.measured(Run("x", {**flags, "model": "resnet99"}), None)
    assert unknown.seconds is None and "not measured (error: model 'resnet99' is not known." in unknown.how

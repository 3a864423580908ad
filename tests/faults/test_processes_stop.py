"""Stops of a run in several processes, by SIGTERM to any of them and by SIGSTOP of one: each goes on exactly."""

import os
import re
import shutil
import signal
import time
from random import Random

import pytest
from fault_runs import Config, assert_same, newest
from launched_runs import EPOCH, STEPS, Launched, moment
from training_processes import each_needs_a_core

from fdg_jax.checkpoint import run_checkpoints

pytestmark = each_needs_a_core
PHASES = ("compile", "step", "evaluate", "save")
FDG, COUNT = Config("fdg", 2, "pipeline"), 2


@pytest.mark.slow
@pytest.mark.cases(sample=2, hundred=20)
def test_sigterm_to_the_launcher_or_to_one_process_leaves_a_whole_checkpoint(seed, left_alone, cache, tmp_path, tell):
    random, path, whole = Random(f"stop of processes {seed}"), tmp_path / "run", left_alone(FDG, COUNT)
    phase = PHASES[seed // 2 % len(PHASES)]
    number = random.randrange(COUNT) if seed % 2 else None
    step, delay = moment(random, phase, path, whole.seconds)
    while True:
        with Launched(path, FDG, cache, COUNT) as run:
            there = run.processes()
            assert run.wait_for(phase, step), run.told()
            time.sleep(delay)
            if run.popen.poll() is None:
                os.kill(run.popen.pid if number is None else there[number], signal.SIGTERM)
            code, said = run.finish(), run.told()
            assert not [pid for pid in there if os.path.exists(f"/proc/{pid}")]
        if not (path / "summary.json").exists():
            break
        shutil.rmtree(path)  # it was done, and there was nothing to stop: once more, and earlier
        step, delay = max(1, step - 1), delay / 2
    reached = newest(path)
    whom = "the launcher" if number is None else f"process {number}"
    tell(f"SIGTERM to {whom} in {phase} {step}: exit code {code}, checkpoint after batch {reached}")
    assert code == 143 and "Traceback" not in said, said
    assert reached >= 0 and "stopped by SIGTERM after a checkpoint" in said, said
    stored = run_checkpoints.stored(path / "checkpoints")
    assert [run_checkpoints.load(each)[1]["step"] for each in stored] == [int(each.name[5:]) for each in stored]
    with Launched(path, FDG, cache, COUNT) as run:
        assert run.finish() == 0, run.told()
    assert_same(path, whole.path)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_a_process_that_stands_still_is_named_and_waited_for(number, all_of_them, left_alone, cache, tmp_path, tell):
    seconds, path, whole = 30 if all_of_them else 14, tmp_path / "run", left_alone(FDG, COUNT)
    with Launched(path, FDG, cache, COUNT, "--peer-timeout", "300") as run:
        there = run.processes()
        assert run.wait_for("step", EPOCH + 1), run.told()  # both sizes of a batch have been compiled
        os.kill(there[number], signal.SIGSTOP)
        stopped_at = newest(path)
        time.sleep(seconds)
        os.kill(there[number], signal.SIGCONT)
        assert run.finish() == 0, run.told()
    other, said = 1 - number, run.told()
    assert stopped_at < STEPS
    named = re.findall(rf"WARNING: process {other} has waited (\d+) s for .*process {number}\b", said)
    tell(f"process {number} stood still for {seconds} s after batch {stopped_at}: named after {named} s")
    assert named and 10 <= int(named[0]) < 14, said
    assert_same(path, whole.path)

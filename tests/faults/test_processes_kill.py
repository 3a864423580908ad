"""kill -9 of any process at random moments, with `--restart`: the run ends as one that was left alone, bit for bit."""

import shutil
from random import Random

import pytest
from fault_runs import PHASES, Config, assert_same
from launched_runs import Launched, moment
from training_processes import each_needs_a_core

pytestmark = each_needs_a_core
KILLS = 3  # of each case
LAYOUTS = [(2, Config("fdg", 2, "pipeline")), (2, Config("fdg", 3, "pipeline")), (3, Config("fdg", 3, "pipeline"))]


@pytest.mark.slow
@pytest.mark.cases(sample=1, hundred=10)
def test_a_run_of_which_any_process_is_killed_at_any_moment_ends_as_one_that_is_not(
    seed, left_alone, cache, tmp_path, tell
):
    random, path, struck, haste = Random(f"kill of processes {seed}"), tmp_path / "run", [], 1.0
    count, config = LAYOUTS[seed % len(LAYOUTS)]
    whole = left_alone(config, count)
    while len(struck) < KILLS:
        with Launched(path, config, cache, count, restarts=KILLS) as run:
            while len(struck) < KILLS:
                number, phase = random.randrange(count), PHASES[(seed * KILLS + len(struck)) % len(PHASES)]
                step, delay = moment(random, phase, path, whole.seconds)
                if not run.kill(number, phase, step, haste * delay):
                    break
                struck.append(f"process {number} in {phase} {step}")
            assert run.finish() == 0, run.told()
        assert_same(path, whole.path)
        if len(struck) < KILLS:  # it was done before: once more, and earlier
            shutil.rmtree(path)
            haste /= 2
    tell(f"{config} in {count} processes: killed {', '.join(struck)}")

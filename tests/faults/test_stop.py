"""SIGTERM and SIGINT, from the preparations on, leave a checkpoint from which the run ends as if never stopped."""

import shutil
import signal
from random import Random

import pytest
from fault_runs import COLD, Config, Process, assert_same, moment, name_of, newest

PHASES = ("prepare", "compile", "step", "evaluate", "save")
CONFIGS = [
    Config("fdg", 2, "pipeline"),
    Config("ddg", 2, "delay-line", "wrn10_1"),
    Config("dni", 4, "pipeline"),
    Config("gpipe", 2, "pipeline"),
]


@pytest.mark.slow
@pytest.mark.cases(sample=2, hundred=40)
def test_a_stop_leaves_a_checkpoint_that_goes_on_exactly(seed, all_of_them, whole, cache, tmp_path, tell):
    random, phase = Random(f"stop {seed}"), PHASES[seed % len(PHASES)]
    config = CONFIGS[seed // len(PHASES) % len(CONFIGS) if all_of_them else 0]
    number = signal.SIGTERM if random.random() < 0.5 else signal.SIGINT
    path, run = tmp_path / "run", whole(config)
    step, delay = moment(random, phase, 0, run.seconds)
    while True:
        with Process(path, config, tmp_path / "cold" if phase in COLD else cache) as process:
            process.strike(phase, step, delay, number)
            code, said = process.finish(), process.told()
        if not (path / "summary.json").exists():
            break
        shutil.rmtree(path)  # it was done, and there was nothing to stop: once more, and earlier
        step, delay = max(1, step - 1) if phase == "step" else step, delay / 2
    reached = newest(path)
    tell(f"{config}: {name_of(number)} in {phase}, checkpoint after batch {reached}")
    assert "Traceback" not in said
    assert code == 128 + number, said
    assert reached >= 0 and f"stopped by {name_of(number)} after a checkpoint" in said
    with Process(path, config, cache) as process:
        assert process.finish() == 0, process.told()
    assert_same(path, run.path)


@pytest.mark.slow
def test_a_second_signal_ends_at_once_and_costs_no_checkpoint(whole, cache, tmp_path, tell):
    config = Config("fdg", 2, "pipeline")
    path, run = tmp_path / "run", whole(config)
    with Process(path, config, tmp_path / "cold") as process:
        assert process.strike("compile", 0, 0.5, signal.SIGTERM), process.told()
        assert process.wait_for("obeyed"), process.told()
        process.popen.send_signal(signal.SIGINT)
        code = process.finish(60)
    tell(f"exit code {code}")
    assert code == 128 + signal.SIGINT and "stopped at once" in process.told()
    with Process(path, config, cache) as process:
        assert process.finish() == 0, process.told()
    assert_same(path, run.path)

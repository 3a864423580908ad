"""kill -9 at random moments, again and again: what is resumed ends as what was left alone, bit for bit."""

import shutil
import signal
from random import Random

import pytest
from fault_runs import COLD, PHASES, STEPS, Config, Process, assert_same, configs, moment, newest

SAMPLE = [Config("fdg", 2, "pipeline"), Config("fr", 4, "pipeline"), Config("ddg", 2, "delay-line", "wrn10_1")]
TEXT = Config("fdg", 2, "pipeline", "transformer1x32")


@pytest.mark.slow
@pytest.mark.cases(sample=3, hundred=100)
def test_a_run_that_is_killed_at_any_moment_ends_as_one_that_is_not(seed, all_of_them, whole, cache, tmp_path, tell):
    chosen = configs() if all_of_them else SAMPLE
    killed_again_and_again(chosen[seed % len(chosen)], seed, whole, cache, tmp_path, tell)


@pytest.mark.slow
@pytest.mark.cases(sample=1, hundred=20)
def test_a_language_model_that_is_killed_at_any_moment_ends_as_one_that_is_not(seed, whole, cache, tmp_path, tell):
    """With dropout, AdamW, warm-up, clipped gradients, bfloat16, and a stage that computes its activations again."""
    killed_again_and_again(TEXT, seed, whole, cache, tmp_path, tell)


def killed_again_and_again(config, seed, whole, cache, tmp_path, tell):
    random, path, struck = Random(f"kill {seed}"), tmp_path / "run", []
    run = whole(config)
    kills, haste = random.randint(1, 3), 1.0
    while True:
        phase = PHASES[seed % len(PHASES)] if not struck else random.choice(PHASES)
        cold, may = phase in COLD and len(struck) < kills, len(struck) < kills and newest(path) < STEPS
        with Process(path, config, tmp_path / f"cache {len(struck)}" if cold else cache) as process:
            step, delay = moment(random, phase, process.before, run.seconds) if may else (0, 0.0)
            if may and process.strike(phase, step, haste * delay, signal.SIGKILL):
                assert process.finish() == -signal.SIGKILL
                struck.append(f"{phase} (after batch {max(newest(path), 0)})")
                continue
            assert process.finish() == 0, process.told()
            assert "Traceback" not in process.told()
        if struck:
            break
        shutil.rmtree(path)  # it was done before: once more, and earlier
        haste /= 2
    tell(f"{config}: killed in {', '.join(struck)}")
    assert_same(path, run.path)

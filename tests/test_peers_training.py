"""The training command in several processes: the same bits as in one (tests/faults stops and kills them)."""

import pytest
from cifar_processes import SHORT, read
from training_processes import each_needs_a_core, finish, same, started, trained

pytestmark = [pytest.mark.slow, each_needs_a_core]


@pytest.mark.parametrize(("count", "words"), [
    (2, "--K 2 --method fdg --beta 0.5"),
    (2, "--K 3 --method fdg --order forward-first"),
    (3, "--K 3 --method fdg --weights current --accumulate 2"),
    (2, "--K 2 --method gpipe"),
])  # fmt: skip
def test_several_processes_end_as_one(count, words, tmp_path):
    """tests/test_processes.py has all methods."""
    words = [*SHORT.split(), *words.split()]
    same(trained(tmp_path / "several", count, *words), trained(tmp_path / "one", 1, *words))
    threads = read(tmp_path / "several" / "config.json")["cpu_devices"]
    assert threads == int(words[words.index("--K") + 1])  # with one, stages take turns (docs/log.md, 2026-11-25)


def test_a_run_goes_on_in_another_number_of_processes(tmp_path):
    words = [*SHORT.split(), "--K", "3"]
    whole = trained(tmp_path / "whole", 1, *words)
    for begun, resumed in ((1, 3), (3, 2)):
        run = tmp_path / f"{begun} then {resumed}"
        trained(run, begun, *words, "--steps", "5")
        same(trained(run, resumed, "--resume", "--steps", "8"), whole)


def test_a_run_that_diverges_ends_in_all_processes(tmp_path):
    words = [*SHORT.split(), "--K", "2", "--learning-rate", "1e12", "--run-dir", str(tmp_path / "run")]
    code, out = finish(started(2, *words))
    assert code == 1 and "has diverged; its report shows where" in out, out
    assert "lost" not in out and "SIGKILL" not in out

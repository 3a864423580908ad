"""The training command in several processes: the same bits as in one, whoever is stopped or killed."""

import os
import re
import signal
import subprocess
import sys

import pytest
from cifar_processes import ROOT, SHORT, read
from training_processes import PROGRAM, each_needs_a_core, finish, pids, same, started, trained, wait_for_checkpoint

pytestmark = [pytest.mark.slow, each_needs_a_core]


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (2, "--K 2 --method fdg --beta 0.5"),
        (2, "--K 3 --method fdg --order forward-first"),
        (3, "--K 3 --method fdg --weights current --accumulate 2"),
        (2, "--K 2 --method gpipe"),
    ],
)
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


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """(words of a run that is stopped in the middle, its summary if it is not)."""
    words = [*SHORT.split(), "--K", "2", "--epochs", "12", "--checkpoint-every", "3", "--evaluate-every", "0"]
    return words, trained(tmp_path_factory.mktemp("long") / "whole", 1, *words)


@pytest.mark.parametrize("whom", ["process 1", "the launcher"])
def test_sigterm_to_any_process_leaves_a_whole_checkpoint(whom, long, tmp_path):
    words, whole = long
    run = tmp_path / "stopped"
    launcher = started(2, *words, "--run-dir", str(run))
    wait_for_checkpoint(run, 3)
    there = pids(launcher)
    assert len(there) == 2
    os.kill({"process 1": there[1], "the launcher": launcher.pid}[whom], signal.SIGTERM)
    code, out = finish(launcher)
    assert code == 143 and "stopped by SIGTERM after a checkpoint" in out, out
    assert not [pid for pid in there if os.path.exists(f"/proc/{pid}")]
    same(trained(run, 2, "--resume"), whole)


@pytest.mark.parametrize("number", [0, 1])
def test_a_killed_process_is_named_and_the_restart_ends_as_if_nothing_had_happened(number, long, tmp_path):
    words, whole = long
    run = tmp_path / "killed"
    launcher = started(2, *words, "--run-dir", str(run), flags=("--restart", "2"))
    wait_for_checkpoint(run, 6)
    killed = pids(launcher)[number]
    os.kill(killed, signal.SIGKILL)
    code, out = finish(launcher)
    assert code == 0, out
    assert re.search(
        rf"process {number} \(.*pid {killed}\) was killed by SIGKILL; the others were stopped\. All are", out
    )
    assert "going on after batch" in out
    same(read(run / "summary.json"), whole)


def test_processes_with_other_options_are_refused_in_one_sentence(tmp_path):
    """Started by hand, without the launcher, which gives all the same words."""
    words = [*SHORT.split(), "--K", "2", "--run-dir", str(tmp_path / "run")]
    with_others = ["--coordinator", "127.0.0.1:18763", "--processes", "2"]
    settings = {**os.environ, "JAX_PLATFORMS": "cpu"}
    both = [
        subprocess.Popen(
            [sys.executable, *PROGRAM, *words, *with_others, "--process-id", str(number), "--seed", str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=settings,
        )
        for number in range(2)
    ]
    (code, out), (other_code, other_out) = map(finish, both)
    assert code == other_code == 2
    assert "error: process 1 has --seed 1, process 0 has --seed 0. Start all with the same" in out
    assert "error" not in other_out and not (tmp_path / "run").exists()


def test_a_run_that_diverges_ends_in_all_processes(tmp_path):
    words = [*SHORT.split(), "--K", "2", "--learning-rate", "1e12", "--run-dir", str(tmp_path / "run")]
    code, out = finish(started(2, *words))
    assert code == 1 and "has diverged; its report shows where" in out, out
    assert "lost" not in out and "SIGKILL" not in out

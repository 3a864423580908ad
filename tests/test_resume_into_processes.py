"""--resume-into from any number of processes into any other one: the new run ends with the bits of one process."""

import os
import shutil
import subprocess
import sys

import pytest
from cifar_processes import QUICK, ROOT, SHORT, read
from training_processes import PROGRAM, each_needs_a_core, finish, same, started, trained

pytestmark = [pytest.mark.slow, each_needs_a_core]
INTO = "--resume-into"


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """{number of processes: a run that so many have begun}."""
    root, words = tmp_path_factory.mktemp("old"), [*SHORT.split(), "--K", "2", "--steps", "5"]
    for count in (1, 2):
        trained(root / str(count), count, *words)
    return {count: root / str(count) for count in (1, 2)}


def into(old, new, count, *words):
    """summary.json of a new run in so many processes, which goes on with an old one."""
    return trained(old, count, INTO, str(new), "--steps", "8", *words, summary_of=new)


def test_a_run_goes_on_with_other_stages_in_any_number_of_processes(old, tmp_path):
    words = ["--K", "3", "--method", "ddg"]
    alone = into(old[1], tmp_path / "alone", 1, *words)
    for begun, resumed in ((1, 3), (2, 1), (2, 2)):
        new = tmp_path / f"{begun} into {resumed}"
        same(into(old[begun], new, resumed, *words), alone)
        there = read(new / "config.json")["resumed_from"]
        assert there == read(tmp_path / "alone" / "config.json")["resumed_from"] | {"run_dir": str(old[begun])}


def test_the_same_stages_go_on_exactly_in_several_processes(old, tmp_path):
    whole = trained(tmp_path / "whole", 1, *SHORT.split(), "--K", "2", "--steps", "8")
    for begun in (1, 2):
        same(into(old[begun], tmp_path / f"into {begun}", 2), whole)


@pytest.mark.parametrize(
    "what", ["a directory that holds a run", "a damaged checkpoint", "the delay line", "one stage"]
)
def test_what_cannot_be_gone_on_with_is_one_sentence_and_exit_code_2_in_all_processes(what, old, tmp_path, coordinator):
    run, new, more = old[2], tmp_path / "new", []
    if what == "a directory that holds a run":
        new, fact = old[1], "already holds a run. Choose another --resume-into"
    elif what == "a damaged checkpoint":
        run = damaged(old[2], tmp_path / "damaged")
        fact = "process1 is damaged: npy/00000.npy"
    elif what == "the delay line":
        more, fact = ["--engine", "delay-line"], "--engine delay-line trains in one process"
    else:
        more, fact = ["--K", "1"], "--processes 2: each process needs a stage, and there are K=1"
    words = ["--run-dir", str(run), INTO, str(new), "--steps", "8", *more]
    outs = refused(words, coordinator)
    early = what in ("the delay line", "one stage")  # what each finds by itself, each says
    assert [out.count("error: ") for out in outs] == ([1, 1] if early else [1, 0]), outs
    assert fact in outs[0] and "Traceback" not in "".join(outs)
    assert not (tmp_path / "new").exists()


def damaged(run, copy):
    """A copy of a run, in whose checkpoints a part is damaged."""
    shutil.copytree(run, copy)
    for file in copy.glob("checkpoints/*/process1/npy/00000.npy"):
        file.write_bytes(b"?" + file.read_bytes()[1:])
    return copy


def refused(words, coordinator):
    """What two processes that are started by hand print on stderr; each ends with exit code 2."""
    joining = ["--coordinator", coordinator, "--processes", "2", "--process-id"]
    both = [
        subprocess.Popen(
            [sys.executable, *PROGRAM, *words, *joining, str(number)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu", **QUICK},
        )
        for number in range(2)
    ]
    outs = [process.communicate(timeout=300)[1] for process in both]
    assert [process.returncode for process in both] == [2, 2], outs
    return outs


def test_a_run_of_the_launcher_that_is_refused_is_not_started_again(old):
    code, out = finish(started(2, "--run-dir", str(old[1]), INTO, str(old[2])))
    assert code == 2 and out.count("error: ") == 2, out  # the sentence, and the launcher's

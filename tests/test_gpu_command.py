"""The command for a GPU: its plan, what it keeps, what it carries, and, in small on a CPU, that it can be stopped."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from unittest import mock

import pytest
from gpu_fakes import Fake, at, failing, raises, until

from experiments.gpu import __main__ as command
from experiments.gpu import checks, children, pages, plan, speed
from experiments.gpu.clock import TimeIsUp
from experiments.gpu.folder import Folder
from experiments.gpu.plan import Choices
from experiments.gpu.rows import Rows, begin
from experiments.gpu.settings import FULL, SMALL, rows
from experiments.harness import run_table
from experiments.harness.run_table import ROOT
from fdg_jax.errors import BadInput
from fdg_jax.runs import option_checks
from fdg_jax.training import command_line
from fdg_jax.training.signals import Stopped


@pytest.fixture(autouse=True)
def environment_as_it_was():
    with mock.patch.dict(os.environ):
        yield


def test_what_is_finished_is_not_done_again_and_its_lines_are_kept_once(tmp_path, capsys):
    here, parts = at(tmp_path), [Fake("a"), Fake("b", ["a"], does=lambda: [{"says": "1"}, {"says": "2"}])]
    assert plan.work(parts, here) == plan.work(parts, here) == 0
    assert [part.runs for part in parts] == [1, 1]
    assert [line["says"] for line in here.folder.lines("b")] == ["1", "2"]
    assert here.folder.lines("a")[0].items() >= {"part": "a", "kind": "check", "passed": True}.items()
    assert capsys.readouterr().out.count("begun") == 2


def test_a_check_that_fails_stops_what_needs_it_until_it_is_accepted_and_is_done_again(tmp_path):
    parts = [Fake("check", does=failing), Fake("speed", ["check"])]
    assert plan.work(parts, at(tmp_path)) == 1
    assert [part.runs for part in parts] == [1, 0]
    assert not at(tmp_path).folder.done("check") and at(tmp_path).folder.lines("check", failed=True)
    assert plan.work(parts, at(tmp_path, accepted=("check",))) == 0
    assert [part.runs for part in parts] == [1, 1]
    parts[0].does = lambda: [{"passed": True, "says": "8 is 8"}]
    assert plan.work(parts, at(tmp_path)) == 0
    assert [part.runs for part in parts] == [2, 1] and not at(tmp_path).folder.lines("check", failed=True)


def test_a_part_whose_process_dies_has_failed_and_the_others_go_on(tmp_path):
    parts = [Fake("a", does=raises(children.ChildFailed("exit code 1"))), Fake("b"), Fake("c", ["a"])]
    assert plan.work(parts, at(tmp_path)) == 1
    assert [part.runs for part in parts] == [1, 1, 0]
    assert "exit code 1" in at(tmp_path).folder.lines("a", failed=True)[0]["says"]


def test_only_parts_that_fit_are_begun_unless_they_go_on_or_a_whole_call_is_left(tmp_path):
    here = at(tmp_path, seconds=100)
    here.clock.began -= 50  # half of the call is over
    parts = [Fake("long", seconds=80), Fake("short", seconds=5), Fake("goes on", seconds=800, goes_on=True)]
    parts.append(Fake("unknown", seconds=None))
    plan.work(parts, here)
    assert [part.runs for part in parts] == [0, 1, 1, 1]
    plan.work(parts, at(tmp_path, seconds=60))
    assert parts[0].runs == 1  # it would never fit otherwise


def test_only_chosen_parts_are_begun(tmp_path):
    parts = [Fake("speed-a"), Fake("speed-b"), Fake("rows")]
    plan.work(parts, at(tmp_path, only=("rows", "*-b")))
    assert [part.runs for part in parts] == [0, 1, 1]


def test_the_plan_says_what_is_done_left_and_fits(tmp_path):
    here = at(tmp_path, seconds=100)
    parts = [Fake("a"), Fake("b", seconds=50), Fake("c", seconds=300), Fake("d", ["c"], None, goes_on=True)]
    plan.do(parts[0], here)
    said = plan.shown(parts, here).splitlines()
    assert [re.split(r"\s{2,}", line)[:3] for line in said[:4]] == [
        ["a", "done", "a part of a test"],
        ["b", "left", "about 50 s, fits"],
        ["c", "left", "about 5 minutes, later"],
        ["d", "left", "time not known"],
    ]
    assert "after c" in said[3] and "about 5.83 minutes, and 1 of unknown length" in said[4]


def until_interrupted():
    while True:
        time.sleep(0.01)


def test_the_end_of_the_time_interrupts_a_part_and_loses_nothing_that_is_finished(tmp_path):
    here = at(tmp_path, seconds=0.5)
    with here.clock, pytest.raises(TimeIsUp):
        plan.work([Fake("a"), Fake("b", does=until_interrupted, seconds=None)], here)
    assert here.folder.done("a") and not here.folder.done("b")


def test_a_signal_interrupts_a_part_and_is_the_exit_code(tmp_path):
    here = at(tmp_path)

    def signalled():
        os.kill(os.getpid(), signal.SIGTERM)
        until_interrupted()

    with here.clock:
        assert command.go([Fake("a"), Fake("b", does=signalled)], here, only_plan=False) == 128 + signal.SIGTERM


def test_a_signal_between_two_parts_interrupts_nothing_and_the_next_part_is_not_begun(tmp_path):
    here, part = at(tmp_path), Fake("a")
    with here.clock:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.05)
        with pytest.raises(Stopped):
            plan.work([part], here)
    assert part.runs == 0


def test_a_folder_keeps_what_its_results_depend_on(tmp_path):
    folder = Folder(tmp_path / "kept")
    with folder.held():
        folder.choose({"settings": "small", "precision": "float32"})
        folder.choose({"settings": "small", "precision": "float32"})
        with pytest.raises(BadInput, match="precision is tf32, was float32"):
            folder.choose({"settings": "small", "precision": "tf32"})
        (folder.place("a")).write_text("x")
        assert folder.place("a") == folder.scratch / "a-1"
    assert not folder.scratch.exists()


def test_a_result_that_is_cut_off_while_it_is_written_is_none(tmp_path):
    here = at(tmp_path)
    (here.folder.results / "a.jsonl.part").write_text('{"says": "ha')
    assert not here.folder.done("a") and here.folder.lines("a") == []


def test_an_xla_flag_is_given_once_and_the_last_one_counts(monkeypatch):
    assert children.joined("--a=1 --b", "--a=2", "") == "--a=2 --b"
    monkeypatch.setenv("XLA_FLAGS", "--a=1")
    monkeypatch.setenv("JAX_DEFAULT_MATMUL_PRECISION", "bfloat16")
    started = children.environment("float32", "--xla_gpu_deterministic_ops=false --a=2", compile_anew=True)
    assert started["XLA_FLAGS"] == "--a=2 --xla_gpu_deterministic_ops=false"
    assert started["JAX_DEFAULT_MATMUL_PRECISION"] == "highest" and started["FDG_JAX_COMPILE_CACHE"] == "0"
    assert "JAX_DEFAULT_MATMUL_PRECISION" not in children.environment("tf32")


def test_a_child_that_fails_says_what_it_said_last(tmp_path):
    with pytest.raises(children.ChildFailed, match="exit code 3; it said last: no more"):
        children.run(["-c", "import sys; sys.exit(print('no more') or 3)"], tmp_path / "log", os.environ)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a child that its parent is gone")
def test_a_child_is_stopped_when_its_parent_is_killed(tmp_path):
    child = "import signal, time; signal.signal(signal.SIGUSR1, lambda *_: (open('stopped', 'w'), exit())); "
    child += "open('ready', 'w'); time.sleep(60)"
    parent = "import os, pathlib, sys, time; from experiments.gpu import children; children.ROOT = pathlib.Path.cwd(); "
    parent += f"children.start(['-c', {child!r}], pathlib.Path('log'), os.environ); time.sleep(60)"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", parent], cwd=tmp_path, env=env)
    until(lambda: (tmp_path / "ready").exists(), 30)
    process.kill()
    process.wait()
    until(lambda: (tmp_path / "stopped").exists(), 10)


# The parts that there are


def test_the_rows_are_those_of_table_3_cheapest_network_first():
    names = [run.name for run in rows(FULL)]
    assert names[:4] == [
        "resnet20-cifar10-bp-K1-seed0", "resnet20-cifar10-fdg-K2-beta1-seed0",
        "resnet20-cifar10-fdg-K2-beta0.2-seed0", "resnet20-cifar10-bp-K1-seed1",
    ]  # fmt: skip
    assert len(names) == 6 * 3 * 3 and names[-1].startswith("wrn28_10-")
    assert {name: run.flags["epochs"] for name, run in zip(names, rows(FULL), strict=True)}[names[0]] == 300


@pytest.mark.parametrize("settings", [FULL, SMALL], ids=lambda settings: settings.name)
def test_checks_come_before_speeds_and_speeds_before_rows(settings):
    found = command.parts(settings, Choices(rows=("*",)))
    kinds = [part.kind for part in found]
    assert kinds == sorted(kinds, key=[plan.CHECK, plan.SPEED, plan.ROWS].index)
    names = [part.name for part in found]
    assert len(set(names)) == len(names)
    for number, part in enumerate(found):
        assert set(part.needs) <= set(names[:number])
        if part.kind != plan.CHECK and part.name not in ("row-flags", "together"):
            assert {"determinism", "resume", "engines", "memory"} <= set(part.needs)


def test_a_row_that_does_not_exist_is_refused(capsys):
    assert command.main(["--minutes", "1", "--rows", "resnet2O-*", "--plan", "--folder", "/nowhere/at/all"]) == 2
    assert "no row of table3 is called that. There are 'resnet20-*'," in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--minutes", "0"], ["--minutes", "nan"], ["--minutes", "1", "--parts", "x"], []])
def test_bad_input_is_one_message(words, capsys):
    assert command.main(words) == 2
    assert capsys.readouterr().err.startswith("error: ")


def parsed(words):
    assert words[0] == "-m"
    options, given = command_line.parse(words[2:], words[1])
    option_checks.check(options, given - {"resume"})
    return options


def test_rows_are_trained_by_the_tables_own_words_and_what_is_added_is_free_to_change(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(children, "start", lambda words, log, env: asked.append((words, env)))
    here = at(tmp_path, data_dir=tmp_path / "data")._replace(settings=FULL)
    here.folder.finish("row-flags", [{"flags": "--xla_gpu_graph_min_graph_size=1"}])
    here.folder.finish("determinism", [{"flags": "--xla_gpu_autotune_level=0"}])
    for run in rows(FULL)[:3]:
        begin(run, here)
        words, env = asked.pop()
        options = parsed(words)
        assert {name: getattr(options, name) for name in run.flags} == run.flags
        run_table.check(run, tmp_path, {"asked": dataclasses.asdict(options)})  # else `collect` would refuse it
        assert (options.resume, options.keep, options.tensorboard) == ("auto", 1, False)
        for flag in (
            "--xla_gpu_deterministic_ops=true",
            "--xla_gpu_graph_min_graph_size=1",
            "--xla_gpu_autotune_level=0",
        ):
            assert flag in env["XLA_FLAGS"].split()
        assert env["JAX_DEFAULT_MATMUL_PRECISION"] == "highest"


@pytest.mark.parametrize("settings", [FULL, SMALL], ids=lambda settings: settings.name)
def test_what_is_trained_to_compare_bits_is_accepted_by_the_training_command(tmp_path, settings):
    here = at(tmp_path)._replace(settings=settings)
    options = parsed(checks.training(here, tmp_path / "run", settings.check_steps, "--resume"))
    assert (options.model, options.K, options.steps) == (settings.check_model, 2, settings.check_steps)


def test_the_sides_of_a_gpu_are_understood(tmp_path):
    here = at(tmp_path)._replace(settings=FULL)
    for text in (*FULL.sides, *FULL.peers):
        made = speed.side(here, text, "wrn28_10", "bfloat16", "--xla_gpu_deterministic_ops=false")
        assert (made.device, made.dtype, made.precision, made.batch_size) == ("gpu", "bfloat16", "default", 128)
        assert made.xla in ("--xla_gpu_deterministic_ops=false", "")  # PyTorch has none
    assert speed.side(here, "delay-line", "resnet20", "float32").precision == "highest"


def test_rows_that_take_longer_than_the_hours_are_left_out(tmp_path):
    part, here = Rows("resnet8", rows(SMALL), ()), at(tmp_path)
    assert part.seconds(here) == SMALL.guesses["rows-resnet8"] and part.refused(here) == ""
    unmeasured = Rows("resnet20", rows(FULL)[:1], ())
    assert unmeasured.seconds(here) is None and unmeasured.refused(here) == ""
    here.folder.finish("together", [{"model": "resnet8", "jobs": 2, "images_per_second": {"1": 0.1, "2": 0.2}}])
    assert part.seconds(here) == pytest.approx(3 * 3 * 640 / 0.2)
    assert part.refused(here) == ""
    assert "about 8 hours, more than --hours 2" in part.refused(at(tmp_path, hours=2.0))


# Speeds


def test_the_ratio_of_a_side_is_within_its_turn():
    assert speed.compared({"a": [100.0, 50.0, 10.0], "b": [150.0, 100.0, 10.0]}, "a") == {"a": 1.0, "b": 1.5}


def test_the_rows_take_the_fastest_flags_that_change_no_bit(tmp_path, monkeypatch):
    here = at(tmp_path)._replace(settings=FULL)
    launch, other = "no command buffers", "loop unrolled twice"
    lines = [("as it is", 1.0), (launch, 1.2), (other, 2.0), ("exclusive lock", 1.3), ("not deterministic", 3.0)]
    here.folder.finish("flags", [{"side": name, "ratio": ratio, "flags": f"--{name}"} for name, ratio in lines])
    here.folder.finish("determinism", [{"state_sha256": "same", "flags": ""}])
    ended_in = iter([{"final_state_sha256": "other"}, {"final_state_sha256": "same"}])
    asked = []
    monkeypatch.setattr(children, "run", lambda words, log, env: asked.append(env["XLA_FLAGS"]))
    monkeypatch.setattr(speed, "read_json", lambda path: next(ended_in))
    (line,) = speed.RowFlags().run(here)
    assert line["flags"] == "--no command buffers" and line["tried"] == ["exclusive lock: other bits"]
    assert [text.split("--")[-1] for text in asked] == ["exclusive lock", "no command buffers"]


def test_finished_parts_are_kept_beside_those_of_other_devices_and_shown(tmp_path, capsys):
    def measure(device, day=27, **parts):
        folder = tmp_path / "folder"
        shutil.rmtree(folder, ignore_errors=True)
        for name, says in parts.items():
            about = {"device": device, "jax": "1", "python": "3", "time": f"2026-11-{day}T01:00:00", "commit": None}
            Folder(folder).file(name, failed=name == "resume").parent.mkdir(parents=True, exist_ok=True)
            line = {"part": name, "passed": name != "resume", "says": says, **about}
            Folder(folder).file(name, failed=name == "resume").write_text(f"{json.dumps(line)}\n")
        return command.main(["collect", "--folder", str(folder), "--results", str(tmp_path / "results")])

    assert measure("A", devices="one", engines="two", resume="other bits") == 0
    assert measure("B", devices="three") == 0
    assert measure("A", engines="four") == 0
    assert measure("A", day=26, engines="older") == 0
    lines = pages.lines_of(tmp_path / "results" / pages.LINES)
    assert [(line["device"], line["says"]) for line in lines] == [("A", "one"), ("A", "four"), ("B", "three")]
    page = (tmp_path / "results" / pages.PAGE).read_text()
    assert page.index("## A") < page.index("| engines | four | 2026-11-27 |") < page.index("## B")
    assert "other bits" not in page  # a check that failed is not finished
    assert measure("C") == 2 and "holds no finished part" in capsys.readouterr().err


def test_the_page_of_gpus_is_made_of_its_lines():
    lines = pages.lines_of(run_table.RESULTS / pages.LINES)
    assert lines and (run_table.RESULTS / pages.PAGE).read_text() == pages.page(lines)

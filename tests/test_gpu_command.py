"""The command for a GPU: its loop, its list of steps, what it keeps and what it trains."""

import dataclasses
import json
import os
import shutil
import signal
import time
from unittest import mock

import pytest
from gpu_fakes import Fakes, at, failing

from benchmarks.harness import children
from benchmarks.images_per_second import asked_for
from benchmarks.images_per_second import parser as speed_parser
from experiments.gpu import __main__ as command
from experiments.gpu import loop, on_device, pages, steps
from experiments.gpu.loop import Choices, Folder, TimeIsUp
from experiments.gpu.settings import FULL, SMALL, rows
from experiments.harness import run_table
from fdg_jax import cli
from fdg_jax.checks import options as checks
from fdg_jax.data.sets import cifar10
from fdg_jax.errors import BadInput
from tests.cifar_files import assert_same, own_directories_and_no_network, tfds_directory


@pytest.fixture(autouse=True)
def environment_as_it_was():
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture
def fake():
    return Fakes()


def test_what_is_finished_is_not_done_again_and_its_lines_are_kept_once(tmp_path, fake):
    here, given = at(tmp_path), [fake("a"), fake("b", ["a"], does=lambda: [{"says": "1"}, {"says": "2"}])]
    assert loop.work(given, here) == loop.work(given, here) == 0 and fake.ran == ["a", "b"]
    assert [line["says"] for line in here.folder.lines("b")] == ["1", "2"]
    assert here.folder.lines("a")[0].items() >= {"part": "a", "kind": "check", "passed": True}.items()
    (here.folder.results / "c.jsonl.part").write_text('{"says": "ha')  # cut off while it was written
    assert not here.folder.done("c") and here.folder.lines("c") == []


def test_a_check_that_fails_stops_what_needs_it_until_it_is_accepted_and_is_done_again(tmp_path, fake):
    given = [fake("check", does=failing), fake("speed", ["check"])]
    assert loop.work(given, at(tmp_path)) == 1 and fake.ran == ["check"]
    assert not at(tmp_path).folder.done("check") and at(tmp_path).folder.failed("check")
    assert loop.work(given, at(tmp_path, accepted=("check",))) == 0 and fake.ran == ["check", "speed"]
    assert loop.work([fake("check"), given[1]], at(tmp_path)) == 0 and fake.ran[2:] == ["check"]
    assert at(tmp_path).folder.done("check")


def test_only_chosen_steps_that_fit_are_begun_unless_they_go_on_or_a_whole_call_is_left(tmp_path, fake):
    here = at(tmp_path, seconds=100, only=("[!x]*",))
    here.clock.began -= 50  # half of the call is over
    given = [fake("long", seconds=80), fake("short", seconds=5), fake("rows", seconds=800, goes_on=True)]
    given += [fake("unknown", seconds=None), fake("x")]
    loop.work(given, here)
    assert fake.ran == ["short", "rows", "unknown"]
    loop.work(given[:1], at(tmp_path, seconds=60))
    assert fake.ran[3:] == ["long"]  # it would never fit otherwise


def until_interrupted():
    while True:
        time.sleep(0.01)


def test_the_end_of_the_time_interrupts_a_step_and_loses_nothing_that_is_finished(tmp_path, fake):
    here = at(tmp_path, seconds=0.5)
    with here.clock, pytest.raises(TimeIsUp):
        loop.work([fake("a"), fake("b", does=until_interrupted, seconds=None)], here)
    assert here.folder.done("a") and not here.folder.done("b")


def test_a_signal_interrupts_a_step_and_is_the_exit_code(tmp_path, fake):
    def signalled():
        os.kill(os.getpid(), signal.SIGTERM)
        until_interrupted()

    here = at(tmp_path)
    with here.clock:
        assert command.go([fake("a"), fake("b", does=signalled)], here, only_plan=False) == 128 + signal.SIGTERM


def test_a_folder_keeps_what_its_results_depend_on(tmp_path):
    folder, chosen = Folder(tmp_path / "kept"), {"settings": "small", "precision": "float32"}
    for _ in range(2):
        with folder.held(chosen):
            folder.place("a").write_text("x")
            assert folder.place("a") == folder.scratch / "a-1"
        assert not folder.scratch.exists()
    with pytest.raises(BadInput, match="precision is tf32, was float32"), folder.held(chosen | {"precision": "tf32"}):
        pass


# The steps that there are


@pytest.mark.parametrize("settings", [FULL, SMALL], ids=lambda settings: settings.name)
def test_checks_come_before_speeds_and_speeds_before_rows(settings):
    found = steps.steps(settings, Choices(rows=("*",)))
    kinds, names = [step.kind for step in found], [step.name for step in found]
    assert kinds == sorted(kinds, key=[loop.CHECK, loop.SPEED, loop.ROWS].index) and len(set(names)) == len(names)
    for number, step in enumerate(found):
        assert set(step.needs) <= set(names[:number])
        if step.kind != loop.CHECK and step.name not in ("row-flags", "together"):
            assert {"determinism", "resume", "engines", "memory"} <= set(step.needs)


def parsed(words):
    assert words[0] == "-m"
    options, given = cli.parse(words[2:], words[1])
    checks.check(options, given - {"resume"})
    return options


def test_rows_are_trained_by_the_tables_own_words_and_what_is_added_is_free_to_change(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(steps, "Child", lambda words, name, **more: asked.append((words, more["env"])))
    here = at(tmp_path, data_dir=tmp_path / "data")._replace(settings=FULL)
    here.folder.finish("row-flags", [{"flags": "--xla_gpu_graph_min_graph_size=1"}])
    here.folder.finish("determinism", [{"flags": "--xla_gpu_autotune_level=0"}])
    for run in rows(FULL)[:3]:
        steps.begin(run, here)
        words, env = asked.pop()
        options = parsed(words)
        assert {name: getattr(options, name) for name in run.flags} == run.flags
        run_table.check(run, tmp_path, {"asked": dataclasses.asdict(options)})  # else `collect` would refuse it
        assert (options.resume, options.keep, options.tensorboard) == ("auto", 1, False)
        flags = {"--xla_gpu_deterministic_ops=true", "--xla_gpu_graph_min_graph_size=1", "--xla_gpu_autotune_level=0"}
        assert flags <= set(env["XLA_FLAGS"].split()) and env["JAX_DEFAULT_MATMUL_PRECISION"] == "highest"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no pinning on this system")
def test_speeds_are_those_of_the_benchmark_and_a_side_that_failed_is_told(tmp_path, monkeypatch):
    """The benchmark understands a GPU's sides. A side that it measured is a line, one that it left out a reason."""

    def benchmark(*words, log, env):
        given = speed_parser().parse_args(list(words[2:]))
        asked.append({side.name: side for side in asked_for(given, "gpu")})
        row = {"side": "delay-line", "images_per_second_windows": [150.0, 100.0, 30.0], "ratio": 1.5}
        base = {"side": "bp:engine=delay-line", "images_per_second_windows": [100.0, 50.0, 30.0], "ratio": 1.0}
        (tmp_path / words[words.index("--json") + 1]).write_text(f"{json.dumps(base)}\n{json.dumps(row)}\n")
        log.write_text("Side bp is left out: its memory is full.\n")

    asked = []
    monkeypatch.setattr(children, "run", benchmark)
    monkeypatch.setattr("benchmarks.peers.sides.has", lambda python, package: True)
    here = at(tmp_path)._replace(settings=FULL)
    one, two, three, *_ = steps.speeds(here, "wrn28_10", "bfloat16")
    assert (one["ratio"], two["ratio"], two["over"]) == (1.0, 1.5, "bp:engine=delay-line")
    assert two["says"] == "delay-line: 100 (30 to 150) images/s, 1.50 of bp:engine=delay-line, n=3"
    assert three["says"] == "bp: not measured: Side bp is left out: its memory is full." and "ratio" not in three
    steps.speeds(here, "resnet20", "float32")
    steps.speeds(here, "resnet18", "tf32")  # which the peers in PyTorch do not have
    assert list(asked[0]) == list(asked[1]) == list(FULL.sides) and len(asked[2]) == 4
    expected = [("bfloat16", "default"), ("float32", "highest"), ("float32", "default")]
    for sides, (dtype, precision) in zip(asked, expected, strict=True):
        assert {(side.dtype, side.precision) for side in sides.values()} == {(dtype, precision)}
        assert {side.xla for side in sides.values()} <= {"--xla_gpu_deterministic_ops=true", ""}  # PyTorch has none


def test_the_rows_take_the_fastest_flags_that_change_no_bit(tmp_path, monkeypatch):
    here = at(tmp_path)._replace(settings=FULL)
    launch, other = "no command buffers", "loop unrolled twice"
    lines = [("as it is", 1.0), (launch, 1.2), (other, 2.0), ("exclusive lock", 1.3), ("not deterministic", 3.0)]
    here.folder.finish("flags", [{"side": name, "ratio": ratio, "flags": f"--{name}"} for name, ratio in lines])
    here.folder.finish("determinism", [{"state_sha256": "same", "flags": ""}])
    ended_in, asked = iter([{"final_state_sha256": "other"}, {"final_state_sha256": "same"}]), []
    monkeypatch.setattr(children, "run_all", lambda wanted: asked.append(wanted[0]["env"]["XLA_FLAGS"]))
    monkeypatch.setattr(steps, "read_json", lambda path: next(ended_in))
    (line,) = steps.row_flags(here)
    assert line["flags"] == "--no command buffers" and line["tried"] == ["exclusive lock: other bits"]
    assert [text.split("--")[-1] for text in asked] == ["exclusive lock", "no command buffers"]


def test_finished_steps_are_kept_beside_those_of_other_devices_and_shown(tmp_path, capsys):
    def measure(device, day=27, **parts):
        folder = Folder(tmp_path / "folder")
        shutil.rmtree(folder.path, ignore_errors=True)
        folder.results.mkdir(parents=True)
        for name, says in parts.items():
            about = {"device": device, "jax": "1", "python": "3", "time": f"2026-11-{day}T01:00:00", "commit": None}
            line = {"part": name, "passed": name != "resume", "says": says, **about}
            folder.finish(name, [line])
        return command.main(["collect", "--folder", str(folder.path), "--results", str(tmp_path / "results")])

    assert measure("A", devices="one", engines="two", resume="other bits") == 0
    assert measure("B", devices="three") == 0
    assert measure("A", engines="four") == 0
    assert measure("A", day=26, engines="older") == 0
    lines = loop.lines_of(tmp_path / "results" / pages.LINES)
    assert [(line["device"], line["says"]) for line in lines] == [("A", "one"), ("A", "four"), ("B", "three")]
    page = (tmp_path / "results" / pages.PAGE).read_text()
    assert page.index("## A") < page.index("| engines | four | 2026-11-27 |") < page.index("## B")
    assert "other bits" not in page  # a check that failed is not finished
    assert measure("C") == 2 and "holds no finished part" in capsys.readouterr().err


def test_the_page_of_gpus_is_made_of_its_lines():
    lines = loop.lines_of(run_table.RESULTS / pages.LINES)
    assert lines and (run_table.RESULTS / pages.PAGE).read_text() == pages.page(lines)


def test_cifar10_is_packed_as_a_file_that_the_training_command_reads(tmp_path, monkeypatch):
    own_directories_and_no_network(tmp_path, monkeypatch)
    _, images = tfds_directory(tmp_path / "tfds")
    assert command.main(["pack", "--data-dir", str(tmp_path / "tfds"), "--into", str(tmp_path / "packed")]) == 0
    here = at(tmp_path, data_dir=tmp_path / "packed")._replace(settings=FULL)
    assert steps.row_refusal("resnet20", rows(FULL)[:3], here) == ""
    assert_same(cifar10.load(tmp_path / "packed"), images)
    (tmp_path / "packed" / "cifar10.npz").unlink()
    assert "neither cifar10/<version>/ nor cifar10.npz" in steps.row_refusal("resnet20", rows(FULL)[:3], here)


@pytest.mark.slow
def test_the_engines_are_what_plain_jax_trains_and_one_update_too_soon_is_seen():
    found = on_device.engines("resnet8", 3, 10, 16)
    assert max(found["from_oracle"].values()) < on_device.BOUND and found["between_engines"] < on_device.BOUND
    assert found["one_update_sooner"] > on_device.WRONG * on_device.BOUND

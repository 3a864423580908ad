"""The command for a GPU: its loop, its list of steps, what it keeps and what it trains."""

import dataclasses
import os
import time
from unittest import mock

import pytest
from gpu_fakes import Fakes, at, failing

from experiments.gpu import loop, on_device, pages, steps
from experiments.gpu.loop import Choices, Folder, TimeIsUp
from experiments.gpu.settings import FULL, SMALL, rows
from experiments.harness import run_table
from fdg_jax import cli
from fdg_jax.checks import options as checks
from fdg_jax.errors import BadInput


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


def until_interrupted():
    while True:
        time.sleep(0.01)


def test_the_end_of_the_time_interrupts_a_step_and_loses_nothing_that_is_finished(tmp_path, fake):
    here = at(tmp_path, seconds=0.5)
    with here.clock, pytest.raises(TimeIsUp):
        loop.work([fake("a"), fake("b", does=until_interrupted, seconds=None)], here)
    assert here.folder.done("a") and not here.folder.done("b")


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


def test_the_page_of_gpus_is_made_of_its_lines():
    lines = loop.lines_of(run_table.RESULTS / pages.LINES)
    assert lines and (run_table.RESULTS / pages.PAGE).read_text() == pages.page(lines)


@pytest.mark.slow
def test_the_engines_are_what_plain_jax_trains_and_one_update_too_soon_is_seen():
    found = on_device.engines("resnet8", 3, 10, 16)
    assert max(found["from_oracle"].values()) < on_device.BOUND and found["between_engines"] < on_device.BOUND
    assert found["one_update_sooner"] > on_device.WRONG * on_device.BOUND

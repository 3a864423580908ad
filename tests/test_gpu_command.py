"""The command for a GPU: its loop, its list of steps, what it keeps and what it trains."""

import dataclasses
import os
import time
from unittest import mock

import pytest
from gpu_fakes import Fakes, at, failing

from experiments.gpu import loop, on_device, pages, steps
from experiments.gpu.__main__ import main
from experiments.gpu.loop import Choices, Folder, TimeIsUp
from experiments.gpu.settings import CAPTURE, FULL, SMALL, more_seeds, rows
from experiments.harness import run_table
from fdg_jax import cli, sweep
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
    with pytest.raises(BadInput, match="is tf32 and was float32"), folder.held(chosen | {"precision": "tf32"}):
        pass


# The steps that there are


@pytest.mark.parametrize("settings", [FULL, SMALL], ids=lambda settings: settings.name)
def test_what_decides_most_comes_first_and_no_step_needs_a_later_one(settings):
    found = steps.steps(settings, Choices(rows=("*",)))
    names = [step.name for step in found]
    assert names[:3] == ["devices", "flags", "seeds"] and names[3].startswith("rows-") and len(set(names)) == len(names)
    for number, step in enumerate(found):
        assert set(step.needs) <= set(names[:number])


def test_rows_are_trained_by_the_tables_own_words_and_what_is_added_is_free_to_change(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(steps, "Child", lambda words, name, **more: asked.append((words, more["env"])))
    here = at(tmp_path, data_dir=tmp_path / "data")._replace(settings=FULL)
    ratios = {"untuned, float32": 1.0, "tuned, float32": 1.2, "tuned, captured, float32": 1.3}
    here.folder.finish("flags", [{"side": side, "ratio": ratio} for side, ratio in ratios.items()])
    found = steps.groups([run for run in rows(FULL) if run.flags["model"] == "resnet20"])
    assert [len(of_row) for of_row in found.values()] == [3, 6]  # BP; FDG with both betas
    for name, of_row in found.items():
        steps.begin(name, of_row, here)
        words, env = asked.pop()
        read = cli.read(words[2:], words[1])
        checks.check_start(read.start, read.options, read.joining)
        made = {f"{name}/{one.name}": one for one in sweep.combinations(read, cli.Program(words[1]))}
        assert len(made) == len(of_row)
        for run in of_row:
            one = made[os.readlink(here.folder.rows / run.name)]
            assert {name: getattr(one.options, name) for name in run.flags} == run.flags
            run_table.check(run, tmp_path, {"asked": dataclasses.asdict(one.options)})  # else `collect` refuses it
            assert (one.options.keep, one.options.tensorboard, read.start.together) == (1, False, True)
        assert env["XLA_FLAGS"].endswith(CAPTURE) and env["JAX_DEFAULT_MATMUL_PRECISION"] == "highest"


def test_the_page_says_of_each_speed_what_it_is_or_that_it_is_not_measured():
    about = {"part": "seeds", "device": "GPU", "python": "3", "jax": "0", "commit": "a", "time": "2026-11-29"}
    line = {**about, "side": "8 seeds together", "images_per_second": 123456.0, "says": "fast"}
    page = pages.page([line])
    assert "| 8 seeds together | 123,456 | GPU |" in page and page.count("| not measured |") == len(FULL.sides) + 2


def test_as_many_seeds_are_added_to_the_rows_as_the_memory_has_room_for(tmp_path):
    here = at(tmp_path)._replace(settings=FULL)
    table = [run for run in rows(FULL) if run.flags["model"] == "resnet20"]
    more = more_seeds(table, 32)
    assert len({run.name for run in (*table, *more)}) == 32 * 3 and steps.fitting(table, here) == table
    for memory, seeds in ((80e9, 16), (20e9, 9), (1e9, 0)):  # a program has two betas of each seed
        here.folder.finish("devices", [{"memory_bytes": memory}])
        line = {"bytes": 31e9, "model": "resnet20"}
        speeds = [{**line, "seeds": 8, "images_per_second": 1e5}, {**line, "seeds": 32, "images_per_second": 2e5}]
        here.folder.finish("seeds", speeds)
        found = steps.fitting(more, here)
        assert [run.flags["seed"] for run in found[::3]] == list(range(3, seeds)), memory
        seconds = steps.row_seconds("resnet20", more, here)  # at the speed of as many, or fewer
        assert seconds == (len(found) * 300 * 50_000 / 1e5 if found else None)
    assert steps.fitting(table, here) == table


@pytest.mark.slow
def test_the_small_plan_is_worked_through_in_several_calls(tmp_path, capsys):
    words = ["--small", "--folder", str(tmp_path / "gpu"), "--minutes"]
    assert main([*words, "0.15"]) == 0  # the time is over before all is done
    assert "rows-resnet8" in capsys.readouterr().out
    assert main([*words, "60", "--only", "devices", "flags", "seeds", "rows-*"]) == 0
    assert main([*words, "60", "--only", "devices", "flags", "seeds", "rows-*"]) == 0
    out = capsys.readouterr().out
    assert "begun" not in out.rpartition("left:")[2]  # the second call has nothing to do
    folder = Folder(tmp_path / "gpu")
    assert [line["seeds"] for line in folder.lines("seeds")] == [1, 4]
    assert len(folder.lines("rows-resnet8")) == len(folder.lines("rows-resnet8-more")) == 3  # seeds 0 and 1


def test_the_page_of_gpus_is_made_of_its_lines():
    lines = loop.lines_of(run_table.RESULTS / pages.LINES)
    assert lines and (run_table.RESULTS / pages.PAGE).read_text() == pages.page(lines)


@pytest.mark.slow
def test_the_engines_are_what_plain_jax_trains_and_one_update_too_soon_is_seen():
    found = on_device.engines("resnet8", 3, 10, 16)
    assert max(found["from_oracle"].values()) < on_device.BOUND and found["between_engines"] < on_device.BOUND
    assert found["one_update_sooner"] > on_device.WRONG * on_device.BOUND

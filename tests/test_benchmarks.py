"""The benchmarks start, refuse what would be no measurement, and measure what they say."""

import argparse
import json
import math
import os
import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import flax.linen as nn
import jax
import numpy as np
import pytest
import small

from benchmarks import __main__ as overview
from benchmarks import block_cost, checkpoint_cost, host_cost, images_per_second, loader, memory, readme
from benchmarks import split as benchmark_split
from benchmarks.harness import bench_worker, report, side_specs
from benchmarks.peers import sides as peers
from fdg_jax import api, schedule
from fdg_jax.data.jpeg import decode_image
from fdg_jax.data.streams import imagenet
from fdg_jax.engine import host_engine
from fdg_jax.errors import BadInput
from fdg_jax.methods import fdg
from fdg_jax.storage import durable

ROOT = Path(__file__).resolve().parent.parent
COMMON = {"K": 2, "model": "resnet8", "batch_size": 4}
TINY = ("--model", "resnet8", "--batch-size", "4")
pins_cores = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no pinning on this system")


def run(*arguments):
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


def rows_of(text):
    return [json.loads(line) for line in text.splitlines()]


def test_the_list_names_every_benchmark_with_its_first_line():
    done = run()
    assert done.returncode == 0, done.stderr
    files = {file.stem for file in (ROOT / "benchmarks").glob("*.py") if not file.name.startswith("_")}
    listed = dict(line.split(None, 1) for line in done.stdout.partition("\n\n")[0].splitlines())
    assert listed.keys() == files >= {"images_per_second", "host_cost", "block_cost"}
    assert listed["host_cost"] == (host_cost.__doc__ or "").splitlines()[0]


def test_a_benchmark_that_does_not_exist_is_refused_with_the_nearest_name(capsys):
    assert overview.main(["image_per_second"]) == 2
    assert "Did you mean images_per_second?" in capsys.readouterr().err
    assert overview.main(["nonsense"]) == 2
    assert "Did you mean" not in capsys.readouterr().err


def test_help_lists_the_benchmarks(capsys):
    assert overview.main(["--help"]) == 0
    assert set(overview.names()) <= set(capsys.readouterr().out.split())


def commands_shown():
    """(file, line) of every command line on the pages, in the benchmarks' help and in the layers' docstring."""
    files = [
        ROOT / "benchmarks" / "README.md",
        *readme.pages(),
        *(ROOT / "benchmarks").glob("[a-z]*.py"),
        ROOT / "fdg_jax/layers/basic.py",
    ]
    for file in files:
        text = file.read_text().replace("\\\n", " ")
        for line in re.findall(r"^.*python -m benchmarks\..*$", text, re.M):
            for command in re.findall(r"`([^`]*python -m benchmarks\.[^`]*)`", line) or [line.strip()]:
                yield file.name, command


def test_every_command_shown_runs_in_the_repositorys_environment_and_has_only_flags_that_there_are():
    class Parsed(Exception):
        pass

    def only_parse(self, arguments):
        parse(self, arguments)  # exits where it refuses
        raise Parsed

    parse, shown = argparse.ArgumentParser.parse_args, list(commands_shown())
    assert {file for file, _ in shown} >= {
        "README.md",
        "memory.md",
        "convolutions.md",
        "basic.py",
        "block_cost.py",
        "images_per_second.py",
    }
    for _, line in shown:
        before, _, command = line.partition(".venv/bin/python -m benchmarks.")
        assert "python" not in before and command, line
        name, *arguments = shlex.split(command)
        with mock.patch.object(argparse.ArgumentParser, "parse_args", only_parse), pytest.raises(Parsed):
            import_module(f"benchmarks.{name}").main(arguments)


def test_a_side_is_a_preset_or_a_method_and_options_go_over_both():
    def parse(text):
        return side_specs.parse(text, COMMON, "--a", "balanced")

    bp, fdg, two = parse("bp"), parse("fdg"), parse("bp-two-cores")
    assert (bp.method, bp.K, bp.cores, bp.split) == ("bp", 1, 1, None)
    assert (fdg.method, fdg.K, fdg.cores, fdg.split, fdg.xla) == ("fdg", 2, 2, "balanced", "--a")
    assert (two.K, two.cores) == (1, 2)
    line, turned = parse("delay-line:K=4"), parse("fdg:K=3:split=3,7:dispatch=down:xla=--b=false")
    assert (line.engine, line.K, line.cores) == ("delay-line", 4, 1)
    assert (turned.K, turned.cores, turned.split, turned.xla) == (3, 3, "3,7", "--b=false")
    assert parse("fdg:accumulate=2:order=forward-first").options == {"accumulate": 2, "order": "forward-first"}
    assert parse("dni:conditional=off").options == {"conditional": False}


@pytest.mark.parametrize(
    ("side", "word"),
    [
        ("fgd", "fdg"),
        ("fdg:dispatch=left", "up or down"),
        ("fdg:order=left", "backward-first or forward-first"),
        ("fdg:speed=9", "split"),
        ("fdg:K=0", "from 1 on"),
        ("bp:dispatch=down", "order of dispatch"),
        ("delay-line:update=fused", "engine=pipeline"),
        ("dgl:update=fused", "stages of its own"),
        ("dgl:aux=mlp", "mlp-sr or linear or predsim"),
        ("fdg:aux=linear", "method fdg has no such option"),
        ("gpipe:micro_batches=x", "a whole number"),
        ("dni:conditional=maybe", "on or off"),
    ],
)
def test_a_side_that_does_not_exist_is_refused_with_the_way_out(side, word):
    with pytest.raises(BadInput, match=word):
        side_specs.parse(side, COMMON, "", "balanced")


@pins_cores
@pytest.mark.parametrize(
    "arguments", [["--K", "9999"], ["--sides", "bp", "bp"], ["--seconds", "0"], ["--also-over", "fr"]]
)
def test_what_would_be_no_measurement_ends_with_exit_code_2_before_anything_starts(arguments, capsys):
    with mock.patch("subprocess.Popen", side_effect=AssertionError("a side was started")):
        assert images_per_second.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1


@pins_cores
def test_what_a_side_refuses_is_one_message_and_exit_code_2(capfd):
    assert images_per_second.main(["--model", "resnet21", "--sides", "bp"]) == 2
    err = capfd.readouterr().err
    assert "error: side bp: " in err
    assert "resnet21" in err
    assert "Traceback" not in err


def test_a_side_starts_with_its_flags_and_with_huge_pages_as_asked():
    fdg = side_specs.parse("fdg:hugepages=off:xla=--b", COMMON, "", "balanced")
    with mock.patch.dict(os.environ, {"XLA_FLAGS": "--a", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}):
        started = side_specs.environment(fdg)
    assert (started["XLA_FLAGS"], started["JAX_PLATFORMS"]) == ("--a --b", "cpu")
    assert "GLIBC_TUNABLES" not in started
    wanted = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    with mock.patch("fdg_jax.machine.huge_pages.wanted_environment", lambda given: given | wanted):
        assert side_specs.environment(side_specs.parse("fdg", COMMON, "", "balanced")).items() >= wanted.items()


def test_the_ratio_is_the_median_over_the_turns_and_not_of_the_medians():
    def worker(name, speeds):
        columns = {"images_per_second": speeds, "core_percent": [[100.0, each] for each in (90.0, 80.0, 85.0)]}
        return SimpleNamespace(
            about={}, batches=2, cores=[0], operations={}, side=SimpleNamespace(name=name),
            column=lambda what: columns.get(what, [1.0] * len(speeds)),
        )  # fmt: skip

    bp, fdg = worker("bp", [100.0, 50.0, 200.0]), worker("fdg", [180.0, 100.0, 200.0])
    row = images_per_second.row(fdg, bp, SimpleNamespace(windows=3, seconds=1.0))  # type: ignore[arg-type]
    assert row["ratio_windows"] == [1.8, 2.0, 1.0]
    assert row["ratio"] == 1.8
    assert row["images_per_second"] == 180.0
    assert row["core_percent"] == [100.0, 85.0]


ON_GPU = {"K": 2, "model": "resnet8", "batch_size": 4, "device": "gpu"}


@pins_cores
def test_on_a_gpu_a_side_has_all_cores_and_takes_what_memory_it_needs():
    side = side_specs.parse("fdg", ON_GPU, "", "1")
    assert side.cores == len(side_specs.cores_available())
    with mock.patch.dict(os.environ, clear=True):
        started = side_specs.environment(side)
    assert "JAX_PLATFORMS" not in started and started["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    with pytest.raises(BadInput, match="torch trains on cores"):
        peers.parse("torch", ON_GPU, "", "1")


@pins_cores
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="there is one")
def test_without_a_gpu_a_side_on_one_is_refused():
    with pytest.raises(BadInput, match="no accelerator here"):
        bench_worker.Trainer(side_specs.parse("fdg", ON_GPU, "", "1"))


@pytest.mark.slow
@pytest.mark.usefixtures("dense")
def test_what_each_operation_of_a_stage_takes_is_a_table():
    trainer = bench_worker.Trainer(side_specs.parse("fdg", COMMON, "", "1"))
    trainer.run(6)
    rows = [{"side": "scan", "K": 2, "operations": {}}, {"side": "fdg", "K": 2, "operations": trainer.operations(3)}]
    head, _, *lines = images_per_second.stage_times(rows)[0].splitlines()
    assert head.startswith("| side | k | B ms | F ms | U ms |")
    assert [line.split(" | ")[:2] for line in lines] == [["| `fdg`", "1"], ["| `fdg`", "2"]]
    assert all(float(ms) > 0 for line in lines for ms in line.split(" | ")[2:5])
    assert images_per_second.stage_times(rows[:1]) == []


def trained(stage=None, turned=False):
    """Parameters after 6 batches of K = 3."""
    data = small.batches(6)
    with mock.patch.object(api, "Stage", stage or api.Stage):
        made = small.pipeline(3, data[0])
    if turned:
        made.engine.loop.schedule = bench_worker.downwards(made.engine.loop.schedule)  # type: ignore[union-attr]
    for batch in data:
        made.step(batch)
    made.drain()
    return small.leaves(made.params), made.staleness, made.updates


def test_dispatching_a_ticks_stages_from_K_down_to_1_changes_no_bit():
    (up, *counts), (down, *same) = trained(), trained(turned=True)
    assert counts == same
    assert all(np.array_equal(a, b) for a, b in zip(up, down, strict=True))


def test_an_update_fused_with_the_backward_pass_trains_the_same():
    (apart, *counts), (fused, *same) = trained(), trained(bench_worker.FusedStage)
    assert counts == same
    for a, b in zip(apart, fused, strict=True):
        # XLA contracts other products into fused multiply-adds there: a few last bits of float32, six times.
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_bp_cannot_be_dispatched_downwards():
    with pytest.raises(BadInput, match="impossible"):
        bench_worker.downwards(schedule.bp(2))


class Flat(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        return nn.Dense(12)(x.reshape(len(x), -1))


@pytest.fixture
def dense(monkeypatch):
    """Every model is a small dense one, which compiles at once."""
    monkeypatch.setattr("fdg_jax.models.blocks", lambda name, classes: [Flat(), small.Part(classes)])


@pytest.mark.parametrize(
    ("option", "order"),
    [("", "backward-first"), (":order=backward-first", "backward-first"), (":order=forward-first", "forward-first")],
)
@pytest.mark.usefixtures("dense")
def test_the_order_asked_for_is_the_order_of_the_sides_schedule(option, order):
    trainer = bench_worker.Trainer(side_specs.parse(f"fdg{option}", COMMON, "", "1"))
    runner, expected = trainer.job.pipeline.engine, fdg.fdg(2, order)
    assert isinstance(runner, host_engine.HostEngine)
    assert [runner.loop.schedule.tick(t) for t in range(1, 9)] == [expected.tick(t) for t in range(1, 9)]
    assert runner.loop.schedule.staleness == expected.staleness


def check_host_cost(model, capsys, file):
    arguments = ["--model", model, "--K", "2", "--ticks", "3", "--split", "1", "--packing", "on", "off"]
    assert host_cost.main([*arguments, "--json", str(file)]) == 0
    rows = rows_of(file.read_text())
    assert [row["row"] for row in rows] == ["stage", "stage", "tick"] * 2 + ["fit"] * 3
    stage, tick, plain = rows[1], rows[2], rows[4]
    assert (stage["k"], plain["k"], plain["packing"]) == (2, 2, "off")
    assert all(stage[f"{what}_microseconds"] > 0 for what in ("F", "B", "U", "three_programs", "one_program"))
    assert all(stage[f"{what}_leaves"] < plain[f"{what}_leaves"] for what in "FBU")
    parts = sum(row[f"{what}_microseconds"] for row in rows[:2] for what in "FBU")
    whole = parts + sum(n * tick[f"{what}_microseconds"] for what, n in (("send", 2), ("entry", 1), ("loop", 1)))
    assert math.isclose(tick["tick_microseconds"], whole, abs_tol=1)
    # The printed parts are rounded to a tenth of a microsecond.
    assert math.isclose(tick["stage_calls_microseconds"], parts / 2, abs_tol=0.5)
    assert f"| {model} | 2 |" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("dense")
def test_host_cost_prints_a_row_a_stage_one_a_tick_and_the_fit(capsys, tmp_path):
    check_host_cost("dense", capsys, tmp_path / "rows.jsonl")


@pytest.mark.slow
def test_host_cost_measures_a_residual_network(capsys, tmp_path):
    check_host_cost("resnet8", capsys, tmp_path / "rows.jsonl")


def test_the_clock_takes_the_update_and_the_waiting_out_of_the_backward_pass():
    from benchmarks.harness.timed import Calls

    now = [0.0]

    def spend(seconds):
        now[0] += seconds

    clock = Calls(wait=lambda: spend(1000.0))

    def backward():
        spend(3.0)
        clock("U", 1, lambda: spend(5.0))
        spend(4.0)

    with mock.patch("time.perf_counter", lambda: now[0]):  # noqa: PT008 - the value changes
        clock("B", 1, backward)
        clock("F", 1, lambda: spend(2.0))
    assert dict(clock.microseconds) == {("U", 1): [5e6], ("B", 1): [7e6], ("F", 1): [2e6]}


def test_the_arrays_counted_are_those_the_programs_take_and_give():
    from benchmarks.harness.timed import count_leaves

    data = small.batches(1)[0]
    stage = small.pipeline(1, data).engine.stages[1]  # type: ignore[union-attr]
    x, labels = jax.device_put(data)
    params, extra, optimizer, *_ = map(len, map(jax.tree.leaves, stage.state))
    assert (params, extra) == (1, 1)  # packed: Dense: kernel, bias; BatchNorm: scale, bias; mean, var
    loss = stage.forward(1, x, labels)
    counted, memo = count_leaves(stage, 1), stage.memos[0]
    kept = len(jax.tree.leaves((memo.closure, loss, stage.state.extra)))
    assert params + extra + 2 + kept == counted.F
    grads, dx = jax.eval_shape(stage._backward, memo.closure, stage.state.params, memo.x, None)
    taken = jax.tree.leaves((memo.closure, stage.state.params, memo.x))
    assert len(taken) + len(jax.tree.leaves((grads, dx))) == counted.B
    assert 3 * params + 2 * optimizer == counted.U


@pytest.mark.slow
@pins_cores
@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: [0])(0)) < 2, reason="K = 2 wants two cores")
def test_images_per_second_compares_every_kind_of_side(tmp_path):
    sides = ["bp", "fdg", "delay-line", "bp-two-cores", "bp-on-each-core"]
    everything = "split=1:dispatch=down:update=fused:packing=off:layers=plain:hugepages=off"
    everything += ":xla=--xla_cpu_multi_thread_eigen=false"
    sides.append(f"fdg:{everything}")
    short = ("--windows", "2", "--seconds", "0.1")
    file = tmp_path / "rows.jsonl"
    done = run("images_per_second", *TINY, *short, "--json", str(file), "--also-over", "fdg", "--sides", *sides)
    assert done.returncode == 0, done.stderr
    assert "| over bp | over fdg |" in done.stdout
    rows = rows_of(file.read_text())
    assert all(len(row["core_percent"]) == row["cores"] for row in rows)
    assert [row["side"] for row in rows] == sides
    assert rows[0]["ratio"] == 1.0
    assert all(row["images_per_second"] > 0 and len(row["ratio_windows"]) == 2 for row in rows)
    assert [row["cores"] for row in rows] == [1, 2, 1, 2, 2, 2]
    assert [row["staleness"] for row in rows] == [[0], [1, 0], [1, 0], [0], [0], [1, 0]]
    assert rows[5]["cuts"] == [1] and rows[5]["packing"] == "off" and rows[5]["layers"] == "plain"
    assert "multi_thread_eigen=false" in rows[5]["xla_flags"]


@pytest.mark.parametrize(
    ("flags", "rows", "last", "whole"),
    [
        (
            [],
            [
                *("plain", "cured batch_norm", "cured forward_conv", "cured input_gradient", "cured weight_gradient"),
                *("cured relu", "all cured"),
            ],
            "gain_percent",
            None,
        ),
        (["--blocks"], ["block000", "block001"], "share_percent", 100),
    ],
)
@pytest.mark.usefixtures("dense")
def test_block_cost_prints_a_table_and_adds_its_rows_to_the_file(flags, rows, last, whole, capsys, tmp_path):
    file = tmp_path / "rows.jsonl"
    assert block_cost.main([*flags, *TINY, "--rounds", "2", "--json", str(file)]) == 0
    found = rows_of(file.read_text())
    assert [row["row"] for row in found] == rows
    assert all(row["images_per_second"] > 0 and math.isfinite(row["forward_milliseconds"]) for row in found)
    if whole:
        # Two shares, each rounded to a tenth.
        assert math.isclose(sum(row[last] for row in found), whole, abs_tol=0.11)
    else:
        assert found[0][last] == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in table[2 : 2 + len(rows)]] == rows
    assert len({line.count("|") for line in table[: 2 + len(rows)]}) == 1


def test_block_cost_refuses_an_unknown_model_with_one_message_and_exit_code_2(capsys):
    assert block_cost.main(["--model", "resnet21"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: model 'resnet21' is not known.")
    assert err.count("\n") == 1


@pytest.mark.parametrize("flag", ["--rounds", "--batch-size"])
def test_block_cost_refuses_to_measure_nothing(flag, capsys):
    assert block_cost.main([flag, "0"]) == 2
    assert f"error: {flag}: '0' is not a whole number from 1 on" in capsys.readouterr().err


def test_block_cost_finds_out_before_it_compiles_that_its_result_cannot_be_written(capsys, tmp_path):
    with mock.patch.object(block_cost, "timed", side_effect=AssertionError("it began to measure")):
        assert block_cost.main([*TINY, "--json", str(tmp_path / "none" / "rows.jsonl")]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.usefixtures("dense")
def test_split_judges_every_way_to_cut_by_the_same_measured_times(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("fdg_jax.training.block_times.measure", lambda blocks, *_: [3.0, 1.0])
    monkeypatch.setattr("fdg_jax.models.paper_split", lambda model, K: (1,))
    monkeypatch.setattr(benchmark_split.compile_cache, "enable", lambda: None)
    file = tmp_path / "rows.jsonl"
    assert benchmark_split.main(["--model", "dense", "--K", "2", "--json", str(file)]) == 0
    rows = rows_of(file.read_text())
    assert [row["split"] for row in rows] == ["even", "paper", "balanced", "measured"]
    for row in rows:
        assert (row["share_percent"], row["slowest_percent"], row["slowest_k"]) == ([75.0, 25.0], 75.0, 1)
        assert sum(row["flops_percent"]) == pytest.approx(100, abs=0.02)  # two shares, rounded to a hundredth
    assert "| dense | 2 | paper | 1 of 2 | 75.0% (k=1) | 75.0%, 25.0% |" in capsys.readouterr().out


@pytest.mark.parametrize("benchmark", [benchmark_split, memory])
def test_split_and_memory_refuse_more_stages_than_there_can_be(benchmark, capsys, monkeypatch):
    monkeypatch.setattr(benchmark.compile_cache, "enable", lambda: None)
    jax.devices()  # there are as many as there are, so that no 99 can be asked for
    assert benchmark.main(["--model", "resnet8", "--K", "99"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("error: --K 99")


@pytest.mark.slow
def test_split_measures_a_residual_network(capsys):
    assert benchmark_split.main([*TINY, "--K", "2", "--rounds", "1", "--json"]) == 0
    rows = rows_of(capsys.readouterr().out)
    assert [row["split"] for row in rows] == ["even", "balanced", "measured"]
    measured = rows[2]["slowest_percent"]
    assert all(50 <= measured <= row["slowest_percent"] <= 100 for row in rows)
    assert len(rows[0]["block_seconds"]) == 5


@pytest.mark.slow
def test_memory_prints_a_row_a_stage(capsys, tmp_path):
    file = tmp_path / "rows.jsonl"
    methods = ["--method", "fdg", "fr"]
    assert memory.main([*TINY, *methods, "--K", "2", "--weights", "stashed", "--json", str(file)]) == 0
    rows = rows_of(file.read_text())
    assert [(row["method"], row["k"], row["memos"]) for row in rows] == [
        ("fdg", 1, 2), ("fdg", 2, 1), ("fr", 1, 2), ("fr", 2, 1),
    ]  # fmt: skip
    for row in rows:
        assert row["held_memos"] == row["memos"]
    for row in rows[:2]:
        assert sum(row["predicted"].values()) == row["predicted_bytes"]
        assert row["temporary_bytes"] > 0
    assert "| resnet8 | fdg | 2 | stashed | 1 |" in capsys.readouterr().out


@pytest.mark.slow
def test_block_cost_gives_a_json_object_a_row():
    done = run("block_cost", *TINY, "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert all(row["images_per_second"] > 0 for row in rows_of(done.stdout))


@pins_cores
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--workers 99", "--workers 99: there are"),
        ("--model resnet21 --workers 0", "Did you mean resnet20"),
        ("--images 4", "--images 4: a batch has 8"),
        ("--seconds 0", "use a positive number"),
    ],
)
def test_the_loader_benchmark_refuses_what_would_be_no_measurement(words, said, capsys):
    before = os.sched_getaffinity(0)
    assert loader.main(["--model", "resnet8", *words.split()]) == 2
    assert said in capsys.readouterr().err
    assert os.sched_getaffinity(0) == before


@pytest.mark.slow
def test_the_loaders_images_are_photographs_of_imagenets_size(tmp_path):
    size = loader.make_images(tmp_path, 20)
    found = loader.stream(tmp_path)
    assert (len(found.train_images), len(found.test_images), found.classes) == (20, 10, 10)
    image, _, where = found.train_images.read(0)
    assert decode_image(image, where).size == (500, 375)
    assert 20_000 < size < 150_000  # ImageNet's mean is about 110 kB


@pytest.mark.slow
@pins_cores
def test_the_loader_is_compared_with_what_training_asks_for(capsys, monkeypatch):
    monkeypatch.setattr(imagenet, "SIDE", 32)  # 224 takes a CPU long
    words = "--model resnet8 --batch-size 4 --images 20 --windows 2 --seconds 0.2 --workers 0 1 --json"
    assert loader.main(words.split()) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["side"] for row in rows] == ["resnet8", "loader, workers=0", "loader, workers=1"]
    assert rows[0]["over_demand_windows"] == [1.0, 1.0]
    for row in rows:
        assert len(row["images_per_second_windows"]) == 2
        assert row["images_per_second"] > 0
        for speed, first, over in zip(
            row["images_per_second_windows"], rows[0]["images_per_second_windows"], row["over_demand_windows"],
            strict=True,
        ):  # fmt: skip
            assert math.isclose(over, speed / first, rel_tol=0.02)  # both are rounded to two and three places


def test_the_cost_of_checkpoints_is_refused_for_a_window_without_one(capsys):
    assert checkpoint_cost.main([*TINY, "--batches", "49"]) == 2
    assert "a checkpoint every 50 batches. Use more" in capsys.readouterr().err


@pytest.mark.slow
def test_the_sides_of_the_checkpoints_cost_save_as_often_as_they_say(capsys):
    assert checkpoint_cost.main([*TINY, "--batches", "100", "--windows", "2", "--json"]) == 0
    rows = rows_of(capsys.readouterr().out)
    told = [(row["checkpoints"], row["checkpoints_per_window"], row["goal"]) for row in rows]
    flushed = [("none", 0, None), ("every epoch", 1, 0.98), ("every 50", 2, 0.9)]
    assert told == [*flushed, ("every 50, not flushed", 2, None)]
    for row in rows:
        speeds, base = row["images_per_second_windows"], rows[0]["images_per_second_windows"]
        for speed, first, ratio in zip(speeds, base, row["ratio_windows"], strict=True):
            assert math.isclose(ratio, speed / first, rel_tol=0.02)  # both are rounded


def test_the_side_that_is_not_flushed_is_not(tmp_path):
    synced, sync = [], os.fsync
    with mock.patch.object(os, "fsync", lambda handle: (synced.append(handle), sync(handle))):
        for flushed in (False, True):
            with nullcontext() if flushed else checkpoint_cost.not_flushed():
                durable.write(tmp_path / "file", b"content")
            assert bool(synced) is flushed


def test_the_pages_have_what_their_commands_printed_last():
    last = dict[str, str]()
    for file in readme.RESULTS.glob("*.jsonl"):
        last |= readme.printed(file)
    texts = [page.read_text() for page in readme.pages()]
    matches = [match for text in texts for match in readme.SHOWN.finditer(text)]
    shown = [readme.command(match["command"]) for match in matches]
    assert last.keys() & set(shown) and len(set(shown)) == len(shown) > 10
    for match in matches:  # nothing typed by hand, nothing left from another command
        assert readme.command(match["command"]) in last or match["text"].strip() == "(not measured yet)"
    assert [readme.rendered(text, last) for text in texts] == texts


def test_the_readme_links_to_every_page_of_results_and_to_none_that_is_missing():
    text = (readme.HERE / "README.md").read_text()
    assert set(re.findall(r"\]\(results/(\w+\.md)[)#]", text)) == {page.name for page in readme.pages()}
    assert len(text.splitlines()) < 60
    for page in [*readme.pages(), readme.HERE / "README.md"]:
        for target, anchor in re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)
            headings = re.findall(r"^#+ (.*)$", (page.parent / target).read_text(), re.M) if anchor else []
            assert anchor in ("", *(heading.lower().replace(" ", "-") for heading in headings)), (page.name, anchor)


def test_the_readmes_speeds_are_those_of_the_page():
    def times_bp(table, side):
        (found,) = re.findall(rf"^\| `{side}` \|.*\) \| ([0-9.]+) \(", table, re.M)
        return float(found)

    page = readme.RESULTS / "images_per_second.md"
    tables = [match["text"] for match in readme.SHOWN.finditer(page.read_text())][:2]  # ResNet-20, WRN-16-4
    told = (ROOT / "README.md").read_text()
    told = told[told.index("Speed with CPU cores for devices") :]
    told = told[: told.index("\n\n")].replace("\n", " ")
    number = "([0-9.]+[0-9])"
    for side, words in {
        "fdg:split=balanced": "makes {} \\(ResNet-20, batch 128\\) and {} \\(WRN-16-4, batch 64\\) times",
        "bp-on-each-core": "one per core, make {} and {} times together",
        "bp-two-cores": "BP with both cores {} and {}\\.",
    }.items():
        (pair,) = re.findall(words.format(number, number), told)
        for number_told, table in zip(map(float, pair), tables, strict=True):
            assert abs(number_told - times_bp(table, side)) < 0.0055  # rounded twice


def test_the_summary_of_the_convolutions_page_is_computed_from_the_measured_rows():
    flag = "xla=--xla_cpu_experimental_ynn_fusion_type=reduce,individual_convolution,individual_dot"
    rows = [row for file in readme.RESULTS.glob("*.jsonl") for row in rows_of(file.read_text())]
    text = (readme.RESULTS / "convolutions.md").read_text()
    commits, models = re.findall(r"commit (\w+)\.", text), re.findall(r"^(\w+), batch", text, re.M)
    pairs = [(f"bp:{flag}", "bp"), (f"fdg:{flag}", "fdg"), ("torch", "bp"), ("torch-ddp", "fdg")]
    for (side, base), line in zip(pairs, re.findall(r"^\| [^|]* over [^|]* \| (\d.*) \|$", text, re.M), strict=True):
        for commit, model, cell in zip(commits, models, line.split(" | "), strict=True):
            run = [row for row in rows if row.get("model") == model and row["commit"] == commit]
            speeds = {row["side"]: row["images_per_second_windows"] for row in run}
            ratios = [a / b for a, b in zip(speeds[side], speeds[base], strict=True)]
            assert report.spread(ratios, 3) == cell, (side, commit, model)


def test_commands_are_run_and_what_they_print_is_written_beneath_them(tmp_path, monkeypatch, capsys):
    page = "# Page\n\n```\necho it \\\n    works\n```\n\n<!-- it printed -->\n\nold\n\n<!-- end -->\n\n"
    page += "- a note\n\n```\nfalse\n```\n\n<!-- it printed -->\n\nbefore\n\n<!-- end -->\n"
    monkeypatch.setattr(readme, "RESULTS", tmp_path)
    file, other = tmp_path / "page.md", tmp_path / "without_commands.md"
    file.write_text(page)
    other.write_text("# Other\n")
    assert readme.main(["nothing"]) == 2
    assert "\n  echo it works\n  false\n" in capsys.readouterr().err
    assert readme.main(["--render"]) == 0
    assert file.read_text() == page
    assert readme.main([]) == 1
    assert "1 of 2 tables" in (told := capsys.readouterr()).out and "stays: false" in told.err
    words = f"it works --json {readme.results()}"
    assert file.read_text() == page.replace("old", words)
    file.write_text(page)
    assert readme.main(["works", "--render"]) == 0
    assert file.read_text() == page.replace("old", words)
    assert other.read_text() == "# Other\n"


@pytest.mark.usefixtures("dense")
def test_ticks_without_end_leave_nothing_behind():
    trainer = bench_worker.Trainer(side_specs.parse("fdg", COMMON, "", "1"))
    told = [trainer.memory(100) for _ in range(3)]
    assert len({(each["arrays"], each["array_bytes"]) for each in told}) == 1
    if told[0]["resident_bytes"] is not None:  # Linux
        assert told[-1]["resident_bytes"] - told[0]["resident_bytes"] < 2**23  # garbage of other tests comes and goes


@pins_cores
def test_endurance_wants_parts_to_compare(capsys):
    from benchmarks import endurance

    assert endurance.main(["--ticks", "10", "--every", "10"]) == 2
    assert "less than two parts" in capsys.readouterr().err
    assert endurance.main(["--ticks", "100", "--every", "15"]) == 2
    assert "multiple of 10" in capsys.readouterr().err


@pytest.mark.slow
@pins_cores
def test_a_process_that_has_trained_long_is_compared_with_new_ones(tmp_path):
    from benchmarks import endurance

    file = tmp_path / "rows.jsonl"
    size = ["--model", "resnet8", "--K", "1", "--batch-size", "1", "--ticks", "20", "--every", "10"]
    assert endurance.main([*size, "--json", str(file)]) == 0
    rows = rows_of(file.read_text())
    assert [row["ticks"] for row in rows] == [10, 20]
    assert len({(row["arrays"], row["array_bytes"]) for row in rows}) == 1
    for row in rows:
        assert math.isclose(row["over_new"], row["images_per_second"] / row["new_images_per_second"], rel_tol=0.01)


def test_the_causes_of_the_missing_speedup_add_up():
    from benchmarks import speedup_loss

    device = {"F/1": 20.0, "B/1": 40.0, "F/2": 15.0, "B/2": 34.0}
    one_core = {"alone": {"host": {"F/1": 1.0, "F/2": 0.0}, "device": device}}
    crowded = {"F/1": 21.0, "B/1": 44.0, "send x/2": 1.0, "F/2": 16.0, "B/2": 36.0}
    pipeline = {"alone": {"host": {"F/1": 1.0, "B/2": 1.0}, "device": device}, "crowded": crowded}
    found = speedup_loss.terms(bp=100.0, one_core=one_core, pipeline=pipeline, took=68.0, K=2)
    assert found == {"cut": 5.0, "cores together": 5.0, "uneven stages": 6.0, "the rest": 2.0}


@pins_cores
def test_the_missing_speedup_is_refused_for_one_stage_and_for_methods_without_a_pipeline(capsys):
    from benchmarks import speedup_loss

    assert speedup_loss.main(["--K", "1"]) == 2
    assert "--K 2 or more" in capsys.readouterr().err
    assert speedup_loss.main(["--seconds", "0"]) == 2
    assert "a positive number" in capsys.readouterr().err
    for method in ("bp", "gpipe", "data_parallel"):
        assert speedup_loss.main(["--method", method]) == 2
        assert "no pipeline of whole batches" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two workers want two cores")
@pins_cores
def test_the_missing_speedup_is_measured_turn_by_turn(capsys, tmp_path):
    from benchmarks import speedup_loss

    file = tmp_path / "rows.jsonl"
    assert speedup_loss.main([*TINY, "--windows", "2", "--seconds", "0.1", "--json", str(file)]) == 0
    (row,) = rows_of(file.read_text())
    assert (row["method"], row["K"], row["cores"]) == ("fdg", 2, 2)
    for turn in row["turns"]:
        assert turn["uneven stages"] >= 0
        assert min(turn["bp"], turn["pipeline"], turn["lone"]) > 0
    table = capsys.readouterr().out
    assert all(name in table for name in (*speedup_loss.CAUSES, "BP/2", "independent BP processes"))

"""Every benchmark in small: what it measures hangs together, and its table shows it."""

import math
import os
from importlib import import_module
from types import SimpleNamespace

import flax.linen as nn
import pytest
import small
from benchmark_runs import COMMON, TINY, pins_cores, rows_of, run

from benchmarks import split as benchmark_split
from benchmarks.harness import bench_worker, side_specs
from fdg_jax.data.streams import imagenet
from fdg_jax.errors import BadInput

two_cores = pytest.mark.skipif(
    len(getattr(os, "sched_getaffinity", lambda _: [0])(0)) < 2, reason="two workers want two cores"
)
SHORT = ("--windows", "2", "--seconds", "0.1")


class Flat(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        return nn.Dense(12)(x.reshape(len(x), -1))


@pytest.fixture
def dense(monkeypatch):
    """Every model is a small dense one, which compiles at once."""
    monkeypatch.setattr("fdg_jax.models.blocks", lambda name, classes: [Flat(), small.Part(classes)])


@pytest.fixture
def measured(capsys, tmp_path):
    """Runs a benchmark. Returns its rows and the table that it printed."""

    def call(benchmark, *words):
        file = tmp_path / "rows.jsonl"
        assert import_module(f"benchmarks.{benchmark}").main([*words, "--json", str(file)]) == 0
        return rows_of(file.read_text()), capsys.readouterr().out

    return call


@pytest.mark.slow
@pytest.mark.usefixtures("dense")
def test_host_cost_prints_a_row_a_stage_one_a_tick_and_the_fit(measured):
    words = ["--model", "dense", "--K", "2", "--ticks", "3", "--split", "1", "--packing", "on", "off"]
    rows, table = measured("host_cost", *words)
    assert [row["row"] for row in rows] == ["stage", "stage", "tick"] * 2 + ["fit"] * 3
    stage, tick, plain = rows[1], rows[2], rows[4]
    assert (stage["k"], plain["k"], plain["packing"]) == (2, 2, "off")
    assert all(stage[f"{what}_microseconds"] > 0 for what in ("F", "B", "U", "three_programs", "one_program"))
    assert all(stage[f"{what}_leaves"] < plain[f"{what}_leaves"] for what in "FBU")
    parts = sum(row[f"{what}_microseconds"] for row in rows[:2] for what in "FBU")
    whole = parts + sum(n * tick[f"{what}_microseconds"] for what, n in (("send", 2), ("entry", 1), ("loop", 1)))
    assert math.isclose(tick["tick_microseconds"], whole, abs_tol=1)  # the parts are rounded to a tenth
    assert math.isclose(tick["stage_calls_microseconds"], parts / 2, abs_tol=0.5) and "| dense | 2 |" in table


FAST_PATHS = ("batch_norm", "forward_conv", "input_gradient", "weight_gradient", "relu")


@pytest.mark.parametrize(
    ("flags", "names", "last", "whole"),
    [
        pytest.param(
            [], ["plain", *(f"cured {name}" for name in FAST_PATHS), "all cured"], "gain_percent", None,
            marks=pytest.mark.slow,
        ),
        (["--blocks"], ["block000", "block001"], "share_percent", 100),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("dense")
def test_block_cost_has_a_row_for_each_choice_of_layers_or_block(flags, names, last, whole, measured):
    rows, table = measured("block_cost", *flags, *TINY, "--rounds", "2")
    assert [row["row"] for row in rows] == names
    assert all(row["images_per_second"] > 0 and math.isfinite(row["forward_milliseconds"]) for row in rows)
    assert math.isclose(sum(row[last] for row in rows), whole, abs_tol=0.11) if whole else rows[0][last] == 0
    lines = table.splitlines()[: 2 + len(names)]
    assert [line.split("|")[1].strip() for line in lines[2:]] == names and len({line.count("|") for line in lines}) == 1


@pytest.mark.usefixtures("dense")
def test_split_judges_every_way_to_cut_by_the_same_measured_times(measured, monkeypatch):
    monkeypatch.setattr("fdg_jax.block_times.measure", lambda blocks, *_: [3.0, 1.0])
    monkeypatch.setattr("fdg_jax.models.paper_split", lambda model, K: (1,))
    monkeypatch.setattr(benchmark_split.compile_cache, "enable", lambda: None)
    rows, table = measured("split", "--model", "dense", "--K", "2")
    assert [row["split"] for row in rows] == ["even", "paper", "balanced", "measured"]
    for row in rows:
        assert (row["share_percent"], row["slowest_percent"], row["slowest_k"]) == ([75.0, 25.0], 75.0, 1)
        assert sum(row["flops_percent"]) == pytest.approx(100, abs=0.02)  # two shares, rounded to a hundredth
    assert "| dense | 2 | paper | 1 of 2 | 75.0% (k=1) | 75.0%, 25.0% |" in table


@pytest.mark.slow
@pins_cores
@two_cores
def test_images_per_second_compares_every_kind_of_side_and_leaves_out_one_that_fails(tmp_path):
    sides = ["bp", "fdg", "delay-line", "bp-two-cores", "bp-on-each-core", "delay-line:copies=2"]
    everything = "split=1:packing=off:layers=plain:hugepages=off"
    sides.append(f"fdg:{everything}:xla=--xla_cpu_multi_thread_eigen=false")
    file, failing = tmp_path / "rows.jsonl", "bp:xla=--xla_no_such_flag=1"
    words = (*TINY, *SHORT, "--json", str(file), "--also-over", "fdg", "--skip-failed", "--sides", *sides, failing)
    done = run("images_per_second", *words)
    assert done.returncode == 0, done.stderr
    assert "bytes more" not in done.stdout and "| over bp | over fdg |" in done.stdout
    assert f"Side {failing} is left out: side {failing} ended with exit code" in done.stdout
    rows = rows_of(file.read_text())
    assert [row["side"] for row in rows] == sides and rows[0]["ratio"] == 1.0
    assert all(row["images_per_second"] > 0 and len(row["ratio_windows"]) == 2 for row in rows)
    assert [row["cores"] for row in rows] == [1, 2, 1, 2, 2, 2, 2]
    assert all(len(row["core_percent"]) == row["cores"] for row in rows)
    assert [row["staleness"] for row in rows] == [[0], [1, 0], [1, 0], [0], [0], [1, 0], [1, 0]]
    last = rows[-1]
    assert (last["cuts"], last["packing"], last["layers"]) == ([1], "off", "plain")
    assert "multi_thread_eigen=false" in last["xla_flags"]


def worker(name, speeds):
    columns = {"images_per_second": speeds, "core_percent": [[100.0, each] for each in (90.0, 80.0, 85.0)]}
    return SimpleNamespace(
        about={}, batches=2, cores=[0], held={}, side=SimpleNamespace(name=name),
        column=lambda what: columns.get(what, [1.0] * len(speeds)),
    )  # fmt: skip


def test_the_ratio_is_the_median_over_the_turns_and_not_of_the_medians():
    from benchmarks import images_per_second

    bp, fdg = worker("bp", [100.0, 50.0, 200.0]), worker("fdg", [180.0, 100.0, 200.0])
    row = images_per_second.row(fdg, bp, SimpleNamespace(windows=3, seconds=1.0))  # type: ignore[arg-type]
    assert (row["ratio_windows"], row["ratio"], row["images_per_second"]) == ([1.8, 2.0, 1.0], 1.8, 180.0)
    assert row["core_percent"] == [100.0, 85.0]


LOADERS = ["resnet8", "loader, workers=0", "loader, workers=1"]
RUNS = {  # benchmark: (its words, a column of its rows, what that column has)
    "loader": ("--windows 2 --seconds 0.1 --images 20 --workers 0 1", "side", LOADERS),
    "checkpoint_cost": ("--batches 100 --windows 2", "checkpoints_per_window", [0, 1, 2, 2]),
    "endurance": ("--K 2 --processes 2 --ticks 20 --every 10", "ticks", [10, 20]),
    "memory": ("--method fdg fr --K 2 --weights stashed", "memos", [2, 1, 2, 1]),
}


@pytest.mark.slow
@pins_cores
@two_cores
@pytest.mark.parametrize("benchmark", RUNS)
def test_a_benchmark_in_small_prints_a_row_for_all_that_it_compares(benchmark, measured, monkeypatch):
    monkeypatch.setattr(imagenet, "SIDE", 32)  # 224 takes a CPU long
    words, column, expected = RUNS[benchmark]
    rows, table = measured(benchmark, *TINY, *words.split())
    assert [row.get(column) for row in rows] == expected and "|" in table


# The sides that a benchmark compares


def parse(text, common=COMMON):
    return side_specs.parse(text, common, "--a", "balanced")


def test_a_side_is_a_preset_or_a_method_and_options_go_over_both():
    bp, plain, two = parse("bp"), parse("fdg"), parse("bp-two-cores")
    assert (bp.method, bp.K, bp.cores, bp.split) == ("bp", 1, 1, None) and (two.K, two.cores) == (1, 2)
    assert (plain.method, plain.K, plain.cores, plain.split, plain.xla) == ("fdg", 2, 2, "balanced", "--a")
    line, turned = parse("delay-line:K=4"), parse("fdg:K=3:split=3,7:xla=--b=false")
    assert (line.engine, line.K, line.cores) == ("delay-line", 4, 1)
    assert (turned.K, turned.cores, turned.split, turned.xla) == (3, 3, "3,7", "--b=false")
    assert parse("fdg:accumulate=2:order=forward-first").options == {"accumulate": 2, "order": "forward-first"}
    assert parse("dni:conditional=off").options == {"conditional": False}
    corrected = parse("fdg:beta=0.5:correct=anticipate,rate:prediction=linear:anneal_updates=9:optimizer=nadam")
    assert corrected.options == {"beta": 0.5}
    asked = {"correct": "anticipate,rate", "prediction": "linear", "anneal_updates": 9, "optimizer": "nadam"}
    assert corrected.training == asked
    assert parse("fr:correct=shrink:beta=0.5").training == {"correct": "shrink", "beta": 0.5}


def test_a_side_of_several_processes_has_a_core_for_each_of_them():
    each = parse("fdg:processes=each:K=3")
    assert (each.K, each.cores, each.worker) == (3, 3, side_specs.JOINED)
    assert parse("fdg:processes=one").worker == parse("fdg").worker == side_specs.Side.worker
    copies = parse("delay-line:copies=3")
    assert (copies.cores, copies.copies, copies.worker) == (3, 3, side_specs.EACH_CORE)


@pytest.mark.parametrize(
    ("side", "word"),
    [
        ("fdg:speed=9", "split"),
        ("bp:processes=each", "--K 2 or more"),
        ("fdg:copies=2", "wants several"),
    ],
)
def test_a_side_that_does_not_exist_is_refused_with_the_way_out(side, word):
    with pytest.raises(BadInput, match=word):
        parse(side)


@pytest.mark.slow
@pytest.mark.usefixtures("dense")
def test_ticks_without_end_leave_nothing_behind():
    trainer = bench_worker.Trainer(side_specs.parse("fdg", COMMON, "", "1"))
    told = [trainer.memory(100) for _ in range(3)]
    assert len({(each["arrays"], each["array_bytes"]) for each in told}) == 1
    if told[0]["resident_bytes"] is not None:  # Linux
        assert told[-1]["resident_bytes"] - told[0]["resident_bytes"] < 2**23  # garbage of other tests comes and goes

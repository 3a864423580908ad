"""Every benchmark in small: what it measures hangs together, and its table shows it."""

import os
from importlib import import_module
from types import SimpleNamespace

import flax.linen as nn
import pytest
import small
from benchmark_runs import COMMON, TINY, pins_cores, rows_of, run

from benchmarks.harness import side_specs
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


@pytest.mark.parametrize(("side", "word"), [
    ("fdg:speed=9", "split"),
    ("bp:processes=each", "--K 2 or more"),
    ("fdg:copies=2", "wants several"),
])  # fmt: skip
def test_a_side_that_does_not_exist_is_refused_with_the_way_out(side, word):
    with pytest.raises(BadInput, match=word):
        parse(side)

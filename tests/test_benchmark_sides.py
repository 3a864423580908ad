"""The sides that a benchmark compares: what they are made of, what is refused, and that both train the same."""

import os
from functools import cache
from types import SimpleNamespace
from unittest import mock

import jax
import numpy as np
import pytest
import small
from benchmark_runs import COMMON, TINY, pins_cores, rows_of, run

from benchmarks import images_per_second
from benchmarks.harness import bench_worker, side_specs
from benchmarks.peers import sides as peers
from fdg_jax import schedule
from fdg_jax.checks import configuration
from fdg_jax.data.dataset import Dataset
from fdg_jax.engine.losses import Metrics
from fdg_jax.errors import BadInput


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
    corrected = parse("fdg:beta=0.5:correct=anticipate,rate:prediction=linear:anneal_updates=9:optimizer=nadam")
    assert corrected.options == {"beta": 0.5}
    asked = {"correct": "anticipate,rate", "prediction": "linear", "anneal_updates": 9, "optimizer": "nadam"}
    assert corrected.training == asked
    assert parse("fr:correct=shrink:beta=0.5").training == {"correct": "shrink", "beta": 0.5}


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
        ("fdg:correct=anticipat", "Did you mean anticipate"),
        ("fdg:prediction=linear", "Add correct=anticipate"),
        ("fdg:correct=rate:prediction=linear", "Add correct=anticipate"),
        ("fdg:correct=anticipate:prediction=far", "linear"),
        ("fdg:optimizer=adam", "adamw"),
        ("fdg:momentum=0.5", "method fdg has no such option"),
    ],
)
def test_a_side_that_does_not_exist_is_refused_with_the_way_out(side, word):
    with pytest.raises(BadInput, match=word):
        side_specs.parse(side, COMMON, "", "balanced")


@pins_cores
@pytest.mark.parametrize(
    "arguments",
    [
        ["--K", "9999"],
        ["--sides", "bp", "bp"],
        ["--seconds", "0"],
        ["--also-over", "fr"],
        ["--memory", "--sides", "bp", "bp-on-each-core"],
    ],
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
            about={}, batches=2, cores=[0], operations={}, held={}, side=SimpleNamespace(name=name),
            column=lambda what: columns.get(what, [1.0] * len(speeds)),
        )  # fmt: skip

    bp, fdg = worker("bp", [100.0, 50.0, 200.0]), worker("fdg", [180.0, 100.0, 200.0])
    row = images_per_second.row(fdg, bp, SimpleNamespace(windows=3, seconds=1.0))  # type: ignore[arg-type]
    assert row["ratio_windows"] == [1.8, 2.0, 1.0]
    assert row["ratio"] == 1.8
    assert row["images_per_second"] == 180.0
    assert row["core_percent"] == [100.0, 85.0]


def test_bytes_are_compared_with_the_first_sides_and_blank_where_they_were_not_predicted():
    first, more, none = (
        {"held": {"predicted_bytes": 1_000, "measured_bytes": 1_004}},
        {"held": {"predicted_bytes": 31_000, "measured_bytes": 31_008}},
        {"held": {}},
    )
    assert images_per_second.more_held(more, first) == ["0.03", "+30,000", "+30,004"]
    assert images_per_second.more_held(first, first)[1:] == ["+0", "+0"]
    assert images_per_second.more_held(none, first) == ["–", "–", "–"]


ON_GPU = {"K": 2, "model": "resnet8", "batch_size": 4, "device": "gpu"}


@pins_cores
def test_on_a_gpu_a_side_has_all_cores_and_takes_what_memory_it_needs():
    side = side_specs.parse("fdg", ON_GPU, "", "1")
    assert side.cores == len(side_specs.cores_available())
    with mock.patch.dict(os.environ, clear=True):
        started = side_specs.environment(side)
    assert "JAX_PLATFORMS" not in started and started["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    with pytest.raises(BadInput, match="torch-ddp trains on cores"):
        peers.parse("torch-ddp", ON_GPU, "", "1")
    assert peers.parse("torch:graph=on", ON_GPU, "", "1").device == "gpu"
    assert peers.parse("torch", COMMON, "", "1").device == "cpu"
    with pytest.raises(BadInput, match="needs a GPU"):
        peers.parse("torch:graph=on", COMMON, "", "1")


@pins_cores
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="there is one")
def test_without_a_gpu_a_side_on_one_is_refused():
    with pytest.raises(BadInput, match="no accelerator here"):
        bench_worker.Trainer(side_specs.parse("fdg", ON_GPU, "", "1"))


@cache
def trained(stage=None, turned=False):
    """Parameters after 6 batches of K = 3."""
    data = small.batches(6)
    with mock.patch.object(configuration, "Stage", stage or configuration.Stage):
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
    assert "bytes more" not in done.stdout
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


def test_windows_of_a_delay_line_on_an_accelerator_are_whole_dispatches():
    shapes = []
    trainer = object.__new__(bench_worker.Trainer)
    pipeline = SimpleNamespace(
        train=lambda images, labels, rows: shapes.append(rows.shape),
        wait=lambda: None,
        losses=lambda wait: [Metrics(1, 2.0)],
    )
    data = Dataset("x", *(np.zeros((8, 2, 2, 3), np.uint8), np.zeros(8, np.int32)) * 2, 2, (), (), 0, False)
    options = SimpleNamespace(window=5, batch_size=3)
    trainer.job, trainer.random = (
        SimpleNamespace(dataset=data, pipeline=pipeline, options=options),
        np.random.default_rng(0),
    )
    assert trainer.run(11)["batches"] == 15 and shapes == [(5, 3)] * 3
    options.window = 1
    assert trainer.run(11)["batches"] == 11 and shapes[3:] == [(11, 3)]


@pytest.mark.slow
@pins_cores
@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: [0])(0)) < 2, reason="K = 2 wants two cores")
@pytest.mark.parametrize(("base", "K"), [("delay-line", "3"), ("fdg", "2")])
def test_corrected_sides_train_with_what_they_name_and_hold_the_bytes_that_were_predicted(base, K, tmp_path):
    asked = ["correct=anticipate:prediction=linear", "correct=gap_aware", "optimizer=rotation"]
    asked += ["correct=t2:weights=current"] if base == "fdg" else []
    sides, file = [base, *(f"{base}:{each}" for each in asked)], tmp_path / "rows.jsonl"
    short = ("--windows", "1", "--seconds", "0.1", "--K", K, "--memory", "--json", str(file))
    done = run("images_per_second", *TINY, *short, "--sides", *sides)
    assert done.returncode == 0, done.stderr
    first, *others = rows = rows_of(file.read_text())
    assert [row["training"] for row in rows[1:3]] == [
        {"correct": "anticipate", "prediction": "linear"},
        {"correct": "gap_aware"},
    ]
    for row in others:
        more = {name: row["held"][name] - first["held"][name] for name in row["held"]}
        assert more["predicted_bytes"] > 1000, row
        assert 0 <= more["measured_bytes"] - more["predicted_bytes"] <= 64, row  # scalars of an optimizer's own
    assert f"| bytes more than {base}: predicted | measured |" in done.stdout
    assert rows[3]["parameters"] == first["parameters"]

"""The sides that a benchmark compares: what they are made of, what is refused, and that variants train the same."""

from functools import cache
from unittest import mock

import numpy as np
import pytest
import small
from benchmark_runs import COMMON
from test_benchmark_runs import dense  # noqa: F401 - a fixture

from benchmarks.harness import bench_worker, side_specs
from fdg_jax import schedule
from fdg_jax.checks import configuration
from fdg_jax.errors import BadInput


def parse(text, common=COMMON):
    return side_specs.parse(text, common, "--a", "balanced")


def test_a_side_is_a_preset_or_a_method_and_options_go_over_both():
    bp, plain, two = parse("bp"), parse("fdg"), parse("bp-two-cores")
    assert (bp.method, bp.K, bp.cores, bp.split) == ("bp", 1, 1, None) and (two.K, two.cores) == (1, 2)
    assert (plain.method, plain.K, plain.cores, plain.split, plain.xla) == ("fdg", 2, 2, "balanced", "--a")
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


def test_a_side_of_several_processes_has_a_core_for_each_of_them():
    each = parse("fdg:processes=each:K=3")
    assert (each.K, each.cores, each.worker) == (3, 3, side_specs.JOINED)
    assert parse("fdg:processes=one").worker == parse("fdg").worker == side_specs.OUR_WORKER
    copies = parse("delay-line:copies=3")
    assert (copies.cores, copies.copies, copies.worker) == (3, 3, side_specs.EACH_CORE)


@pytest.mark.parametrize(
    ("side", "word"),
    [
        ("fdg:speed=9", "split"),
        ("bp:dispatch=down", "order of dispatch"),
        ("bp:processes=each", "--K 2 or more"),
        ("fdg:copies=2", "wants several"),
    ],
)
def test_a_side_that_does_not_exist_is_refused_with_the_way_out(side, word):
    with pytest.raises(BadInput, match=word):
        parse(side)


@cache
def trained(stage=None, turned=False):
    """Parameters after 6 batches of K = 3."""
    data = small.batches(6)
    with mock.patch.object(configuration, "Stage", stage or configuration.Stage):
        made = small.pipeline(3, data[0])
    if turned:
        made.engine.loop.schedule = bench_worker.downwards(made.engine.loop.schedule)  # type: ignore[union-attr]
    small.fed(made, data)
    return small.leaves(made.params), made.staleness, made.updates


def test_dispatching_a_ticks_stages_from_K_down_to_1_changes_no_bit():
    (up, *counts), (down, *same) = trained(), trained(turned=True)
    assert counts == same
    assert all(np.array_equal(a, b) for a, b in zip(up, down, strict=True))
    with pytest.raises(BadInput, match="impossible"):
        bench_worker.downwards(schedule.bp(2))


def test_an_update_fused_with_the_backward_pass_trains_the_same():
    (apart, *counts), (fused, *same) = trained(), trained(bench_worker.FusedStage)
    assert counts == same
    for a, b in zip(apart, fused, strict=True):
        # XLA contracts other products into fused multiply-adds there: a few last bits of float32, six times.
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("dense")
def test_ticks_without_end_leave_nothing_behind():
    trainer = bench_worker.Trainer(side_specs.parse("fdg", COMMON, "", "1"))
    told = [trainer.memory(100) for _ in range(3)]
    assert len({(each["arrays"], each["array_bytes"]) for each in told}) == 1
    if told[0]["resident_bytes"] is not None:  # Linux
        assert told[-1]["resident_bytes"] - told[0]["resident_bytes"] < 2**23  # garbage of other tests comes and goes

"""What the operations of a stage, its blocks and its memory cost, as the benchmarks measure it."""

import math
from unittest import mock

import flax.linen as nn
import jax
import pytest
import small
from benchmark_runs import COMMON, TINY, rows_of, run
from small import mostly_slow

from benchmarks import block_cost, host_cost, images_per_second, memory
from benchmarks import split as benchmark_split
from benchmarks.harness import bench_worker, side_specs
from fdg_jax.engine import host_engine
from fdg_jax.methods import fdg


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
    mostly_slow(
        [
            ("", "backward-first"),
            (":order=backward-first", "backward-first"),
            (":order=forward-first", "forward-first"),
        ],
        (":order=forward-first", "forward-first"),
    ),
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


def test_the_arrays_counted_are_those_the_programs_take_and_give():
    data = small.batches(1)[0]
    stage = small.pipeline(1, data).engine.stages[1]  # type: ignore[union-attr]
    x, labels = jax.device_put(data)
    params, extra, optimizer, *_ = map(len, map(jax.tree.leaves, stage.state))
    assert (params, extra) == (1, 1)  # packed: Dense: kernel, bias; BatchNorm: scale, bias; mean, var
    loss = stage.forward(1, x, labels)
    counted, memo = host_cost.count_leaves(stage, 1), stage.memos[0]
    kept = len(jax.tree.leaves((memo.closure, loss, stage.state.extra)))
    assert params + extra + 2 + kept == counted.F
    grads, dx = jax.eval_shape(stage._backward, memo.closure, stage.state.params, memo.x, None)
    taken = jax.tree.leaves((memo.closure, stage.state.params, memo.x))
    assert len(taken) + len(jax.tree.leaves((grads, dx))) == counted.B
    assert 3 * params + 2 * optimizer == counted.U


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


@pytest.mark.slow
def test_block_cost_of_a_transformer_counts_tokens(capsys, tmp_path):
    file = tmp_path / "rows.jsonl"
    flags = ["--model", "transformer1x32", "--batch-size", "2", "--rounds", "1"]
    assert block_cost.main([*flags, "--json", str(file)]) == 0
    found = rows_of(file.read_text())
    assert [row["row"] for row in found] == ["plain", "cured product", "cured rotation", "all cured"]
    assert all(row["tokens_per_second"] > 0 for row in found)
    assert "| tokens/s |" in capsys.readouterr().out


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
    monkeypatch.setattr("fdg_jax.block_times.measure", lambda blocks, *_: [3.0, 1.0])
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


@pytest.mark.usefixtures("dense")
def test_ticks_without_end_leave_nothing_behind():
    trainer = bench_worker.Trainer(side_specs.parse("fdg", COMMON, "", "1"))
    told = [trainer.memory(100) for _ in range(3)]
    assert len({(each["arrays"], each["array_bytes"]) for each in told}) == 1
    if told[0]["resident_bytes"] is not None:  # Linux
        assert told[-1]["resident_bytes"] - told[0]["resident_bytes"] < 2**23  # garbage of other tests comes and goes

"""What loading images, checkpoints, long runs and waiting cost, as the benchmarks measure it."""

import json
import math
import os
from contextlib import nullcontext
from unittest import mock

import pytest
from benchmark_runs import TINY, pins_cores, rows_of

from benchmarks import checkpoint_cost, loader
from fdg_jax.data.jpeg import decode_image
from fdg_jax.data.streams import imagenet
from fdg_jax.storage import durable


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


@pins_cores
def test_endurance_wants_parts_to_compare(capsys):
    from benchmarks import endurance

    assert endurance.main(["--ticks", "10", "--every", "10"]) == 2
    assert "less than two parts" in capsys.readouterr().err
    assert endurance.main(["--ticks", "100", "--every", "15"]) == 2
    assert "multiple of 10" in capsys.readouterr().err
    assert endurance.main(["--K", "3", "--processes", "2"]) == 2
    assert "Use 1 or 3" in capsys.readouterr().err


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


@pytest.mark.slow
@pins_cores
def test_several_processes_that_have_trained_long_tell_what_each_holds(tmp_path, capsys):
    from benchmarks import endurance

    file = tmp_path / "rows.jsonl"
    size = ["--model", "resnet8", "--K", "2", "--processes", "2", "--batch-size", "1", "--ticks", "20", "--every", "10"]
    assert endurance.main([*size, "--json", str(file)]) == 0
    rows = rows_of(file.read_text())
    assert [row["ticks"] for row in rows] == [10, 20] and "| process | MB, first quarter |" in capsys.readouterr().out
    for name in endurance.OF_A_PROCESS:
        assert all(len(row[name]) == 2 and min(row[name]) > 0 for row in rows), name


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

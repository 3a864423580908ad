"""Images per second with a checkpoint every epoch and every 50 batches, against none, and what flushing them costs.

    .venv/bin/python -m benchmarks.checkpoint_cost --model resnet20 --batch-size 128 --K 2

One process trains what the training command trains, on synthetic images, and saves as the training loop does: it takes
a snapshot, and a thread writes it. The sides take turns, one window of an epoch each. A checkpoint is made in the
middle of its interval, so that training goes on while it is written, as in a run. A window ends when everything is
computed and written, so no cost falls into the next window. On the side that is not flushed, our own fsync does
nothing (tensorstore's stays); the training command has no such setting, as a power cut could then lose every
checkpoint.
"""

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":
    from fdg_jax.machine.huge_pages import restart_once

    restart_once()  # as the training command does, before imports that would be done twice

import jax
import numpy as np

from benchmarks.harness import report
from fdg_jax.data.dataset import Dataset
from fdg_jax.errors import BadInput
from fdg_jax.runs import checkpoints, option_checks
from fdg_jax.runs.options import Options
from fdg_jax.training import setup

GOALS = {"every epoch": 0.98, "every 50": 0.90}
NOT_FLUSHED = "every 50, not flushed"
EVERY, CIFAR = 50, 50_000  # batches; images of an epoch


def window(job: setup.Job, indices: np.ndarray, every: int, root: Path) -> tuple[float, int]:
    """Trains on the batches indices [batches, batch]. every: batches per checkpoint; 0: none.

    Returns: (seconds, number of checkpoints).
    """
    pipeline, saver, saves = job.pipeline, checkpoints.Saver(root, {}, keep=2), 0
    assert isinstance(job.dataset, Dataset)  # made-up images, in memory
    start = time.perf_counter()
    for step, row in enumerate(indices, 1):
        pipeline.train(job.dataset.train_inputs, job.dataset.train_labels, row[None])
        pipeline.losses()
        if saver.has_failed():
            saver.wait()  # raises
        if every and step % every == every // 2:
            saver.save(step, pipeline.snapshot(), {"step": step})
            saves += 1
    pipeline.wait()
    saver.wait()
    return time.perf_counter() - start, saves


def measure(job: setup.Job, batches: int, windows: int, root: Path) -> dict[str, list[tuple[float, int]]]:
    """The windows of each side. The sides take turns back and forth, and every window trains on the same batches."""
    sides = {"none": 0, "every epoch": batches, "every 50": EVERY, NOT_FLUSHED: EVERY}
    size = (batches, job.options.batch_size)
    indices = np.random.default_rng(0).integers(0, len(job.dataset.train_inputs), size, dtype=np.int32)
    window(job, indices[: 4 * job.options.K + 2], 2 * job.options.K + 2, root)  # compiles, and fills the pipeline
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in sides}
    for turn in range(windows):
        for name in sides if turn % 2 == 0 else reversed(sides):
            with not_flushed() if name == NOT_FLUSHED else contextlib.nullcontext():
                found[name].append(window(job, indices, sides[name], root))
            rate = indices.size / found[name][-1][0]
            print(f"turn {turn + 1} of {windows}, {name}: {rate:.1f} images/s", file=sys.stderr, flush=True)
    return found


def not_flushed() -> contextlib.AbstractContextManager:
    """A context in which our own fsync does nothing."""
    return mock.patch.object(os, "fsync", return_value=None)


def rows(found: dict[str, list[tuple[float, int]]], images: int, given: argparse.Namespace) -> list[dict[str, Any]]:
    speeds = {name: [images / seconds for seconds, _ in turns] for name, turns in found.items()}
    return [
        {
            "benchmark": "checkpoint_cost",
            "checkpoints": name,
            "checkpoints_per_window": found[name][0][1],
            "images_per_second": round(statistics.median(speeds[name]), 2),
            "images_per_second_windows": [round(speed, 2) for speed in speeds[name]],
            "ratio": round(statistics.median(ratios(speeds, name)), 4),
            "ratio_windows": [round(ratio, 4) for ratio in ratios(speeds, name)],
            "goal": GOALS.get(name),
            "batches_per_window": images // given.batch_size,
            **{option: getattr(given, option) for option in ("model", "batch_size", "K", "method", "windows")},
            "jax": jax.__version__,
            **report.machine(),
        }
        for name in found
    ]


def ratios(speeds: dict[str, list[float]], name: str) -> list[float]:
    """Per turn, a side's speed over the speed without checkpoints."""
    return [a / b for a, b in zip(speeds[name], speeds["none"], strict=True)]


def table(measured_rows: Sequence[dict[str, Any]], megabytes: float) -> str:
    one = measured_rows[0]
    body = [
        [
            row["checkpoints"],
            str(row["checkpoints_per_window"]),
            report.spread(row["images_per_second_windows"], 1),
            report.spread(row["ratio_windows"], 3),
            "" if row["goal"] is None else f"{row['goal']:.2f}",
        ]
        for row in measured_rows
    ]
    about = (
        f"{one['model']}, {one['method']}, K={one['K']}, batch {one['batch_size']}, {one['windows']} windows of "
        f"{one['batches_per_window']} batches a side in turns: median (least to most). A checkpoint has "
        f"{megabytes:.1f} MB. {one['cpu']}, {one['machine_cores']} cores, JAX {one['jax']}, commit {one['commit']}."
    )
    return f"{report.markdown(['checkpoints', 'a window', 'images/s', 'over none', 'goal'], body)}\n\n{about}"


def parser() -> argparse.ArgumentParser:
    made = report.parser("checkpoint_cost", __doc__)
    add = made.add_argument
    add("--model", default="resnet20")
    add("--batch-size", type=report.positive, default=128)
    add("--K", type=report.positive, default=2, help="stages (default 2)")
    add("--method", default="fdg")
    add("--batches", type=report.positive, help="of an epoch, which is a window (default: CIFAR-10's, 391 of 128)")
    add("--windows", type=report.positive, default=4, help="turns a side (default 4)")
    return made


def main(arguments: list[str] | None = None) -> int:
    try:
        given = parser().parse_args(arguments)
        batches = given.batches or -(-CIFAR // given.batch_size)
        options = Options(
            method=given.method, K=given.K, model=given.model, batch_size=given.batch_size, dataset="synthetic",
            learning_rate=0.01, epochs=1,
        )  # fmt: skip
        report.check_json(given.json)
        if batches < EVERY:
            raise BadInput(f"--batches {batches}: a window has a checkpoint every {EVERY} batches. Use more.")
        option_checks.check(options, frozenset())
        option_checks.check_names(options)
        job = setup.prepare(options)
        with tempfile.TemporaryDirectory() as folder:
            found = measure(job, batches, given.windows, Path(folder))
            files = [file for file in checkpoints.stored(Path(folder))[-1].rglob("*") if file.is_file()]
            megabytes = sum(file.stat().st_size for file in files) / 1e6
    except (BadInput, checkpoints.SaveFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1
    measured_rows = rows(found, batches * given.batch_size, given)
    report.emit(measured_rows, table(measured_rows, megabytes), given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

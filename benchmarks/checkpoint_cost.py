"""Images per second without checkpoints, with one every epoch and with one every 50 batches; and the cost of flushing.

    .venv/bin/python -m benchmarks.checkpoint_cost --model resnet20 --batch-size 128 --K 2

One process trains like the training command, on synthetic images. It saves like the training loop: it takes a snapshot,
which a thread writes. The sides take turns, one window of an epoch each. Checkpoints are made in the middle of their
interval, so that training goes on while they are written, as in a run. A window ends when everything is computed and
written, so no cost falls into the next window. On the side without flushing, this package's fsync does nothing, but
tensorstore still flushes its files. The training command has no such setting, as a power cut could then lose every
checkpoint.
"""

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":
    from fdg_jax.machine.huge_pages import restart_once

    restart_once()  # as in the training command, before the slow imports

import jax
import numpy as np

from benchmarks.harness import bench_worker, children, report, side_specs
from benchmarks.harness.turns import back_and_forth
from fdg_jax.checkpoint import run_checkpoints
from fdg_jax.data.dataset import Dataset
from fdg_jax.errors import BadInput
from fdg_jax.training import job as jobs

GOALS = {"every epoch": 0.98, "every 50": 0.90}
NOT_FLUSHED = "every 50, not flushed"
EVERY, CIFAR = 50, 50_000  # batches; images of an epoch


def window(job: jobs.Job, indices: np.ndarray, every: int, root: Path) -> tuple[float, int]:
    """Trains on the batches indices [batches, batch]. every: batches per checkpoint; 0: none. root: where a folder for
    the window's checkpoints is made, since checkpoints have the same numbers in every window.

    Returns: (seconds, number of checkpoints).
    """
    pipeline, saves = job.pipeline, 0
    saver = run_checkpoints.Saver(Path(tempfile.mkdtemp(dir=root)), {}, keep=2)
    assert isinstance(job.dataset, Dataset)  # synthetic images, in memory
    start = time.perf_counter()
    for step, row in enumerate(indices, 1):
        pipeline.train(job.dataset.train_inputs, job.dataset.train_labels, row[None])
        pipeline.losses()
        if saver.has_failed():
            saver.wait()  # raises errors of the writing thread
        if every and step % every == every // 2:
            saver.save(step, pipeline.snapshot(), {"step": step})
            saves += 1
    pipeline.wait()
    saver.wait()
    return time.perf_counter() - start, saves


def measure(job: jobs.Job, batches: int, windows: int, root: Path) -> dict[str, list[tuple[float, int]]]:
    """The windows of each side. The sides take turns, forwards and backwards, and every window trains on the same
    batches."""
    sides = {"none": 0, "every epoch": batches, "every 50": EVERY, NOT_FLUSHED: EVERY}
    size = (batches, job.options.batch_size)
    indices = np.random.default_rng(0).integers(0, len(job.dataset.train_inputs), size, dtype=np.int32)
    window(job, indices[: 4 * job.options.K + 2], 2 * job.options.K + 2, root)  # compiles, and fills the pipeline
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in sides}
    for turn, name in back_and_forth(windows, list(sides)):
        # Without flushing, this package's fsync does nothing.
        with mock.patch.object(os, "fsync", return_value=None) if name == NOT_FLUSHED else contextlib.nullcontext():
            found[name].append(window(job, indices, sides[name], root))
        report.say(f"turn {turn + 1} of {windows}, {name}: {indices.size / found[name][-1][0]:.1f} images/s")
    return found


def results(given: report.Given) -> list[dict[str, Any]]:
    batches = given.batches or -(-CIFAR // given.batch_size)
    if batches < EVERY:
        raise BadInput(f"--batches {batches}: a window has a checkpoint every {EVERY} batches. Use more.")
    asked = {name: getattr(given, name) for name in ("method", "K", "model", "batch_size")}
    side = side_specs.Side("trained", **asked, cores=given.K, engine="auto")
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = measure(bench_worker.Trainer(side).job, batches, given.windows, Path(folder))
        except run_checkpoints.SaveFailed as error:
            raise children.ChildFailed(str(error)) from None
        last = [one for each in Path(folder).iterdir() for one in run_checkpoints.stored(each)][-1]
        files = [file for file in last.rglob("*") if file.is_file()]
        given.megabytes = sum(file.stat().st_size for file in files) / 1e6
    about = {**asked, "windows": given.windows, "batches_per_window": batches, "jax": jax.__version__}
    speeds = {name: [batches * given.batch_size / seconds for seconds, _ in turns] for name, turns in found.items()}
    return [{"checkpoints": name, "checkpoints_per_window": found[name][0][1], "goal": GOALS.get(name),
             **report.speeds(speeds[name], speeds["none"]), **about} for name in found]  # fmt: skip


COLUMNS: dict[str, report.Cell] = {
    "checkpoints": "{checkpoints}", "a window": "{checkpoints_per_window}",
    "images/s": report.spread_of("images_per_second_windows", 1), "over none": report.spread_of("ratio_windows", 3),
    "goal": lambda row: "" if row["goal"] is None else f"{row['goal']:.2f}",
}  # fmt: skip


def table(rows: report.Rows, given: report.Given) -> str:
    one = rows[0]
    about = f"{one['model']}, {one['method']}, K={one['K']}, batch {one['batch_size']}, sides in turns. Cells: median "
    about += f"(least to most) of {one['windows']} windows of {one['batches_per_window']} batches. A checkpoint has "
    about += f"{given.megabytes:.1f} MB. {report.place(one)}, JAX {one['jax']}, commit {one['commit']}."
    return report.table(COLUMNS, rows, about)


def parser() -> report.Parser:
    made = report.parser("checkpoint_cost", __doc__, model="resnet20", batch_size=128, K=2, method="fdg", windows=4)
    made.add_argument("--batches", type=report.positive, help="of a window (default: an epoch of CIFAR-10, 391 of 128)")
    return made


main = report.run(__name__, parser, results, table)

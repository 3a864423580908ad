"""The training loop every data set shares: dispatch, write down, evaluate, save, until all batches have
entered.

It knows the pipeline by its public verbs only. It waits for a device where a person asked for a number (an
evaluation, a checkpoint) and around a dispatch that compiles, so that images/s mean training; nowhere else.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from fdg_jax.data.augment import test_transform
from fdg_jax.data.jpeg import Damaged
from fdg_jax.experiments import feeding, saving
from fdg_jax.experiments.progress import Progress, per_second
from fdg_jax.experiments.record import Record
from fdg_jax.experiments.run_directory import CHECKPOINTS
from fdg_jax.experiments.setup import Job
from fdg_jax.experiments.signals import Signals, Stopped


class Loop:
    """One session of a run: from the newest checkpoint (or the beginning) to the end or a signal."""

    def __init__(self, job: Job, run: Path, signals: Signals, progress: Progress, record: Record):
        self.job, self.run, self.signals, self.progress, self.record = job, run, signals, progress, record
        self.pipeline, self.options = job.pipeline, job.options
        self.feed = feeding.feed(job.dataset, job.options, job.steps)
        self.saved = record.step
        self.transform = test_transform(job.dataset)
        self.shapes: set[tuple[int, ...]] = set()
        self.cold = 0  # dispatches to come that may compile
        self.stamp: tuple[float, int] | None = None  # (when the clock of images/s was started, images then)

    def train(self) -> None:
        """Until `job.steps` batches have entered. Raises Stopped after a signal, a checkpoint being on
        disk."""
        while True:
            self.collect()
            if self.checkpoint_due() or (self.signals.number is not None and self.record.step != self.saved):
                self.save()
            self.signals.check()
            if self.record.step >= self.job.steps:
                break
            if self.evaluation_due():
                self.evaluate()
            self.window()

    def finish(self) -> tuple[str, str]:
        """After the last batch: a checkpoint, the batches in flight, the last evaluation.

        Returns sha256 of the parameters and of the checkpoint's state, which is before draining, so that a
        finished run can go on with more --steps.
        """
        if self.record.step != self.saved:
            self.save()
        self.pause(self.close)
        self.collect(wait=True)
        self.record.last_line()
        self.evaluate()
        return self.pipeline.parameters_sha256(), self.state_sha256

    def close(self) -> None:
        self.state_sha256 = self.pipeline.state_sha256()
        if self.options.drain:
            self.pipeline.drain()

    def collect(self, wait: bool = False) -> None:
        self.record.losses(self.pipeline.losses(wait=wait))

    def window(self) -> None:
        """One dispatch: the next batches."""
        work = self.feed.next(self.record.step)
        cold = self.clock(work.shape)
        work.enter(self.pipeline)
        self.record.entered(work.shape[0], work.shape[0] * work.shape[1])
        if cold:
            self.pipeline.wait()
            self.record.speed.compiled()
        epoch = (self.record.step - 1) // self.job.steps_per_epoch + 1
        self.progress.show(self.record.step, epoch, self.record.last_loss, self.record.rate, cold)

    def clock(self, shape: tuple[int, ...]) -> bool:
        """Whether this dispatch may compile: the first of a shape, and in the pipeline the 2K ticks in which
        a batch of a new size passes all stages and comes back, and M-1 more until its gradient is part of an update.
        The clock of images/s stands still then."""
        if shape not in self.shapes:
            self.shapes.add(shape)
            scanned = (self.options.window or 1) > 1 and self.options.engine == "delay-line"
            self.cold = 1 if scanned else 2 * self.options.K + self.options.accumulate - 1
        if self.cold:
            self.stop_clock()
            self.cold -= 1
            return True
        if self.stamp is None:
            self.pipeline.wait()
            self.stamp = time.monotonic(), self.record.images
        return False

    def stop_clock(self) -> None:
        if self.stamp is not None:
            self.pipeline.wait()
            start, images = self.stamp
            self.record.timed(self.record.images - images, time.monotonic() - start)
            self.stamp = None

    def evaluation_due(self) -> bool:
        every, step = self.options.evaluate_every * self.job.steps_per_epoch, self.record.step
        return every > 0 and step > 0 and step % every == 0 and step != self.record.evaluated

    def evaluate(self) -> None:
        """With the newest weights, batches in flight or not. Raises Stopped after a signal."""
        self.pause(self.evaluate_now)
        epoch, record = self.record.step / self.job.steps_per_epoch, self.record
        self.progress.error = f"test error {record.error:.2f}%"
        self.progress.say(
            f"epoch {round(epoch, 2):g}: test error {record.error:.2f}%, training loss {record.train_loss():.4f}, "
            f"{per_second(record.images_per_second())}, learning rate {self.rate_now():g}"
        )

    def rate_now(self) -> float:
        return float(f"{self.job.learning_rates[max(self.record.step, 1) - 1]:.7g}")

    def evaluate_now(self) -> None:
        found = self.pipeline.evaluate(self.test_batches(), self.transform)
        self.collect(wait=True)  # so that the losses' lines come before the evaluation's, as they would anyway
        self.record.evaluation(found.loss, found.error_percent or 0.0)

    def test_batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for batch in self.feed.test():
            self.signals.check()
            yield batch

    def checkpoint_due(self) -> bool:
        every = self.options.checkpoint_every
        every = self.job.steps_per_epoch if every is None else every
        return every > 0 and self.record.step // every > self.saved // every

    def save(self) -> None:
        self.pause(self.save_now)

    def save_now(self) -> None:
        self.collect(wait=True)
        saving.save(self.run / CHECKPOINTS, self.record.step, self.pipeline.state(), self.record.state())
        self.saved = self.record.step

    def pause(self, work: Callable[[], Any]) -> None:
        """Does something that is not training, off the clock."""
        self.stop_clock()
        self.pipeline.wait()
        start = time.monotonic()
        try:
            work()
        finally:
            self.record.speed.paused(time.monotonic() - start)


def run(job: Job, path: Path, signals: Signals, resume: bool) -> tuple[Record, str, str]:
    """Trains to the end: (record, sha256 of the parameters, sha256 of the last checkpoint's state).

    Raises Stopped, after a checkpoint, when a signal came, and so Damaged when an image of the next batch cannot be
    decoded; Diverged when the loss is no number; BadInput when there is nothing whole to resume from.
    """
    saving.sweep(path / CHECKPOINTS)
    record = Record(len(job.dataset.train_images), job.options.batch_size, job.options.log_every, job.learning_rates)
    if resume:
        begin_again(job, path, record)
    record.open(path, job.options.tensorboard)
    try:
        with Progress(job.steps, record.step, job.options.epochs) as progress:
            if resume:
                progress.say(where(record.step, job.steps))
            loop = Loop(job, path, signals, progress, record)
            with closing(loop.feed):
                try:
                    loop.train()
                    return record, *loop.finish()
                except (Stopped, Damaged):
                    if record.step != loop.saved:
                        loop.save()
                    raise
    finally:
        record.close()


def where(step: int, steps: int) -> str:
    """Where a resumed run stands."""
    if step == 0:
        return "there is no checkpoint yet: from the beginning"
    return f"going on after batch {step:,} of {steps:,}"


def begin_again(job: Job, path: Path, record: Record) -> None:
    """Restores the newest whole checkpoint; a run stopped before its first one begins at the beginning."""
    found = saving.load_newest(path / CHECKPOINTS)
    if found is not None:
        state, loop = found
        job.pipeline.restore(state)
        record.restore(loop)

"""The training loop every data set shares: dispatch, write down, evaluate, save, until all batches have
entered.

It knows the pipeline by its public verbs only. It waits for a device where a person asked for a number (an
evaluation) and around a dispatch that compiles, so that images/s mean training; nowhere else. A checkpoint is
written by a thread, from arrays that may still be under way, while the loop goes on.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from fdg_jax.data import fingerprint
from fdg_jax.data.augment import test_transform
from fdg_jax.engine.losses import Metrics
from fdg_jax.runs import checkpoints
from fdg_jax.runs.progress import Progress, per_second
from fdg_jax.runs.run_files import CHECKPOINTS
from fdg_jax.training import feeding
from fdg_jax.training.home import Home
from fdg_jax.training.record import Diverged, Record, diverged
from fdg_jax.training.replay import Replay
from fdg_jax.training.session import about_job, begin_again
from fdg_jax.training.setup import Job
from fdg_jax.training.signals import Signals
from fdg_jax.training.watchdog import Watchdog

WARNINGS = 10  # of numbers that are none, before silence


class Loop:
    """One session of a run: from the newest checkpoint (or the beginning) to the end or a signal."""

    def __init__(self, job: Job, home: Home, signals: Signals, progress: Progress, record: Record, fresh: bool):
        self.job, self.run, self.signals, self.progress, self.record = job, home.path, signals, progress, record
        self.home = home
        self.pipeline, self.options = job.pipeline, job.options
        self.feed = feeding.feed(job.dataset, job.options, job.steps, signals.check)
        self.saver = checkpoints.Saver(self.run / CHECKPOINTS, about_job(job), job.options.keep, record.flush)
        self.saver.best = record.best_step if job.options.keep_best else None
        self.saver.step = -1 if fresh else record.step
        self.saver.prune()  # which a process that was killed may not have come to
        self.drained = False  # then its state is no longer one of a run that can go on
        self.whole = True  # whether the pipeline stands where the record says, and not within a dispatch
        self.tried = record.step  # the newest step at which a checkpoint was due
        self.transform = test_transform(job.dataset)
        self.shapes: set[tuple[int, ...]] = set()
        self.cold = 0  # dispatches to come that may compile
        self.stamp: tuple[float, int] | None = None  # (when the clock of images/s was started, images then)
        seconds = job.options.stall_seconds
        self.trail = job.pipeline.watch() if seconds else None
        self.watchdog = Watchdog(self.trail, seconds, self.run) if self.trail else None
        every = job.options.replay_check
        self.replay = Replay(every, job.options.seed) if every else None
        self.told = 0  # of batches with numbers that are none
        record.trouble = self.trouble

    def train(self) -> None:
        """Until `job.steps` batches have entered. Raises Stopped after a signal."""
        self.record.catch_up()
        while True:
            self.collect()
            self.check_saver()
            self.check_replay(self.checkpoint_due())
            if self.checkpoint_due():
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
        self.check_replay()
        self.save()
        failed = None
        try:
            self.check_saver(wait=True, last=True)
        except checkpoints.SaveFailed as lost:  # nobody has the weights, then; but what they are worth can be told
            failed = lost
        self.pause(self.close)
        self.collect(wait=True)
        self.record.refused(self.pipeline.refused())
        self.record.last_line()
        self.evaluate()
        if failed:
            raise failed
        if gone := self.home.lost():  # after the last checkpoint, so nobody has the weights
            raise gone
        self.record.flush()  # what is written after this says that the run is finished, so nobody would add a lost line
        return self.pipeline.parameters_sha256(), self.state_sha256

    def trouble(self, metrics: Metrics) -> None:
        """The policy for a loss or a gradient that is not finite: raises Diverged, or warns and lets it be."""
        try:
            diverged(metrics)
        except Diverged as found:
            skip = self.options.on_nan == "skip"
            self.told += 1
            if skip and self.told > WARNINGS:
                return
            fact = str(found) if math.isfinite(metrics.loss) else f"{found}{self.origin(metrics.step)}"
            if not skip:
                raise Diverged(fact, metrics.step) from None
            last = " (the last such warning)" if self.told == WARNINGS else ""
            self.progress.say(f"WARNING: {fact}. No update is made by it{last}.")

    def origin(self, step: int) -> str:
        """The words that name the stage in which batch `step` is lost; none where every stage is sound by now."""
        where = self.pipeline.unsound(self.feed.batch(step - 1), step - 1) if step else None
        return f"; the first that is not finite is what stage k={where.k} has for {where.what}" if where else ""

    def roll_back(self, why: Diverged) -> None:
        """To the newest checkpoint. BadInput where none is whole."""
        self.saver.close()
        if self.saver.failure:
            self.progress.say(f"WARNING: {self.saver.failure}")
        self.whole = False
        found = checkpoints.load_newest(self.run / CHECKPOINTS)
        if found is None:
            raise Diverged(f"{why}, and there is no checkpoint to go back to", why.step) from None
        self.stamp, self.saver.thread, self.saver.failure = None, None, None
        if self.replay:
            self.replay.kept = None
        begin_again(self.job, self.record, *found)
        self.record.sessions -= 1  # it is still this one
        self.saver.best = self.record.best_step if self.options.keep_best else None
        self.drained = False
        self.record.close()
        self.record.open(self.run, self.options.tensorboard)
        self.saver.step = self.tried = self.record.step
        self.whole = True
        self.progress.say(f"WARNING: gone back to the checkpoint after batch {self.record.step:,}.")

    def close(self) -> None:
        self.state_sha256 = self.pipeline.state_sha256()
        if self.options.drain:
            self.drained = True
            self.pipeline.drain()

    def collect(self, wait: bool = False) -> None:
        self.record.losses(self.pipeline.losses(wait=wait))

    def window(self) -> None:
        """One dispatch: the next batches."""
        with self.noted("L", self.record.step + 1):
            work = self.feed.next(self.record.step)
        cold = self.clock(work.shape)
        if self.watchdog:
            self.watchdog.cold = cold
        self.whole = False
        if self.replay and self.replay.wants(self.record.step, work.shape[0]):
            self.keep(self.replay, work)
        else:
            work.enter(self.pipeline)
        self.record.entered(work.shape[0], work.shape[0] * work.shape[1])
        self.whole = True
        if cold:
            self.pipeline.wait()
            self.record.speed.compiled()
        epoch = (self.record.step - 1) // self.job.steps_per_epoch + 1
        self.progress.show(self.record.step, epoch, self.record.last_loss, self.record.rate, cold)

    def keep(self, replay: Replay, work: feeding.Work) -> None:
        """The dispatch, and what it takes to do it again later."""
        before: dict[str, Any] = {}
        self.pause(lambda: before.update(self.pipeline.state()))
        work.enter(self.pipeline)
        self.pause(lambda: replay.keep(self.record.step, work, before, self.pipeline.state()))

    def check_replay(self, due: bool = True) -> None:
        """Does again what was kept, if it is time. Raises NotReproduced."""
        if self.replay and self.replay.kept and (due or self.replay.due(self.record.step)):
            self.collect(wait=True)
            self.pause(partial(self.replay.check, self.pipeline))

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
        self.check_replay(self.options.keep_best)  # before there is a checkpoint of it
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
        if self.record.evaluation(found.loss, found.error_percent or 0.0) and self.options.keep_best:
            self.save(best=True)

    def test_batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for batch in self.feed.test():
            self.signals.check()
            yield batch

    def checkpoint_due(self) -> bool:
        every = self.options.checkpoint_every
        every = self.job.steps_per_epoch if every is None else every
        return every > 0 and self.record.step // every > self.tried // every

    def save(self, best: bool = False) -> None:
        """Begins to write a checkpoint, unless the newest is of this step. Losses that are still under way go with it
        as they are. best: it is kept until there is a better one."""
        self.tried = self.record.step
        self.check_saver(wait=True)  # one at a time
        try:
            mended = self.home.keep(self.record, anew=self.options.on_failed_save == "go-on")
        except checkpoints.SaveFailed as failed:
            self.saver.failure = failed  # which is told, and obeyed, when one asks how the writing went
            return
        if mended:
            self.progress.say(f"WARNING: {mended}.")
            if not checkpoints.folder(self.run / CHECKPOINTS, self.saver.step).is_dir():
                self.saver.step = -1  # what was saved is gone as well
        if self.saver.step == self.record.step:
            self.saver.best = self.record.step if best else self.saver.best
            return
        if self.drained:
            return
        self.collect()
        unread = {f"unread/{step}": losses for step, losses in self.pipeline.unread().items()}
        known = None if self.options.on_nan == "skip" else self.record.bad
        self.saver.save(self.record.step, self.pipeline.snapshot(), self.record.state() | unread, known, best)

    def expect_repair(self) -> None:
        """Makes the next checkpoint one that goes on with the same images also after a damaged one is repaired."""
        now = self.job.dataset.fingerprint
        self.saver.about = {**self.saver.about, "data": now and fingerprint.without_content(now)}
        self.saver.step = -1  # one of this very batch is written again

    def check_saver(self, wait: bool = False, needed: bool = False, last: bool = False) -> None:
        """Learns how the writing went, if it is done (or once it is): the policy for a checkpoint that failed.

        needed: the session ends with it, so there is no going on without. last: so does the run."""
        try:
            if not wait:
                self.saver.check()
            else:
                with self.noted("C", self.saver.step):
                    self.saver.wait()
        except checkpoints.SaveFailed as found:
            failed = self.home.lost() or found
            if needed or last or self.options.on_failed_save == "stop":
                raise failed from None
            earlier = "The earlier ones stay, and the" if checkpoints.stored(self.run / CHECKPOINTS) else "The"
            self.progress.say(f"WARNING: {failed} {earlier} run goes on.")
        except checkpoints.NotFinite as state:
            if self.options.on_nan == "skip" and not state.lasting:
                if needed:
                    raise checkpoints.SaveFailed(f"{state}.") from None
                self.progress.say(f"WARNING: {state}. The earlier ones stay, and the run goes on.")
                return
            raise Diverged(f"{state}{self.origin(state.step)}", state.step) from None

    @contextmanager
    def noted(self, kind: str, batch: int) -> Iterator[None]:
        """Leaves a trail of what the host itself does or waits for."""
        if self.trail:
            self.trail.begin(kind, 0, batch, batch)
        try:
            yield
        finally:
            if self.trail:
                self.trail.end(None)

    def pause(self, work: Callable[[], Any]) -> None:
        """Does something that is not training, off the clock."""
        self.stop_clock()
        self.pipeline.wait()
        start = time.monotonic()
        try:
            work()
        finally:
            self.record.speed.paused(time.monotonic() - start)

"""What is done about what goes wrong: values that are not finite (`--on-nan`), and checkpoints, when they are due
(`--checkpoint-every`, `--keep-best`) and when one cannot be written (`--on-failed-save`)."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import jax

from fdg_jax.checkpoint import manifest, run_checkpoints
from fdg_jax.checkpoint.run_checkpoints import NotFinite, SaveFailed
from fdg_jax.config import FIELDS
from fdg_jax.data import fingerprint
from fdg_jax.engine.losses import Metrics
from fdg_jax.engine.unfinished import UnfinishedOperations
from fdg_jax.errors import BadInput
from fdg_jax.runs import run_files
from fdg_jax.runs.run_files import CHECKPOINTS
from fdg_jax.training.job import Job
from fdg_jax.training.record import Diverged, Run, raise_diverged
from fdg_jax.training.watchdog import waiting

MOST_WARNINGS = 10  # warnings about non-finite values before going quiet


class NonFinitePolicy:
    """Ends the training or lets it go on when values are not finite.

    Arguments:
        job: whose --on-nan is obeyed: stop, skip or rollback. For rollback, too, Diverged is raised here; who catches
            it goes back. Its pipeline is asked which stage was the first to compute something that is not finite.
        batch_after: gives the batch (inputs, labels) that follows a number of batches, to ask the pipeline about it.
        say: prints a line.
    """

    def __init__(self, job: Job, batch_after: Callable[[int], tuple[Any, Any]], say: Callable[[str], None]):
        self.skips, self.pipeline = job.options.on_nan == "skip", job.pipeline
        self.batch_after, self.say = batch_after, say
        self.warnings = 0

    def handle_metrics(self, metrics: Metrics) -> None:
        """For a batch whose loss is not finite or with which a refused update became known: raises Diverged, or warns
        where the policy is to skip."""
        try:
            raise_diverged(metrics)
        except Diverged as found:
            self.warnings += 1
            if self.skips and self.warnings > MOST_WARNINGS:
                return
            fact = str(found) if math.isfinite(metrics.loss) else f"{found}{self.first_stage(metrics.step)}"
            if not self.skips:
                raise Diverged(fact, metrics.step) from None
            last = " (the last such warning)" if self.warnings == MOST_WARNINGS else ""
            self.say(f"WARNING: {fact}. No update is made with it{last}.")

    def handle_state(self, found: NotFinite, needed: bool) -> None:
        """For a state that was not saved because it is not finite: raises Diverged. Where the policy is to skip, and
        only batches in flight are affected, it warns; or raises SaveFailed if that checkpoint is needed."""
        if not self.skips or found.lasting:
            raise Diverged(f"{found}{self.first_stage(found.step)}", found.step) from None
        if needed:
            raise SaveFailed(f"{found}.") from None
        self.say(f"WARNING: {found}. The earlier ones stay, and the run goes on.")

    def first_stage(self, step: int) -> str:
        """Words that name the first stage that batch `step` makes non-finite; "" if all stages are finite by now."""
        where = self.pipeline.first_nonfinite(self.batch_after(step - 1), step - 1) if step else None
        return f"; the first that is not finite: the {where.what} of stage k={where.k}" if where else ""


class Saving:
    """Asks a run_checkpoints.Saver, which writes in a thread, for the checkpoints of one session.

    Arguments:
        say: prints a line.
        unfinished: to which the waiting for a checkpoint is told; None if nobody watches.
    """

    def __init__(
        self,
        run: Run,
        say: Callable[[str], None],
        nonfinite: NonFinitePolicy,
        unfinished: UnfinishedOperations | None,
    ):
        self.job, self.options, self.record, self.pipeline = run.job, run.job.options, run.record, run.job.pipeline
        self.say, self.nonfinite, self.unfinished = say, nonfinite, unfinished
        self.root = run.path / CHECKPOINTS
        self.saver = run_checkpoints.Saver(
            self.root, about_job(self.job), self.options.keep, self.record.flush, self.job.peers
        )
        self.begin(run.fresh)
        if self.job.peers.first:
            self.saver.prune()  # a process that was killed may not have got to it

    def begin(self, fresh: bool = False) -> None:
        """Goes on from the checkpoint that the record has been restored from. fresh: there is none."""
        self.saver.best = self.record.best_step if self.options.keep_best else None
        self.saver.step = -1 if fresh else self.record.step
        self.last_save_attempt = self.record.step  # the newest step at which a checkpoint was due
        self.drained = False  # whether batches in flight have been used up: such a state is never saved

    def due(self) -> bool:
        """Whether --checkpoint-every asks for a checkpoint after the newest batch."""
        every = self.options.checkpoint_every
        every = self.job.steps_per_epoch if every is None else every
        return every > 0 and self.record.step // every > self.last_save_attempt // every

    def save(self, best: bool = False) -> None:
        """Begins to write a checkpoint, unless the newest one is of this step. It contains unfinished losses as they
        are. best: it is kept until there is a better one."""
        self.last_save_attempt = self.record.step
        self.check()  # one at a time
        if self.drained:
            return
        if self.job.peers.from_zero(self.is_current):
            self.saver.best = self.record.step if best else self.saver.best
            return
        self.record.losses(self.pipeline.losses())
        unread = {f"unread/{step}": losses for step, losses in self.pipeline.unread().items()}
        expected = None if self.nonfinite.skips else self.record.bad  # those that were reported, or any
        state = self.pipeline.snapshot(own=True)
        self.saver.save(self.record.step, state, self.record.state() | unread, expected, best)

    def is_current(self) -> bool:
        """Whether the newest checkpoint, written or under way, is of the newest batch."""
        return self.saver.step == self.record.step

    def check(self, needed: bool = False, last: bool = False) -> None:
        """Waits for the checkpoint under way, reports it if it has failed, and obeys the policy for that.

        Arguments:
            needed: the session ends with this checkpoint, so there is no going on without it.
            last: so does the run.
        Raises: SaveFailed, Diverged.
        """
        try:
            with waiting(self.unfinished, "C", self.saver.step):
                self.saver.wait()
        except run_checkpoints.SaveFailed as failed:
            if needed or last or self.options.on_failed_save == "stop" or self.saver.is_gone():
                raise
            earlier = "The earlier ones stay, and the" if run_checkpoints.stored(self.root) else "The"
            self.say(f"WARNING: {failed} {earlier} run goes on.")
        except run_checkpoints.NotFinite as found:
            self.nonfinite.handle_state(found, needed)

    def allow_repaired_data(self) -> None:
        """Makes all checkpoints, and the next, ones that can be resumed after a damaged image has been repaired. A text
        that was cut short has to be the same again."""
        self.saver.close()
        now = self.job.dataset.fingerprint
        if self.job.dataset.unit == "tokens":
            return
        self.saver.about = {**self.saver.about, "data": now and fingerprint.without_content(now)}
        for path in run_checkpoints.stored(self.root):
            with contextlib.suppress(OSError, BadInput):  # then it is refused after the repair
                manifest.change_about(path, self.saver.about)

    def abandon(self) -> None:
        """Waits for the checkpoint under way, before the run goes back to an earlier one. Warns if it has failed."""
        try:
            self.saver.wait()
        except (run_checkpoints.SaveFailed, run_checkpoints.NotFinite) as failed:
            self.say(f"WARNING: {failed}")


def versions() -> dict[str, str | None]:
    """The versions that a checkpoint's bits depend on; the compiler is part of jaxlib."""
    names = ("jax", "jaxlib", "fdg_jax")
    return {**{name: run_files.version(name) for name in names}, "backend": jax.default_backend()}


def about_job(job: Job) -> dict[str, Any]:
    """What a checkpoint's manifest says of the run: versions, the data, and the options that may not change."""
    fixed = [name for name, field in FIELDS.items() if not field.free]
    options = {name: getattr(job.options, name) for name in fixed}
    return {**versions(), "options": options, "data": job.dataset.fingerprint}

"""When a checkpoint of a run is written, and what is done when one cannot be: the policies of `--checkpoint-every`,
`--keep-best` and `--on-failed-save`."""

import contextlib
from pathlib import Path

from fdg_jax.checkpoint import manifest, run_checkpoints
from fdg_jax.data import fingerprint
from fdg_jax.errors import BadInput
from fdg_jax.runs.progress import Progress
from fdg_jax.runs.run_files import CHECKPOINTS
from fdg_jax.training.nonfinite_policy import NonFinitePolicy
from fdg_jax.training.record import Record
from fdg_jax.training.session import about_job
from fdg_jax.training.setup import Job
from fdg_jax.training.watchdog import HostOperations


class Saving:
    """Asks a run_checkpoints.Saver, which writes in a thread, for the checkpoints of one session.

    Arguments:
        run: the run directory.
        fresh: whether the run has no checkpoint yet.
    """

    def __init__(
        self,
        job: Job,
        run: Path,
        record: Record,
        progress: Progress,
        nonfinite: NonFinitePolicy,
        operations: HostOperations,
        fresh: bool,
    ):
        self.job, self.options, self.pipeline = job, job.options, job.pipeline
        self.record, self.progress = record, progress
        self.nonfinite, self.operations = nonfinite, operations
        self.root = run / CHECKPOINTS
        self.saver = run_checkpoints.Saver(self.root, about_job(job), job.options.keep, record.flush, job.peers)
        self.saver.best = record.best_step if job.options.keep_best else None
        self.saver.step = -1 if fresh else record.step
        if job.peers.first:
            self.saver.prune()  # a process that was killed may not have got to it
        self.last_save_attempt = record.step  # the newest step at which a checkpoint was due
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
        if self.job.peers.told(self.is_current):
            self.saver.best = self.record.step if best else self.saver.best
            return
        self.record.losses(self.pipeline.losses())
        unread = {f"unread/{step}": losses for step, losses in self.pipeline.unread().items()}
        expected = self.nonfinite.refused_updates_expected(self.record)
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
            with self.operations.waiting("C", self.saver.step):
                self.saver.wait()
        except run_checkpoints.SaveFailed as failed:
            if needed or last or self.options.on_failed_save == "stop" or self.saver.is_gone():
                raise
            earlier = "The earlier ones stay, and the" if run_checkpoints.stored(self.root) else "The"
            self.progress.say(f"WARNING: {failed} {earlier} run goes on.")
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
            self.progress.say(f"WARNING: {failed}")

    def gone_back(self) -> None:
        """Goes on from the checkpoint that the record has been restored from."""
        self.saver.best = self.record.best_step if self.options.keep_best else None
        self.saver.step = self.last_save_attempt = self.record.step
        self.drained = False

    def close(self) -> None:
        """Waits for the checkpoint under way, whatever becomes of it."""
        self.saver.close()

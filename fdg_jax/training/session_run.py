"""One session of a run: opens and closes what the training loop needs, and decides which end leaves a checkpoint."""

from contextlib import ExitStack, closing, nullcontext
from pathlib import Path

from fdg_jax import durable
from fdg_jax.checkpoint import run_checkpoints
from fdg_jax.data.damaged import Damaged
from fdg_jax.runs.progress import Progress
from fdg_jax.training.nonfinite_policy import Diverged
from fdg_jax.training.record import Record
from fdg_jax.training.rescue import Broken, leave_checkpoint, try_checkpoint
from fdg_jax.training.rollback import train_with_rollback
from fdg_jax.training.session import Session, where
from fdg_jax.training.setup import Job
from fdg_jax.training.signals import Signals, Stopped
from fdg_jax.training.training_loop import Loop


def run(job: Job, path: Path, signals: Signals, session: Session) -> tuple[Record, str, str]:
    """Trains to the end.

    Arguments:
        path: the run directory.
        session: where the training begins.
    Returns:
        The record, sha256 of the parameters, and sha256 of the last checkpoint's state.
    Raises:
        Stopped: a signal came; a checkpoint was written.
        Damaged: the next batch, or a test example, cannot be read or decoded; a checkpoint was written, if there is one
            process and no test after the last batch.
        Diverged: a loss, a gradient or the state is not finite.
        SaveFailed: a checkpoint that is needed cannot be written.
        OSError: the disk is full; a checkpoint was tried.
        Broken: anything else went wrong; a checkpoint was tried.
    """
    record = session.record
    record.open(path, job.options.tensorboard)
    try:
        about = job.steps, record.step, job.options.epochs
        with Progress(*about, unit=record.unit) as progress:
            if session.resumed:
                progress.say(where(session, job.steps))
            profile = session.start.profile if job.peers.first else 0
            loop = Loop(job, path, signals, progress, record, session.fresh, profile)
            opened = (closing(each) for each in (loop.feed, loop.saving, loop.profile))
            with ExitStack() as held:
                for each in (*opened, loop.watchdog or nullcontext()):
                    held.enter_context(each)
                try:
                    return record, *train_with_rollback(loop)
                except (Stopped, Damaged) as ended:
                    if isinstance(ended, Damaged):
                        job.peers.lost = True
                        loop.saving.allow_repaired_data()
                        if job.peers.processes > 1 or loop.saving.drained:
                            raise  # a checkpoint needs all processes, and batches in flight that are not used up
                    leave_checkpoint(loop)
                    raise
                except (Diverged, run_checkpoints.SaveFailed):  # the state is wrong or cannot be saved
                    raise
                except BaseException as error:
                    job.peers.lost = True
                    checkpoint = try_checkpoint(loop)
                    if durable.is_disk_full(error):
                        raise
                    raise Broken(checkpoint) from error
    finally:
        record.close()

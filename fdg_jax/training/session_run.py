"""One session of a run, from its beginning to its end, with all that may end it."""

from contextlib import closing, nullcontext
from pathlib import Path

from fdg_jax.data.jpeg import Damaged
from fdg_jax.runs import checkpoints
from fdg_jax.runs.progress import Progress
from fdg_jax.training.home import Home
from fdg_jax.training.record import Diverged, Record
from fdg_jax.training.replay import NotReproduced
from fdg_jax.training.rescue import Broken, has_words, leave_checkpoint, try_checkpoint
from fdg_jax.training.session import Session, where
from fdg_jax.training.setup import Job
from fdg_jax.training.signals import Signals, Stopped
from fdg_jax.training.training_loop import Loop


def run(job: Job, path: Path, signals: Signals, session: Session, home: Home) -> tuple[Record, str, str]:
    """Trains to the end: (record, sha256 of the parameters, sha256 of the last checkpoint's state).

    Raises Stopped, after a checkpoint, when a signal came, and so Damaged when an image of the next batch cannot be
    decoded; Diverged when the loss is no number; SaveFailed when a checkpoint that is needed cannot be written;
    NotReproduced when a batch done twice came out differently. Whatever else goes wrong is raised as it is where the
    command knows the words for it, else as Broken, after a checkpoint has been tried.
    """
    record = session.record
    record.open(path, job.options.tensorboard)
    try:
        with Progress(job.steps, record.step, job.options.epochs) as progress:
            if session.resumed:
                progress.say(where(session, job.steps))
            loop = Loop(job, home, signals, progress, record, session.fresh)
            with closing(loop.feed), closing(loop.home), closing(loop.saver), loop.watchdog or nullcontext():
                try:
                    return record, *to_the_end(loop)
                except (Stopped, Damaged) as ended:
                    if isinstance(ended, Damaged):
                        loop.expect_repair()
                    leave_checkpoint(loop)
                    raise
                except (Diverged, NotReproduced, checkpoints.SaveFailed):  # states that are not worth a checkpoint
                    raise
                except BaseException as error:
                    became = try_checkpoint(loop)
                    if has_words(error):
                        raise
                    raise Broken(became) from error
    finally:
        record.close()


def to_the_end(loop: Loop) -> tuple[str, str]:
    """Trains and finishes, going back where that is the policy, but never twice for the same batch."""
    furthest = 0
    while True:
        try:
            loop.train()
            return loop.finish()
        except Diverged as found:
            if loop.options.on_nan != "rollback":
                raise
            if found.step <= furthest:
                raise Diverged(f"{found}, again after going back to a checkpoint", found.step) from None
            furthest = found.step
            loop.progress.say(f"WARNING: {found}.")
            loop.roll_back(found)

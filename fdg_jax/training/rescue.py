"""What a session that cannot go on leaves behind: a checkpoint of where it stands, if the state is that of whole
batches."""

import errno

from fdg_jax.errors import reason
from fdg_jax.runs import checkpoints
from fdg_jax.training.record import Diverged
from fdg_jax.training.replay import NotReproduced
from fdg_jax.training.training_loop import Loop

FULL = (errno.ENOSPC, errno.EDQUOT)


class Broken(Exception):
    """Training ended by an exception that nobody expected, which is the cause of this one. The text says what became of
    the checkpoint."""


def leave_checkpoint(loop: Loop) -> None:
    """A checkpoint after the newest batch, waited for. Raises SaveFailed, Diverged or NotReproduced where there can be
    none."""
    try:
        loop.check_replay()
        loop.save()
        loop.check_saver(wait=True, needed=True)
    except (checkpoints.SaveFailed, Diverged, NotReproduced):
        raise
    except Exception as error:  # of JAX, say: the device may be lost
        raise checkpoints.SaveFailed(f"The state cannot be had ({reason(error)}).") from error
    if loop.saver.step != loop.record.step:
        raise checkpoints.SaveFailed(f"There is no checkpoint after batch {loop.record.step:,}.") from None


def try_checkpoint(loop: Loop) -> str:
    """The same after a fault: never raises, and returns a sentence on what came of it."""
    step = f"batch {loop.record.step:,}"
    if not loop.whole:
        return f"The dispatch after {step} was interrupted, so its half-done state was not saved."
    if loop.drained and loop.saver.step != loop.record.step:
        return f"The batches in flight after {step} have been used up, so that state was not saved."
    try:
        leave_checkpoint(loop)
    except Exception as failed:
        return f"A checkpoint after {step} was tried and failed ({reason(failed)})."
    return f"A checkpoint after {step} was written."


def has_words(error: BaseException) -> bool:
    """Whether the command knows what to say of an exception: of a full disk."""
    return isinstance(error, OSError) and error.errno in FULL

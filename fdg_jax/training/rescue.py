"""The checkpoint that a session leaves when it cannot go on, if its state is that of whole batches."""

from fdg_jax.checkpoint import run_checkpoints
from fdg_jax.errors import reason
from fdg_jax.training.nonfinite_policy import Diverged
from fdg_jax.training.training_loop import Loop


class Broken(Exception):
    """An unexpected exception, the cause of this one, has ended the training. The text says whether a checkpoint was
    written."""


def leave_checkpoint(loop: Loop) -> None:
    """Writes a checkpoint after the newest batch and waits for it. Raises SaveFailed or Diverged if that is
    impossible."""
    try:
        loop.saving.save()
        loop.saving.check(needed=True)
    except (run_checkpoints.SaveFailed, Diverged):
        raise
    except Exception as error:  # for example of JAX, if the device is lost
        raise run_checkpoints.SaveFailed(f"The state cannot be read ({reason(error)}).") from error
    if not loop.saving.is_current():
        raise run_checkpoints.SaveFailed(f"There is no checkpoint after batch {loop.record.step:,}.") from None


def try_checkpoint(loop: Loop) -> str:
    """Tries the same after a fault. Never raises; returns a sentence on whether it succeeded."""
    step = f"batch {loop.record.step:,}"
    if loop.job.peers.processes > 1:
        return "No checkpoint was tried: it needs all processes."
    if loop.in_dispatch:
        return f"The dispatch after {step} was interrupted, so its half-done state was not saved."
    if loop.saving.drained and not loop.saving.is_current():
        return f"The batches in flight after {step} have been used up, so that state was not saved."
    try:
        leave_checkpoint(loop)
    except Exception as failed:
        return f"A checkpoint after {step} was tried and failed ({reason(failed)})."
    return f"A checkpoint after {step} was written."

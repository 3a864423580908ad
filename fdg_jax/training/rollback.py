"""Going back to the newest checkpoint after values that are not finite: `--on-nan rollback`."""

from fdg_jax.training.nonfinite_policy import Diverged
from fdg_jax.training.session import begin_again, newest
from fdg_jax.training.training_loop import Loop


def train_with_rollback(loop: Loop) -> tuple[str, str]:
    """Trains and finishes, going back where that is the policy, but never twice for the same batch.

    Returns: what Loop.finish returns. Raises: Diverged.
    """
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
            loop.warn(f"WARNING: {found}.")
            roll_back(loop, found)


def roll_back(loop: Loop, why: Diverged) -> None:
    """Restores the newest checkpoint. Raises Diverged if there is none, and BadInput if none is whole."""
    record, saving = loop.record, loop.saving
    saving.abandon()
    loop.in_dispatch = True  # until pipeline and record agree again
    found = newest(loop.job, saving.root)
    if found is None:
        raise Diverged(f"{why}, and there is no checkpoint to go back to", why.step) from None
    loop.clock.forget()
    begin_again(loop.job, record, *found)
    record.sessions -= 1  # it is still the same session
    record.close()
    if record.trackers.clients:
        record.trackers.write(loop.run)
    record.open(loop.run, loop.options.tensorboard)
    saving.gone_back()
    loop.in_dispatch = False
    loop.warn(f"WARNING: gone back to the checkpoint after batch {record.step:,}.")

"""What is done about a loss, a gradient or a state with NaN or infinity in it: the policies of `--on-nan`."""

import math
from collections.abc import Callable
from typing import Any

from fdg_jax.checkpoint.run_checkpoints import NotFinite, SaveFailed
from fdg_jax.checkpoint.state import describe_first_refused
from fdg_jax.engine.losses import Metrics

MOST_WARNINGS = 10  # warnings about non-finite values before going quiet


class Diverged(Exception):
    """A loss, a gradient or a state is not finite. step: the batch whose loss was being read."""

    def __init__(self, fact: str, step: int = 0):
        super().__init__(fact)
        self.step = step


def raise_diverged(metrics: Metrics) -> None:
    """Raises Diverged for a batch whose loss is not finite, or whose metrics report a refused update."""
    facts = [] if math.isfinite(metrics.loss) else [f"the training loss is {metrics.loss} at batch {metrics.step}"]
    if any(metrics.bad):
        facts.append(describe_first_refused(metrics.bad))
    raise Diverged(" and ".join(facts), metrics.step)


class NonFinitePolicy:
    """Ends the training or lets it go on when values are not finite.

    Arguments:
        on_nan: stop, skip or rollback, as `--on-nan`. For rollback, too, Diverged is raised here; who catches it
            goes back.
        pipeline: asked which stage was the first to compute something that is not finite.
        batch_after: gives the batch (inputs, labels) that follows a number of batches, to ask the pipeline about it.
        say: prints a line.
    """

    def __init__(
        self, on_nan: str, pipeline: Any, batch_after: Callable[[int], tuple[Any, Any]], say: Callable[[str], None]
    ):
        self.skips = on_nan == "skip"
        self.pipeline, self.batch_after, self.say = pipeline, batch_after, say
        self.warnings = 0

    def refused_updates_expected(self, record: Any) -> tuple[int, ...] | None:
        """The refused updates that a checkpoint may contain: those already reported, or with skip any (None)."""
        return None if self.skips else record.bad

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


def newly_refused(before: tuple[int, ...], now: tuple[int, ...]) -> bool:
    """Whether more updates have been refused than before. Both: the first refused update of each stage, 0 if none."""
    return now != before and any(now)

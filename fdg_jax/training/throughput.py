"""The clock behind images/s or tokens/s: it runs while batches are trained on, and stands while programs may compile,
during evaluations and while anything else is done."""

import time
from collections.abc import Callable
from typing import Any

from fdg_jax.config import Config
from fdg_jax.training.record import Record


class ThroughputClock:
    """Tells the record how long how many images, or tokens, took.

    It waits for the device whenever it is started or stopped, so that only whole work is counted.
    """

    def __init__(self, pipeline: Any, record: Record, options: Config):
        self.pipeline, self.record, self.options = pipeline, record, options
        self.shapes: set[tuple[int, ...]] = set()  # of the dispatches so far
        self.dispatches_to_compile = 0  # how many of the next dispatches may still compile
        self.started: tuple[float, int] | None = None  # (when the clock was started, images or tokens entered by then)

    def before_dispatch(self, shape: tuple[int, ...]) -> bool:
        """Starts or stops the clock for a dispatch [batches, examples in each]; returns whether it may compile.

        The first dispatch of a shape may. In the pipeline a batch of a new size takes 2K ticks through all stages
        and back, and M-1 more until its gradient is part of an update, so as many dispatches may compile.
        """
        if shape not in self.shapes:
            self.shapes.add(shape)
            o = self.options
            one_program = (o.window or 1) > 1 and o.engine == "delay-line"
            self.dispatches_to_compile = 1 if one_program else 2 * o.K + o.accumulate - 1
        if self.dispatches_to_compile:
            self.stop()
            self.dispatches_to_compile -= 1
            return True
        if self.started is None:
            self.pipeline.wait()
            self.started = time.monotonic(), self.record.units
        return False

    def after_dispatch(self, may_compile: bool) -> None:
        """Waits for a dispatch that may have compiled, so that compilation is never counted as training."""
        if may_compile:
            self.pipeline.wait()
            self.record.speed.compiled()

    def stop(self) -> None:
        """Stops the clock, if it runs, and adds its time, and what entered in it, to the record."""
        if self.started is not None:
            self.pipeline.wait()
            start, units = self.started
            if self.record.units > units:  # else it was stopped before the batch that it was started for
                self.record.timed(self.record.units - units, time.monotonic() - start)
            self.started = None

    def forget(self) -> None:
        """Stops the clock without adding its time to the record, which has been set back to a checkpoint."""
        self.started = None

    def paused(self, work: Callable[[], Any]) -> None:
        """Calls `work`, which is no training, while the clock stands."""
        self.stop()
        self.pipeline.wait()
        with self.record.speed.pause():
            work()

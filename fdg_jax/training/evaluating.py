"""Evaluations of a run: when one is due, on which batches, and the line that a person sees of it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from fdg_jax.runs.progress import Progress, per_second
from fdg_jax.training.record import Record
from fdg_jax.training.setup import Job


class Evaluation:
    """Evaluates a job's pipeline on the test examples.

    Arguments:
        test_batches: gives the test set once, as batches (inputs, labels).
        check_signals: called before every test batch; it raises Stopped after a signal.
    """

    def __init__(
        self,
        job: Job,
        record: Record,
        progress: Progress,
        test_batches: Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]],
        check_signals: Callable[[], None],
    ):
        self.job, self.record, self.progress = job, record, progress
        self.test_batches, self.check_signals = test_batches, check_signals
        self.transform = job.dataset.test_transform()

    def due(self) -> bool:
        """Whether --evaluate-every asks for one after the newest batch, and it has not been made yet."""
        every, step = self.job.options.evaluate_every * self.job.steps_per_epoch, self.record.step
        return every > 0 and step > 0 and step % every == 0 and step != self.record.evaluated

    def run(self) -> bool:
        """Evaluates with the newest weights, batches in flight or not. Returns whether this is the best so far."""
        found = self.job.pipeline.evaluate(self.interruptible_batches(), self.transform)
        # The losses' lines come before the evaluation's, as they would without waiting.
        self.record.losses(self.job.pipeline.losses(wait=True))
        return self.record.evaluation(found.loss, found.error_percent or 0.0)

    def interruptible_batches(self) -> Iterator[tuple[Any, Any]]:
        for batch in self.test_batches():
            self.check_signals()
            yield batch

    def say_result(self) -> None:
        epoch, record = self.record.step / self.job.steps_per_epoch, self.record
        self.progress.error = f"test error {record.error:.2f}%"
        speed = per_second(record.per_second(), record.unit)
        loss = f"{record.train_loss():.4f}" if record.recent else "not known yet"  # nan means that a run has diverged
        self.progress.say(
            f"epoch {round(epoch, 2):g}: test error {record.error:.2f}%{in_words(record.measures(record.test_loss))}, "
            f"training loss {loss}, {speed}, "
            f"learning rate {record.learning_rate(max(record.step, 1)):g}"
        )


def in_words(measures: Mapping[str, float | None]) -> str:
    """What else a data set makes of a test loss, to follow the error: ", 2.1034 test bits per byte"."""
    return "".join(f", {value:.4f} {name.replace('_', ' ')}" for name, value in measures.items() if value is not None)

"""What a training loop writes down: losses averaged into lines, evaluations, and speed without compilation.

`Record` is the whole memory of the loop. It goes into every checkpoint, so that a resumed run logs the same
lines at the same steps as one that was never stopped.
"""

import math
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fdg_jax.experiments.run_directory import METRICS, MetricsLog


class Diverged(Exception):
    """The training loss is no longer a number."""


class Scalars:
    """TensorBoard scalars; nothing where they are not wanted."""

    def __init__(self, path: Path | None, step: int):
        self.writer = None
        if path is not None:
            from tensorboardX import SummaryWriter

            self.writer = SummaryWriter(str(path), purge_step=step + 1 if step else None)

    def add(self, step: int, values: Mapping[str, float | None]) -> None:
        for name, value in values.items():
            if self.writer is not None and value is not None:
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class Record:
    """step: batches entered. seconds: wall clock over all sessions, compilation and evaluation included."""

    def __init__(self, steps_per_epoch: int, log_every: int, learning_rates: np.ndarray, batch_size: int):
        self.steps_per_epoch, self.log_every = steps_per_epoch, log_every
        self.learning_rates, self.batch_size = learning_rates, batch_size
        self.step, self.seconds, self.evaluated, self.lines, self.sessions = 0, 0.0, 0, 0, 1
        self.timed_images, self.timed_seconds, self.images = 0, 0.0, 0
        self.pending: list[float] = []  # losses since the last line
        self.recent: deque[float] = deque(
            maxlen=steps_per_epoch
        )  # losses of the last epoch's worth of batches
        self.error: float | None = None
        self.last_loss: float | None = None
        self.rate: float | None = None
        self._since = self._began = time.monotonic()
        self._images, self._cold_images, self._cold_seconds = 0, 0, 0.0

    def open(self, run: Path, tensorboard: bool) -> None:
        """Opens the files; lines after the checkpoint are dropped."""
        self.log = MetricsLog(run / METRICS, self.lines)
        self.scalars = Scalars(run / "tensorboard" if tensorboard else None, self.step)
        self._since = self._began = time.monotonic()

    def close(self) -> None:
        self.log.close()
        self.scalars.close()

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "seconds": self.elapsed(),
            "evaluated": self.evaluated,
            "lines": self.log.lines,
            "sessions": self.sessions,
            "timed_images": self.timed_images,
            "timed_seconds": self.timed_seconds,
            "images": self.images,
            "pending": np.asarray(self.pending, np.float64),
            "recent": np.asarray(self.recent, np.float64),
            "error": math.nan if self.error is None else self.error,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        for name in ("step", "evaluated", "lines", "sessions", "timed_images", "images"):
            setattr(self, name, int(state[name]))
        self.seconds, self.timed_seconds = float(state["seconds"]), float(state["timed_seconds"])
        self.pending, self.sessions = [float(loss) for loss in state["pending"]], self.sessions + 1
        self.recent.extend(float(loss) for loss in state["recent"])
        self.error = None if math.isnan(float(state["error"])) else float(state["error"])

    def elapsed(self) -> float:
        return self.seconds + time.monotonic() - self._began

    def entered(self, batches: int, images: int, cold_seconds: float | None) -> None:
        """A dispatch has been made; cold_seconds: what it took, if it may have compiled."""
        self.step += batches
        self.images += images
        if cold_seconds is None:
            self._images += images
        else:
            self._cold_images += images
            self._cold_seconds += cold_seconds
            self.paused(cold_seconds)

    def timed(self, images: int, seconds: float) -> None:
        """So many images took so long, compilation and evaluation not included."""
        self.timed_images += images
        self.timed_seconds += seconds

    def paused(self, seconds: float) -> None:
        """So many seconds since the last line were not training."""
        self._since += seconds

    def losses(self, metrics: list[Any]) -> None:
        """Finished losses, in order of their batches."""
        for step, loss in metrics:
            self.pending.append(loss)
            self.recent.append(loss)
            self.last_loss = loss
            if step % self.log_every == 0:
                self.line(step)

    def line(self, step: int) -> None:
        """A line of metrics.jsonl: the mean loss of the batches since the last, `step` the newest of them."""
        now, loss = time.monotonic(), math.fsum(self.pending) / len(self.pending)
        if self._images:
            self.rate = self._images / max(now - self._since, 1e-9)
        elif self.rate is None and self._cold_images:  # nothing but compiling so far
            self.rate = self._cold_images / max(self._cold_seconds, 1e-9)
        self._since, self._images, self._cold_images, self._cold_seconds = now, 0, 0, 0.0
        event = {
            "step": step,
            "epoch": round(step / self.steps_per_epoch, 4),
            "train_loss": loss,
            "learning_rate": float(f"{self.learning_rates[step - 1]:.7g}"),  # a float32's own digits
            "images_per_second": round(self.rate, 2) if self.rate else None,
        }
        self.log.append(event)
        self.scalars.add(
            step, {f"train/{name}": event[name] for name in event if name not in ("step", "epoch")}
        )
        self.pending.clear()
        if not math.isfinite(loss):
            raise Diverged(f"the training loss is {loss} at batch {step}")

    def last_line(self) -> None:
        """What the last full line left over."""
        if self.pending:
            self.line(self.step)

    def evaluation(self, loss: float, error_percent: float) -> None:
        self.error, self.evaluated = error_percent, self.step
        event = {"step": self.step, "epoch": round(self.step / self.steps_per_epoch, 4)}
        self.log.append({**event, "test_loss": loss, "test_error_percent": error_percent})
        self.scalars.add(self.step, {"test/loss": loss, "test/error_percent": error_percent})

    def train_loss(self) -> float:
        """Mean over the last epoch's worth of batches (fewer where the run is shorter)."""
        return math.fsum(self.recent) / len(self.recent) if self.recent else math.nan

    def images_per_second(self) -> float:
        """Of training, without compilation and evaluation; of everything where a run is too short to tell."""
        if self.timed_seconds > 0:
            return self.timed_images / self.timed_seconds
        return self.images / max(self.elapsed(), 1e-9)

"""A run, and what its training loop records: losses averaged into lines, evaluations, and speed without compilation.

Every checkpoint contains the `Record`, so a resumed run logs the same lines at the same steps as an uninterrupted one.
"""

import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TextIO

import numpy as np

from fdg_jax import durable, models
from fdg_jax.checkpoint.run_checkpoints import stored
from fdg_jax.checkpoint.state import Reading, describe_first_refused, number, numbers, real, reals
from fdg_jax.config import model_options, run_length
from fdg_jax.data import Source
from fdg_jax.engine.losses import Metrics
from fdg_jax.options.common import ONE_RUN, Start
from fdg_jax.runs.run_files import CHECKPOINTS, METRICS, cut_back, newest_points
from fdg_jax.runs.trackers import NO_TRACKERS
from fdg_jax.runs.trackers import tensorboard as open_board
from fdg_jax.strict_json import finite
from fdg_jax.training.job import Job

HORIZON_SECONDS, SHORTEST_SECONDS = 10.0, 0.25
# FLOPs a second of dense products in bfloat16 with float32 sums, by the makers' data sheets. float32 has no entry,
# because the precision of its products depends on JAX's settings.
PEAKS = {
    "NVIDIA A100-SXM4-40GB": 312e12, "NVIDIA A100-SXM4-80GB": 312e12, "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12, "TPU v4": 275e12, "TPU v5 lite": 197e12, "TPU v5": 459e12, "TPU v6 lite": 918e12,
}  # fmt: skip


class Speed:
    """The speed of training in the newest seconds, and its mean over all sessions. Only finished work counts. Programs
    that may compile, and time within `pause`, do not count. Call finished() after reading losses."""

    def __init__(self) -> None:
        self.timed_seconds, self.timed_units = 0.0, 0  # of training, and the images or tokens finished in them
        self.marks: deque[tuple[float, int]] = deque()  # both counts, at the newest calls of finished()
        self.last: float | None = None  # when finished() was called last; None: time is not counted
        self.not_training = 0.0
        self.paused_at: float | None = None

    def seconds(self) -> float:
        """The clock of training. It stands still in a pause, in which losses may be read."""
        now = time.monotonic() if self.paused_at is None else self.paused_at
        return now - self.not_training

    def finished(self, units: int) -> None:
        """Counts images or tokens that were finished since the last call."""
        now = self.seconds()
        if self.last is not None:
            self.timed_seconds += now - self.last
            self.timed_units += units
        self.last = now
        self.marks.append((self.timed_seconds, self.timed_units))
        while len(self.marks) > 2 and self.marks[1][0] < self.marks[-1][0] - HORIZON_SECONDS:
            self.marks.popleft()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """A context whose time is not counted: an evaluation, a checkpoint. Pauses may be nested."""
        outer = self.paused_at
        self.paused_at = start = time.monotonic() if outer is None else outer
        try:
            yield
        finally:
            self.paused_at = outer
            if outer is None:
                self.not_training += time.monotonic() - start

    def forget(self) -> None:
        """Counts neither the time nor the work since the last call of finished(): something may have compiled."""
        self.marks.clear()
        self.last = None

    def now(self) -> float | None:
        """Images or tokens per second of the newest seconds; None while too little has been measured."""
        if not self.marks:
            return None
        (start, before), (end, after) = self.marks[0], self.marks[-1]
        return (after - before) / (end - start) if end - start >= SHORTEST_SECONDS else None

    def mean(self) -> float | None:
        """Images or tokens per second of all sessions; None if nothing has been timed yet."""
        return self.timed_units / self.timed_seconds if self.timed_seconds > 0 else None


class Diverged(Exception):
    """A loss, a gradient or a state is not finite. step: the batch whose loss was being read."""

    def __init__(self, fact: str, step: int = 0):
        super().__init__(fact)
        self.step = step


def diverged_by(metrics: Metrics) -> Diverged:
    """The exception for a batch whose loss is not finite, or whose metrics report a refused update."""
    facts = [] if math.isfinite(metrics.loss) else [f"the training loss is {metrics.loss} at batch {metrics.step}"]
    if any(metrics.bad):
        facts.append(describe_first_refused(metrics.bad))
    return Diverged(" and ".join(facts), metrics.step)


def raise_diverged(metrics: Metrics) -> None:
    """Raises the exception of `diverged_by`."""
    raise diverged_by(metrics)


class Record:
    """The numbers of a run so far.

    Arguments:
        examples: the size of the training set.
        log_every: batches between two lines of metrics.jsonl.
        learning_rates: [batches of all epochs]; entry b-1 is batch b's.
        writes: whether this process writes files; only one of several processes does.
        source: the data set, which names the unit of speed; None: the unit is images.

    `step` is the number of batches entered, `lines` the number of lines in metrics.jsonl. `seconds` is the wall-clock
    time of all sessions, with compilation and evaluation.
    """

    def __init__(
        self,
        examples: int,
        batch_size: int,
        log_every: int,
        learning_rates: np.ndarray,
        writes: bool = True,
        source: Source | None = None,
    ):
        self.steps_per_epoch = run_length(examples, batch_size, epochs=1).per_epoch
        self.batch_size, self.last_batch_size = batch_size, examples - (self.steps_per_epoch - 1) * batch_size
        self.unit, self.per_example = (source.unit, source.per_example) if source else ("images", 1)
        self.measures = source.measures if source else lambda loss: {}
        self.log_every, self.learning_rates, self.writes = log_every, learning_rates, writes
        self.step, self.seconds, self.evaluated, self.lines, self.sessions = 0, 0.0, 0, 0, 1
        self.units = 0  # images or tokens that have entered
        self.pending: list[float] = []  # losses since the last line
        self.recent: deque[float] = deque(maxlen=self.steps_per_epoch)  # losses of the newest batches
        self.error: float | None = None
        self.test_loss: float | None = None
        self.best_error, self.best_step = math.inf, None
        self.unread: list[Metrics] = []  # losses that were unfinished when the checkpoint was written
        self.last_loss: float | None = None
        self.rate: float | None = None
        self.bad: tuple[int, ...] = ()  # the first update of each stage that is known to be refused, as Metrics.bad
        self.on_nonfinite: Callable[[Metrics], None] = raise_diverged
        self.speed = Speed()
        self.trackers = self.board = NO_TRACKERS
        self.file: TextIO | None = None  # metrics.jsonl
        self._began = time.monotonic()

    def open(self, run: Path, tensorboard: bool) -> None:
        """Opens the files, for batches after `step`. Lines of metrics.jsonl after the checkpoint are dropped."""
        self._began = time.monotonic()
        if not self.writes:
            return
        path, newest, lines = run / METRICS, newest_points(run), self.lines
        self.lines = cut_back(path, lines)
        if self.lines < lines:
            fact = f"{path} has {self.lines} of the {lines} lines that it had at the checkpoint"
            print(f"warning: {fact}. The other lines are lost; the run is not affected.", file=sys.stderr, flush=True)
        self.file = path.open("a+", encoding="utf-8")
        durable.flush_folder(run)
        self.board = open_board(run, self.step, newest) if tensorboard else NO_TRACKERS

    def catch_up(self) -> None:
        """Records the losses that were unfinished when the checkpoint was written; a second call does nothing."""
        unread, self.unread = self.unread, []
        self.losses([each._replace(bad=self.bad) for each in unread])
        self.speed.forget()

    def close(self) -> None:
        """Closes the files; the trackers stay open."""
        if self.file:
            self.file.close()
            for client in self.board.clients.values():
                client.finish({}, 0)

    def flush(self) -> None:
        """Brings all lines so far to the disk. The thread that writes checkpoints calls this method."""
        if self.file:
            os.fsync(self.file.fileno())
            self.board.flush()

    def state(self) -> dict[str, Any]:
        """The numbers that a checkpoint keeps; `restore` is the inverse."""
        return {
            "step": self.step,
            "seconds": self.elapsed(),
            "evaluated": self.evaluated,
            "lines": self.lines,
            "sessions": self.sessions,
            "timed_images": self.speed.timed_units,  # an old name, from when all data were images
            "timed_seconds": self.speed.timed_seconds,
            "images": self.units,
            "pending": np.asarray(self.pending, np.float64),
            "recent": np.asarray(self.recent, np.float64),
            "error": math.nan if self.error is None else self.error,
            "best_error": self.best_error,
            "best_step": -1 if self.best_step is None else self.best_step,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        found = Reading(state)
        for name in ("step", "evaluated", "lines", "sessions"):
            setattr(self, name, number(found, name))
        self.units, self.seconds = number(found, "images"), real(found, "seconds")
        self.speed = Speed()
        self.speed.timed_units, self.speed.timed_seconds = number(found, "timed_images"), real(found, "timed_seconds")
        self.pending, self.sessions = reals(found, "pending"), self.sessions + 1
        self.recent.clear()
        self.recent.extend(reals(found, "recent"))
        error, self.best_error, best = (real(found, name) for name in ("error", "best_error", "best_step"))
        self.error, self.best_step = None if math.isnan(error) else error, int(best) if 0 <= best < 2**63 else None
        for step in numbers(found, "unread/"):
            self.unread += [Metrics(step + i, loss) for i, loss in enumerate(reals(found, f"unread/{step}"))]

    def elapsed(self) -> float:
        """Seconds of the run so far, over all sessions."""
        return self.seconds + time.monotonic() - self._began

    def entered(self, batches: int, examples: int) -> None:
        """Counts a dispatch of this many batches and examples."""
        self.step += batches
        self.units += examples * self.per_example

    def losses(self, metrics: Sequence[Metrics]) -> None:
        """Records the losses of finished batches, in the order of the batches. Only finite losses enter a mean."""
        ragged = sum(each.step % self.steps_per_epoch == 0 for each in metrics)
        if metrics:
            examples = self.batch_size * (len(metrics) - ragged) + self.last_batch_size * ragged
            self.speed.finished(examples * self.per_example)
            self.rate = self.speed.now() or self.rate
        for each in metrics:
            finite = math.isfinite(each.loss)
            if finite:
                self.pending.append(each.loss)
                self.recent.append(each.loss)
                self.last_loss = each.loss
            if each.step % self.log_every == 0:
                self.line(each.step)
            if self.learn_refusals(each.bad) or not finite:
                self.on_nonfinite(each)

    def late_refusals(self, bad: tuple[int, ...]) -> None:
        """Records refused updates that became known after the last loss."""
        if self.learn_refusals(bad):
            self.on_nonfinite(Metrics(self.step, 0.0, bad))

    def learn_refusals(self, bad: tuple[int, ...]) -> bool:
        """Records the first refused update of each stage (0: none). Returns whether any are new."""
        known, self.bad = self.bad, bad
        return bad != known and any(bad)

    def line(self, step: int) -> None:
        """Writes a line of metrics.jsonl: the mean loss of the batches since the last line, up to batch `step`."""
        loss = math.fsum(self.pending) / len(self.pending) if self.pending else None
        rate = self.rate or self.speed.mean()
        event = {
            "step": step,
            "epoch": round(step / self.steps_per_epoch, 4),
            "train_loss": loss,
            "learning_rate": self.learning_rate(step),
            f"{self.unit}_per_second": rate if rate is None else round(rate, 2),
        }
        self.write(event, {f"train/{name}": event[name] for name in event if name not in ("step", "epoch")})
        self.pending.clear()

    def write(self, event: Mapping[str, Any], curves: Mapping[str, float | None] = MappingProxyType({})) -> None:
        """Writes a line, and adds a point to each curve at the event's step, if this process writes files."""
        if not self.file:
            return
        self.file.write(json.dumps({key: finite(value) for key, value in event.items()}, allow_nan=False) + "\n")
        self.file.flush()
        self.lines += 1
        self.board.add(event["step"], curves)
        self.trackers.add(event["step"], curves)

    def learning_rate(self, step: int) -> float:
        """The rate of batch `step`, from 1, with the digits of a float32."""
        return float(f"{self.learning_rates[step - 1]:.7g}")

    def last_line(self) -> None:
        """Writes a last line with the losses that are in no line yet."""
        if self.pending:
            self.line(self.step)

    def evaluation(self, loss: float, error_percent: float, sample: str | None = None) -> bool:
        """Records an evaluation, and a sample of a language model. Returns whether it is the best so far."""
        self.error, self.test_loss, self.evaluated = error_percent, loss, self.step
        best = error_percent < self.best_error
        if best:
            self.best_error, self.best_step = error_percent, self.step
        event = {"step": self.step, "epoch": round(self.step / self.steps_per_epoch, 4)}
        more = self.measures(loss)
        event |= {"test_loss": loss, "test_error_percent": error_percent, **more}
        curves = {f"test/{name.removeprefix('test_')}": value for name, value in more.items()}
        event |= {} if sample is None else {"sample": sample}
        self.write(event, {"test/loss": loss, "test/error_percent": error_percent, **curves})
        return best

    def train_loss(self) -> float:
        """The mean training loss of the newest batches, as many as an epoch has (fewer if the run is shorter)."""
        return math.fsum(self.recent) / len(self.recent) if self.recent else math.nan


class Run(NamedTuple):
    """A run: what is trained, where its files are, and where this session begins.

    resumed: an earlier session began the run. fresh: the run has no checkpoint. start: the flags of this start. again:
        the command that resumes the run. name: the run's name among several in this process; "" for a single run.
    """

    job: Job
    path: Path
    record: Record
    resumed: bool
    fresh: bool
    start: Start = ONE_RUN
    again: str = ""
    name: str = ""

    @property
    def newest(self) -> Path | None:
        """The newest checkpoint."""
        kept = stored(self.path / CHECKPOINTS)
        return kept[-1] if kept else None


def utilization(job: Job, rate: float | None) -> dict[str, Any]:
    """How much of its devices a training on tokens uses: model FLOPs utilization (MFU, Chowdhery et al. 2022).

    MFU is the model's FLOPs in a second, divided by the peak of all devices of the run. FLOPs that --remat repeats
    do not count.

    rate: tokens a second.

    Returns: entries of summary.json, {} where the model has no formula: flops_per_token; mfu_percent, None where rate
        or peak is not known; mfu_of, the peak in words.
    """
    o, data = job.options, job.dataset
    if data.unit != "tokens":
        return {}
    count = models.flops(o.model, data.classes, job.pipeline.parameter_count, data.per_example, **model_options(o))
    if count is None:
        return {}
    devices = {device for place in job.pipeline.places for device in place.devices}
    kind = next(iter(devices)).device_kind
    peak = PEAKS.get(kind) if o.dtype == "bfloat16" else None
    of = f"{len(devices)} x {peak / 1e12:g} TFLOP/s of {kind} in bfloat16" if peak else ""
    percent = round(100 * rate * count / (peak * len(devices)), 2) if peak and rate else None
    return {"flops_per_token": count, "mfu_percent": percent, "mfu_of": of}


def utilization_words(summary: dict[str, Any]) -> str:
    """`, 4.9 MFLOP a token, MFU 38.2% of 1 x 989 TFLOP/s of ...`; "" without a formula."""
    if "flops_per_token" not in summary:
        return ""
    percent = summary["mfu_percent"]
    used = "" if percent is None else f", MFU {percent:.1f}% of {summary['mfu_of']}"
    return f", {summary['flops_per_token'] / 1e6:,.1f} MFLOP a token{used}"

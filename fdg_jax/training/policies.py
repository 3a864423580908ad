"""The policies of a run: when it writes checkpoints (`--checkpoint-every`, `--keep-best`), and what it does about
values that are not finite (`--on-nan`), checkpoints that cannot be written (`--on-failed-save`) and operations that do
not finish (`--stall-seconds`, `--peer-timeout`)."""

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import jax

from fdg_jax.checkpoint import manifest, run_checkpoints
from fdg_jax.checkpoint.run_checkpoints import NotFinite, SaveFailed
from fdg_jax.config import FIELDS
from fdg_jax.data import fingerprint
from fdg_jax.engine.losses import Metrics
from fdg_jax.engine.unfinished import MESSAGE, Dispatched, UnfinishedOperations
from fdg_jax.errors import BadInput
from fdg_jax.machine import output
from fdg_jax.runs import run_files
from fdg_jax.runs.run_files import CHECKPOINTS, STALLS
from fdg_jax.training.job import Job
from fdg_jax.training.record import Diverged, Run, diverged_by

MOST_WARNINGS = 10  # warnings about non-finite values before going quiet
WORDS = {"F": "forward pass", "B": "backward pass and update", "S": "synthesizer's step", "window": "window"}
# Operations outside the stages: (who does it, what it works on). The training loop waits for L and C.
OTHERS = {
    "E": ("the evaluation", "test batch"),
    "L": ("the loader", "batch"),
    "C": ("the writing of checkpoints", "checkpoint after batch"),
}
LATE_SECONDS, AGAIN_SECONDS = 10.0, 60.0  # until a stage is reported, and until it is reported again
LOOK_SECONDS = 1.0
WHILE_COMPILING = 4  # times the usual limit, as another process may compile for long
MESSAGES = {"x": "the activations", "dy": "the gradient"}
SLOWER = 3.0  # a stage is late when a message takes this many times as long as ever before


class NonFinitePolicy:
    """Ends the training or lets it go on when values are not finite.

    Arguments:
        job: its --on-nan is the policy: stop, skip or rollback. For rollback, too, Diverged is raised; the caller then
            goes back to a checkpoint. The job's pipeline finds the first stage with a value that is not finite.
        batch_after: number of batches -> the batch (inputs, labels) that follows them. The search for that stage uses
            it.
        say: prints a line.
    """

    def __init__(self, job: Job, batch_after: Callable[[int], tuple[Any, Any]], say: Callable[[str], None]):
        self.skips, self.pipeline = job.options.on_nan == "skip", job.pipeline
        self.batch_after, self.say = batch_after, say
        self.warnings = 0

    def handle_metrics(self, metrics: Metrics) -> None:
        """Handles a batch whose loss is not finite, or whose metrics report a refused update. The policy skip warns;
        the others raise Diverged."""
        self.warnings += 1
        if self.skips and self.warnings > MOST_WARNINGS:
            return
        found = diverged_by(metrics)
        fact = str(found) if math.isfinite(metrics.loss) else f"{found}{self.first_stage(metrics.step)}"
        if not self.skips:
            raise Diverged(fact, metrics.step)
        last = " (the last such warning)" if self.warnings == MOST_WARNINGS else ""
        self.say(f"WARNING: {fact}. Its update is skipped{last}.")

    def handle_state(self, found: NotFinite, needed: bool) -> None:
        """Handles a state that was not saved because it is not finite: raises Diverged. With the policy skip, if only
        batches in flight are affected, it does not raise Diverged: it warns, or raises SaveFailed if the checkpoint is
        needed."""
        if not self.skips or found.lasting:
            raise Diverged(f"{found}{self.first_stage(found.step)}", found.step) from None
        if needed:
            raise SaveFailed(f"{found}.") from None
        self.say(f"WARNING: {found}. Earlier checkpoints stay, and the run goes on.")

    def first_stage(self, step: int) -> str:
        """A clause that names the first stage in which batch `step` causes a non-finite value; "" if all stages are
        finite now."""
        where = self.pipeline.first_nonfinite(self.batch_after(step - 1), step - 1) if step else None
        return f"; the first value that is not finite is the {where.what} of stage k={where.k}" if where else ""


class Saving:
    """The checkpoints of one session, written in a thread by a run_checkpoints.Saver.

    Arguments:
        say: prints a line.
        unfinished: the watchdog's list, in which the wait for a checkpoint is entered; None without a watchdog.
    """

    def __init__(
        self, run: Run, say: Callable[[str], None], nonfinite: NonFinitePolicy, unfinished: UnfinishedOperations | None
    ):
        self.job, self.options, self.record, self.pipeline = run.job, run.job.options, run.record, run.job.pipeline
        self.say, self.nonfinite, self.unfinished = say, nonfinite, unfinished
        self.root = run.path / CHECKPOINTS
        self.saver = run_checkpoints.Saver(
            self.root, about_job(self.job), self.options.keep, self.record.flush, self.job.peers
        )
        self.begin(run.fresh)
        if self.job.peers.first:
            self.saver.prune()  # a killed process may have left too many

    def begin(self, fresh: bool = False) -> None:
        """Goes on from the checkpoint of the restored record. fresh: there is no checkpoint."""
        self.saver.best = self.record.best_step if self.options.keep_best else None
        self.saver.step = -1 if fresh else self.record.step
        self.last_save_attempt = self.record.step  # the newest step at which a checkpoint was due
        self.drained = False  # whether the batches in flight have been used up; a drained state is never saved

    def due(self) -> bool:
        """Whether --checkpoint-every asks for a checkpoint after the newest batch."""
        every = self.options.checkpoint_every
        every = self.job.steps_per_epoch if every is None else every
        return every > 0 and self.record.step // every > self.last_save_attempt // every

    def save(self, best: bool = False) -> None:
        """Begins to write a checkpoint, unless the newest checkpoint is of this step. Some losses in the checkpoint may
        still be unfinished. best: the checkpoint is kept until there is a better one."""
        self.last_save_attempt = self.record.step
        self.check()  # checkpoints are written one at a time
        if self.drained:
            return
        if self.job.peers.from_zero(self.is_current):
            self.saver.best = self.record.step if best else self.saver.best
            return
        self.record.losses(self.pipeline.losses())
        unread = {f"unread/{step}": losses for step, losses in self.pipeline.unread().items()}
        expected = None if self.nonfinite.skips else self.record.bad  # refused updates that the state may have
        state = self.pipeline.snapshot(own=True)
        self.saver.save(self.record.step, state, self.record.state() | unread, expected, best)

    def is_current(self) -> bool:
        """Whether the newest checkpoint, written or under way, is of the newest batch."""
        return self.saver.step == self.record.step

    def check(self, needed: bool = False, last: bool = False) -> None:
        """Waits for the checkpoint under way. If the checkpoint has failed, reports this and follows --on-failed-save.

        Arguments:
            needed: the session ends with this checkpoint and cannot go on without it.
            last: the run ends with this checkpoint.
        Raises: SaveFailed, Diverged.
        """
        try:
            with waiting(self.unfinished, "C", self.saver.step):
                self.saver.wait()
        except run_checkpoints.SaveFailed as failed:
            if needed or last or self.options.on_failed_save == "stop" or self.saver.is_gone():
                raise
            earlier = "Earlier checkpoints stay, and the" if run_checkpoints.stored(self.root) else "The"
            self.say(f"WARNING: {failed} {earlier} run goes on.")
        except run_checkpoints.NotFinite as found:
            self.nonfinite.handle_state(found, needed)

    def allow_repaired_data(self) -> None:
        """Lets the run be resumed, from any checkpoint so far and from the next one, after a damaged image has been
        repaired. To this end these checkpoints no longer record the images' content. A text that was cut short must be
        restored exactly."""
        self.saver.close()
        now = self.job.dataset.fingerprint
        if self.job.dataset.unit == "tokens":
            return
        self.saver.about = {**self.saver.about, "data": now and fingerprint.without_content(now)}
        for path in run_checkpoints.stored(self.root):
            with contextlib.suppress(OSError, BadInput):  # this checkpoint is then refused after the repair
                manifest.change_about(path, self.saver.about)

    def abandon(self) -> None:
        """Waits for the checkpoint under way, before the run goes back to an earlier one. Warns if it has failed."""
        try:
            self.saver.wait()
        except (run_checkpoints.SaveFailed, run_checkpoints.NotFinite) as failed:
            self.say(f"WARNING: {failed}")


def versions() -> dict[str, str | None]:
    """The versions that a checkpoint's bits depend on; the compiler is part of jaxlib."""
    names = ("jax", "jaxlib", "fdg_jax")
    return {**{name: run_files.version(name) for name in names}, "backend": jax.default_backend()}


def about_job(job: Job) -> dict[str, Any]:
    """The manifest's entries on the run: versions, the data, and the options that may not change."""
    fixed = [name for name, field in FIELDS.items() if not field.free]
    options = {name: getattr(job.options, name) for name in fixed}
    return {**versions(), "options": options, "data": job.dataset.fingerprint}


class Watchdog:
    """A context in which operations that do not finish are reported. It never stops a run and never waits.

    A thread regularly looks at the unfinished operations (fdg_jax.engine.unfinished). If the oldest operation stays the
    same for long, it is reported on stderr and in `stalls.jsonl`. Usually all other stages wait for this operation. A
    person decides what to do about it.

    Arguments:
        unfinished: the operations under way.
        seconds: the time until an operation is reported, and between two reports of the same operation.
        run: the run directory, for stalls.jsonl.

    `may_compile` is set during a dispatch that may compile: this takes long and is no stall.
    """

    def __init__(self, unfinished: UnfinishedOperations, seconds: float, run: Path):
        self.unfinished, self.seconds, self.run = unfinished, seconds, run
        self.may_compile = False
        self.op: Dispatched | None = None  # the oldest one at the last look
        self.since, self.times_named = 0.0, 0  # when it was seen first; how often it was reported
        self.leaving = Event()
        self.thread = Thread(target=self.watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.leaving.set()
        self.thread.join(5)  # a daemon thread: if it hangs, the run still ends

    def watch(self) -> None:
        while not self.leaving.wait(min(self.seconds / 5, 5.0)):
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Reports the oldest operation if it has been the oldest for long enough."""
        op = self.unfinished.oldest()
        if op is None or self.op is None or op.since != self.op.since:
            self.since, self.times_named = now, 0
        self.op = op
        if op is not None and now - self.since >= (self.times_named + 1) * self.seconds:
            self.times_named += 1
            self.tell(op, now)

    def tell(self, op: Dispatched, now: float) -> None:
        may_compile = (self.may_compile and op.kind in WORDS) or op.kind == "E"
        compiling = may_compile and not op.returned
        began = datetime.now().astimezone() - timedelta(seconds=now - op.since)
        print(f"WARNING: {sentence(op, now - op.since, began, compiling)}", file=sys.stderr, flush=True)
        event: dict[str, Any] = {"time": datetime.now().astimezone().isoformat(timespec="seconds"), "k": op.k or None}
        event |= {"operation": operation(op), "batch": op.first, "last_batch": op.last}
        event |= {"since": began.isoformat(timespec="milliseconds"), "seconds": round(now - op.since, 3)}
        event |= {"compiling": compiling}
        run_files.append_event(self.run / STALLS, event)


@contextlib.contextmanager
def waiting(unfinished: UnfinishedOperations | None, kind: str, batch: int) -> Iterator[None]:
    """A context that tells the watchdog what the training loop itself waits for.

    unfinished: None without a watchdog. kind: a key of OTHERS.
    """
    if unfinished:
        unfinished.begin(kind, 0, batch, batch)
    try:
        yield
    finally:
        if unfinished:
            unfinished.end(None)


def sentence(op: Dispatched, seconds: float, began: datetime, compiling: bool) -> str:
    """A report of an operation. compiling: whether the host is inside a dispatch that may compile."""
    if op.kind in OTHERS:
        who, what = OTHERS[op.kind][0], f"{operation(op)} {op.first:,}"
    else:
        batches = f"batch {op.first:,}" if op.first == op.last else f"batches {op.first:,} to {op.last:,}"
        who, what = f"stage k={op.k}" if op.k else "the delay line", f"{operation(op)} of {batches}"
    when = f"for {seconds:,.1f} s, since {began:%Y-%m-%d %H:%M:%S}"
    if compiling:
        return f"{who} has been compiling the program for its {what} {when}, or is stuck."
    where = "dispatched but not finished" if op.returned else "in its dispatch" if op.kind in WORDS else "under way"
    return f"{who} makes no progress: its {what} has been {where} {when}. Everything else waits for it."


def operation(op: Dispatched) -> str:
    """The operation in words."""
    return OTHERS[op.kind][1] if op.kind in OTHERS else WORDS.get(op.kind, op.kind)


class PeerWatchdog(Watchdog):
    """A `Watchdog` that also reports late messages from other processes.

    Arguments:
        unfinished, seconds, run: as those of `Watchdog`; seconds may be infinite.
        timeout: seconds to wait for a message; then the process ends with exit code 1.
        processes: the process of each stage k = 1..K.
        process: the number of this process.
    """

    def __init__(
        self,
        unfinished: UnfinishedOperations,
        seconds: float,
        run: Path,
        timeout: float,
        processes: Sequence[int],
        process: int,
    ):
        super().__init__(unfinished, seconds, run)
        self.timeout, self.processes, self.process = timeout, processes, process
        self.looked, self.longest, self.next = time.monotonic(), 0.0, LATE_SECONDS
        self.unusual = False  # whether the awaited operation may have compiled, or this process was suspended

    def watch(self) -> None:
        while not self.leaving.wait(LOOK_SECONDS):
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Reports what is late. Time in which this process itself was suspended does not count."""
        slept, self.looked = now - self.looked > 5 * LOOK_SECONDS, now
        before, since = self.op, self.since
        super().look(now)
        if slept:
            self.since = now
        self.unusual = self.unusual or slept or self.may_compile
        if before is not None and (self.op is None or self.op.since != before.since):  # the message has come
            if before.kind.startswith(MESSAGE) and not self.unusual:
                self.longest = max(self.longest, now - since)
            self.unusual = False
            self.next = max(LATE_SECONDS, SLOWER * self.longest)
        if self.op is not None and self.op.kind.startswith(MESSAGE):
            self.waited(self.op, now - self.since)

    def tell(self, op: Dispatched, now: float) -> None:
        """Reports an operation of this process; `waited` reports messages."""
        if not op.kind.startswith(MESSAGE):
            super().tell(op, now)

    def waited(self, op: Dispatched, seconds: float) -> None:
        """Handles a message that has been the oldest unfinished operation for so many seconds."""
        what = op.kind.removeprefix(MESSAGE)
        what = MESSAGES.get(what, what) + (f" of batch {op.first:,}" if op.first else "")
        whose = f"stage k={op.k} (process {self.processes[op.k - 1]})"
        waits = f"process {self.process} has waited {seconds:,.0f} s for {what} from {whose}"
        if seconds >= self.timeout * (WHILE_COMPILING if self.may_compile else 1):
            fact = (
                f"\nerror: {waits}, longer than --peer-timeout {self.timeout:g}. That process has ended, or its "
                "connection is cut."
            )
            output.write_to_stderr(f"{fact} Go on with --resume.\n")
            os._exit(1)
        if seconds >= self.next and not self.may_compile:
            self.next = seconds + AGAIN_SECONDS
            print(f"WARNING: {waits}, which is unusually long.", file=sys.stderr, flush=True)


def watchdog(job: Job, unfinished: UnfinishedOperations, run: Path) -> Watchdog:
    """The watchdog over the operations under way and the messages of other processes."""
    seconds, peers = job.options.stall_seconds, job.peers
    if peers.processes == 1:
        return Watchdog(unfinished, seconds, run)
    processes = [device.process_index for device in job.pipeline.devices]
    return PeerWatchdog(unfinished, seconds or math.inf, run, peers.seconds, processes, peers.process)

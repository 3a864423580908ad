"""Names the operation that everything else waits for: mostly one of a stage. It stops nothing and waits for nothing.

A thread looks now and then at what was dispatched and is not finished (fdg_jax.engine.unfinished). If the oldest
operation stays the same for long, the watchdog names it on stderr and in `stalls.jsonl`. What to do about it is for a
person to decide.
"""

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

from fdg_jax.engine.unfinished import MESSAGE, Dispatched, UnfinishedOperations
from fdg_jax.machine import output
from fdg_jax.runs import incidents
from fdg_jax.runs.incidents import STALLS
from fdg_jax.training.job import Job

WORDS = {"F": "forward pass", "B": "backward pass and update", "S": "synthesizer's step", "window": "window"}
# Operations of no stage: who does it, and what it is of a batch. L and C are what the training loop waits for.
OTHERS = {
    "E": ("the evaluation", "test batch"),
    "L": ("the loader", "batch"),
    "C": ("the writing of checkpoints", "checkpoint after batch"),
}


class Watchdog:
    """A context within which operations that do not finish are named.

    Arguments:
        unfinished: the operations under way.
        seconds: until an operation is named, and between namings of the same one.
        run: the run directory, for stalls.jsonl.

    `may_compile` is set while the host makes a dispatch that may compile, which takes long and is no stall.
    """

    def __init__(self, unfinished: UnfinishedOperations, seconds: float, run: Path):
        self.unfinished, self.seconds, self.run = unfinished, seconds, run
        self.may_compile = False
        self.op: Dispatched | None = None  # the oldest one at the last look
        self.since, self.times_named = 0.0, 0  # when it was seen first; how often it was named
        self.leaving = Event()
        self.thread = Thread(target=self.watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.leaving.set()
        self.thread.join(5)  # a daemon: should it hang, the run ends all the same

    def watch(self) -> None:
        while not self.leaving.wait(min(self.seconds / 5, 5.0)):
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Names the oldest operation if it has been that for long enough."""
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
        incidents.append(self.run / STALLS, event)


@contextlib.contextmanager
def waiting(unfinished: UnfinishedOperations | None, kind: str, batch: int) -> Iterator[None]:
    """A context that lets the watchdog name what the training loop itself waits for.

    unfinished: None if nobody watches. kind: one of OTHERS.
    """
    if unfinished:
        unfinished.begin(kind, 0, batch, batch)
    try:
        yield
    finally:
        if unfinished:
            unfinished.end(None)


def sentence(op: Dispatched, seconds: float, began: datetime, compiling: bool) -> str:
    """compiling: the host is inside a dispatch that may compile."""
    if op.kind in OTHERS:
        who, what = OTHERS[op.kind][0], f"{operation(op)} {op.first:,}"
    else:
        batches = f"batch {op.first:,}" if op.first == op.last else f"batches {op.first:,} to {op.last:,}"
        who, what = f"stage k={op.k}" if op.k else "the delay line", f"{operation(op)} of {batches}"
    when = f"for {seconds:,.1f} s, since {began:%Y-%m-%d %H:%M:%S}"
    if compiling:
        return f"{who} is compiling the program for its {what}, {when}, or is stuck there."
    where = "dispatched and not finished" if op.returned else "in its dispatch" if op.kind in WORDS else "under way"
    return f"{who} makes no progress: its {what} has been {where} {when}. Everything else waits for it."


def operation(op: Dispatched) -> str:
    """What is done, in words."""
    return OTHERS[op.kind][1] if op.kind in OTHERS else WORDS.get(op.kind, op.kind)


LATE_SECONDS, AGAIN_SECONDS = 10.0, 60.0  # until a stage is named, and until it is named again
LOOK_SECONDS = 1.0
WHILE_COMPILING = 4  # times the limit, as another process may compile for long
MESSAGES = {"x": "the activations", "dy": "the gradient"}
SLOWER = 3.0  # times as long as ever before, a message has to take before its stage counts as late


class PeerWatchdog(Watchdog):
    """A `Watchdog` that also knows what is awaited from other processes.

    Arguments:
        unfinished, seconds, run: as those of `Watchdog`; seconds may be infinite.
        timeout: seconds that a message is waited for; then the process ends with exit code 1.
        processes: of the stages k = 1..K.
        process: the number of this one.
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
        self.unusual = False  # whether what is waited for may have been compiled, or this process has slept

    def watch(self) -> None:
        while not self.leaving.wait(LOOK_SECONDS):
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Names what is late; what this process itself has slept through counts for nobody."""
        slept, self.looked = now - self.looked > 5 * LOOK_SECONDS, now
        before, since = self.op, self.since
        super().look(now)
        if slept:
            self.since = now
        self.unusual = self.unusual or slept or self.may_compile
        if before is not None and (self.op is None or self.op.since != before.since):  # it has come
            if before.kind.startswith(MESSAGE) and not self.unusual:
                self.longest = max(self.longest, now - since)
            self.unusual = False
            self.next = max(LATE_SECONDS, SLOWER * self.longest)
        if self.op is not None and self.op.kind.startswith(MESSAGE):
            self.waited(self.op, now - self.since)

    def tell(self, op: Dispatched, now: float) -> None:
        """Names an operation of this process; messages are named by `waited`."""
        if not op.kind.startswith(MESSAGE):
            super().tell(op, now)

    def waited(self, op: Dispatched, seconds: float) -> None:
        """A message has been the oldest thing that is awaited for so many seconds."""
        what = op.kind.removeprefix(MESSAGE)
        what = MESSAGES.get(what, what) + (f" of batch {op.first:,}" if op.first else "")
        whose = f"stage k={op.k} (process {self.processes[op.k - 1]})"
        waits = f"process {self.process} has waited {seconds:,.0f} s for {what} from {whose}"
        if seconds >= self.timeout * (WHILE_COMPILING if self.may_compile else 1):
            fact = (
                f"\nerror: {waits}, longer than --peer-timeout {self.timeout:g}. It is gone, or the way to it is cut."
            )
            output.write_to_stderr(f"{fact} Go on with --resume.\n")
            os._exit(1)
        if seconds >= self.next and not self.may_compile:
            self.next = seconds + AGAIN_SECONDS
            print(f"WARNING: {waits}, which is late.", file=sys.stderr, flush=True)


def of_job(job: Job, unfinished: UnfinishedOperations, run: Path) -> Watchdog:
    """What looks after the operations under way, and after the messages of other processes."""
    seconds, peers = job.options.stall_seconds, job.peers
    if peers.processes == 1:
        return Watchdog(unfinished, seconds, run)
    processes = [device.process_index for device in job.pipeline.devices]
    return PeerWatchdog(unfinished, seconds or math.inf, run, peers.seconds, processes, peers.process)

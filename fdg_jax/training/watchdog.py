"""Names the operation that everything else waits for: mostly one of a stage. It stops nothing and waits for nothing.

A thread looks now and then at what was dispatched and is not finished (fdg_jax.engine.unfinished). If the oldest
operation stays the same for long, the watchdog names it on stderr and in `stalls.jsonl`. What to do about it is for a
person to decide.
"""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

from fdg_jax.engine.unfinished import Dispatched, UnfinishedOperations

STALLS = "stalls.jsonl"
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
        # A disk that is full is reported elsewhere.
        with contextlib.suppress(OSError), (self.run / STALLS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")


class HostOperations:
    """Lets the watchdog name what the training loop itself waits for. unfinished: None if nobody watches."""

    def __init__(self, unfinished: UnfinishedOperations | None):
        self.unfinished = unfinished

    @contextlib.contextmanager
    def waiting(self, kind: str, batch: int) -> Iterator[None]:
        """A context for the waiting. kind: one of OTHERS."""
        if self.unfinished:
            self.unfinished.begin(kind, 0, batch, batch)
        try:
            yield
        finally:
            if self.unfinished:
                self.unfinished.end(None)


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

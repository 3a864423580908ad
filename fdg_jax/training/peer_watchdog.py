"""Names the stage of another process that this one waits for, and ends a training whose other processes are silent.

The coordination service notices a process that has died, and its heartbeat one that stands still for long. Nothing but
this notices that the way between two processes is cut.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fdg_jax.engine.unfinished import MESSAGE, Dispatched, UnfinishedOperations
from fdg_jax.machine import output
from fdg_jax.training.watchdog import Watchdog

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
        process_of: process_of(k) -> the process of stage k.
        process: the number of this one.
    """

    def __init__(
        self,
        unfinished: UnfinishedOperations,
        seconds: float,
        run: Path,
        timeout: float,
        process_of: Callable[[int], int],
        process: int,
    ):
        super().__init__(unfinished, seconds, run)
        self.timeout, self.process_of, self.process = timeout, process_of, process
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
        whose = f"stage k={op.k} (process {self.process_of(op.k)})"
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

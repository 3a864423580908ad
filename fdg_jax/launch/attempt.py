"""One attempt: waits for the processes, and when one fails or a signal comes, ends the others in a bounded time.

A process is first handed SIGTERM, then, if it has not ended in time, SIGKILL. A process that fails takes the others
with it, since each needs its neighbours. Where a process ends as one that was stopped by a signal and has written its
checkpoint (exit codes 130, 143, 129, 138), the others are stopping too, if the program lets all of its processes stop
at the same batch. A SIGTERM of ours would then be the second one for some of them, which means "at once". So they are
let be.
"""

import signal
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple

from fdg_jax.launch.group import Ended, Group, HasEnded, name_of
from fdg_jax.training.signals import IMPATIENT, PATIENT, Signals

KILL_SECONDS = 5.0  # from SIGTERM to SIGKILL, and from SIGKILL to giving up
STOPPED = {128 + number: number for number in (*IMPATIENT, *PATIENT)}  # exit codes of processes that were stopped
BAD_INPUT = 2
LET_BE, ASKED, KILLED, GIVEN_UP = range(4)  # what the processes were handed: nothing, SIGTERM, SIGKILL


class Received(NamedTuple):
    """An event: the launcher has received a signal."""

    number: int


class SignalEvents(Signals):
    """As a context: signals become events. One that has to be ignored, as under nohup, stays ignored."""

    def __init__(self, events: SimpleQueue):
        super().__init__()
        self.events = events

    def receive(self, number: int, _frame: object) -> None:
        self.events.put(Received(number))  # a SimpleQueue may be put into by what interrupts a `get`


class Attempt:
    """What became of the processes of a group, once `wait` has returned.

    `failed` is how the first one that failed ended, or None. `signals` are those that the launcher received.

    Arguments:
        group: the processes, just started. events: what it puts its events into, and SignalEvents too.
        grace: seconds for which processes that write a checkpoint are waited for.
        say: prints a sentence.
    """

    def __init__(self, group: Group, events: SimpleQueue, grace: float, say: Callable[[str], None]):
        self.group, self.events, self.grace, self.say = group, events, grace, say
        self.signals: list[int] = []
        self.failed: Ended | None = None
        self.spoilt: list[Ended] = []  # those that ended otherwise than a signal makes them end
        self.others_stopped = False
        self.handed, self.deadline = LET_BE, float("inf")

    def wait(self) -> None:
        """Returns when all processes have ended, or cannot be ended."""
        while self.group.running and self.handed != GIVEN_UP:
            left = max(0.0, self.deadline - time.monotonic())
            try:
                event = self.events.get(timeout=None if left == float("inf") else left)
            except Empty:
                self.harder()
                continue
            if isinstance(event, Received):
                self.received(event.number)
            elif isinstance(event, HasEnded):
                self.ended(self.group.reap(event.index))

    def received(self, number: int) -> None:
        before, self.signals = self.signals, [*self.signals, number]
        if number in IMPATIENT and set(before) & set(IMPATIENT):
            self.hand_sigkill()
        elif not before:
            if self.handed == LET_BE:
                self.hand_sigterm(self.grace)
            fact = f"{name_of(number)}: waiting at most {self.grace:g} s for the processes to stop"
            self.say(f"{fact} (SIGINT or SIGTERM again: at once)")

    def ended(self, one: Ended) -> None:
        """A process has ended. Another failure than the first changes nothing but how long the others have."""
        stopped = one.code in STOPPED
        if self.signals:
            if one.code not in (0, -signal.SIGTERM) and not stopped:
                self.spoilt.append(one)
        elif one.code != 0:
            if self.failed is None:
                self.failed, self.others_stopped = one, bool(self.group.running)
            if stopped and self.handed == LET_BE:
                self.deadline = min(self.deadline, time.monotonic() + self.grace)
            elif self.handed == LET_BE:
                self.hand_sigterm(KILL_SECONDS)

    def harder(self) -> None:
        """The time that the processes had is over."""
        if self.handed == LET_BE:
            self.hand_sigterm(KILL_SECONDS)
        elif self.handed == ASKED:
            self.hand_sigkill()
            self.say(f"SIGKILL for {self.left()}: too long since SIGTERM")
        else:
            self.handed = GIVEN_UP
            self.say(f"error: {self.left()} cannot be killed. The system holds what they wait for.")

    def hand_sigterm(self, seconds: float) -> None:
        self.group.send(signal.SIGTERM)
        self.handed, self.deadline = ASKED, time.monotonic() + seconds

    def hand_sigkill(self) -> None:
        self.group.kill()
        self.handed, self.deadline = KILLED, time.monotonic() + KILL_SECONDS

    def left(self) -> str:
        return ", ".join(f"process {index} (pid {one.pid})" for index, one in self.group.running.items())

    @property
    def died(self) -> bool:
        """Whether a process failed for no reason that another start would meet again."""
        found = self.failed
        again = found is not None and found.code != BAD_INPUT and found.code not in STOPPED
        return again and not self.signals and not self.group.running

    def told(self) -> str:
        """What happened, where it was not that all ended with 0, without a full stop."""
        if self.signals:
            failed = [self.failed] if self.failed else []
            return "; ".join([f"stopped by {name_of(self.signals[0])}", *map(str, (*failed, *self.spoilt))])
        assert self.failed is not None
        others = "; the others were stopped" if self.others_stopped else ""
        number = STOPPED.get(self.failed.code)
        if number is None:
            return f"{self.failed}{others}"
        return f"process {self.failed.index} (pid {self.failed.pid}) was stopped by {name_of(number)}{others}"

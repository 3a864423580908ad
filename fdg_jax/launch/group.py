"""The processes of one attempt: started together, and gone together in a bounded time.

A process is first handed SIGTERM, then, if it has not ended in time, SIGKILL. A process that fails takes the others
with it, since each needs its neighbours. Where a process ends as one that was stopped by a signal and has written its
checkpoint (exit codes 130, 143, 129, 138), the others are stopping too, if the program lets all of its processes stop
at the same batch. A SIGTERM of ours would then be the second one for some of them, which means "at once". So they are
let be.

Each process is the head of a process group, which has what it starts itself; that is killed when the process has ended.
The kernel kills the processes when the launcher dies, by kill -9 too (fdg_jax.machine.leash). None is in the terminal's
foreground: Ctrl-C reaches only the launcher.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NamedTuple

from fdg_jax.launch.lines import Printer
from fdg_jax.machine import leash
from fdg_jax.machine.cores import pinned
from fdg_jax.machine.signals import IMPATIENT, PATIENT, Signals

KILL_SECONDS = 5.0  # from SIGTERM to SIGKILL, and from SIGKILL to giving up
LAST_LINES_SECONDS = 5.0  # in which what the processes printed last has to be read
STOPPED = {128 + number: number for number in (*IMPATIENT, *PATIENT)}  # exit codes of processes that were stopped
BAD_INPUT = 2
LET_BE, ASKED, KILLED, GIVEN_UP = range(4)  # what the processes were handed: nothing, SIGTERM, SIGKILL


class SignalEvents(Signals):
    """As a context: a signal puts minus its number among the events. One that has to be ignored, as under nohup, stays
    ignored. The end of process 0, 1, ... is the event 0, 1, ..."""

    def __init__(self) -> None:
        super().__init__()
        self.events = SimpleQueue[int]()

    def receive(self, number: int, _frame: object) -> None:
        self.events.put(-number)  # a SimpleQueue may be put into by what interrupts a `get`

    def within(self, seconds: float | None) -> int | None:
        """The next event; None if none comes in time. seconds: None waits for ever."""
        try:
            return self.events.get(timeout=seconds)
        except Empty:
            return None


class Ended(NamedTuple):
    """How a process ended.

    code: its exit code, or minus the number of the signal that killed it. stages: those that it computed, in words.
    """

    index: int
    pid: int
    code: int
    stages: str = ""

    @property
    def exit_code(self) -> int:
        """As shells have it: 128 + n for a signal."""
        return self.code if self.code >= 0 else 128 - self.code

    def __str__(self) -> str:
        how = f"ended with exit code {self.code}" if self.code >= 0 else f"was killed by {name_of(-self.code)}"
        return f"process {self.index} ({self.stages}pid {self.pid}) {how}"


def name_of(number: int) -> str:
    """A signal's name, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"


class Group:
    """As a context: starts the processes; at its end none of them is left.

    `failed` is how the first one that failed ended, or None. `signals` are those that the launcher received.

    Arguments:
        commands: the words of each process for Python. cores: of each; () leaves a process where it is.
        signals: where events come from and go to.
        printers: for stdout and stderr.
        stages: of each process, in words.
        grace: seconds for which processes that write a checkpoint are waited for.

    Raises: OSError if a process cannot be started; then none is left.
    """

    def __init__(
        self, commands: Sequence[Sequence[str]], cores: Sequence[Collection[int]], signals: SignalEvents,
        printers: tuple[Printer, Printer], stages: Sequence[str], grace: float,
    ):  # fmt: skip
        self.from_outside, self.printers, self.stages, self.grace = signals, printers, stages, grace
        self.running, self.readers = dict[int, subprocess.Popen](), list[Thread]()
        self.signals, self.failed, self.others_stopped = list[int](), None, False
        self.spoilt: list[Ended] = []  # those that ended otherwise than a signal makes them end
        self.handed, self.deadline = LET_BE, float("inf")
        try:
            for index, words in enumerate(commands):
                self.start(index, words, cores[index])
        except BaseException:
            self.close()
            raise

    def start(self, index: int, words: Sequence[str], cores: Collection[int]) -> None:
        with pinned(cores):  # and not while the threads below begin, which belong to the launcher
            process = subprocess.Popen(
                [*leash.command(signal.SIGKILL), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, process_group=0,
            )  # fmt: skip
        self.running[index] = process
        prefix = f"[{index}] ".encode()
        for pipe, printer in zip((process.stdout, process.stderr), self.printers, strict=True):
            self.readers.append(Thread(target=printer.forward, args=(pipe, prefix), daemon=True))
        watcher = Thread(target=self.watch, args=(index, process.pid), daemon=True)
        for thread in (*self.readers[-2:], watcher):
            thread.start()

    def watch(self, index: int, pid: int) -> None:
        """Waits for the end of a process and leaves it unreaped, so that its number stays its own until then."""
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self.from_outside.events.put(index)

    def wait(self) -> None:
        """Returns when all processes have ended, or cannot be ended."""
        while self.running and self.handed != GIVEN_UP:
            left = None if self.deadline == float("inf") else max(0.0, self.deadline - time.monotonic())
            event = self.from_outside.within(left)
            if event is None:
                self.harder()
            elif event < 0:
                self.received(-event)
            else:
                self.ended(event)

    def received(self, number: int) -> None:
        before, self.signals = self.signals, [*self.signals, number]
        if number in IMPATIENT and set(before) & set(IMPATIENT):
            self.hand(KILLED)
        elif not before:
            if self.handed == LET_BE:
                self.hand(ASKED, self.grace)
            fact = f"{name_of(number)}: waiting at most {self.grace:g} s for the processes to stop"
            self.say(f"{fact} (SIGINT or SIGTERM again: at once)")

    def ended(self, index: int) -> None:
        """A process has ended. Another failure than the first changes nothing but how long the others have."""
        process = self.running.pop(index)
        kill_group(process.pid)  # what it has started
        one = Ended(index, process.pid, process.wait(), self.stages[index] if self.stages else "")
        stopped = one.code in STOPPED
        if self.signals:
            if one.code not in (0, -signal.SIGTERM) and not stopped:
                self.spoilt.append(one)
        elif one.code != 0:
            if self.failed is None:
                self.failed, self.others_stopped = one, bool(self.running)
            if stopped and self.handed == LET_BE:
                self.deadline = min(self.deadline, time.monotonic() + self.grace)
            elif self.handed == LET_BE:
                self.hand(ASKED)

    def harder(self) -> None:
        """The time that the processes had is over."""
        left = ", ".join(f"process {index} (pid {one.pid})" for index, one in self.running.items())
        if self.handed == LET_BE:
            self.hand(ASKED)
        elif self.handed == ASKED:
            self.hand(KILLED)
            self.say(f"SIGKILL for {left}: too long since SIGTERM")
        else:
            self.handed = GIVEN_UP
            self.say(f"error: {left} cannot be killed. The system holds what they wait for.")

    def hand(self, what: int, seconds: float | None = None) -> None:
        """Sends SIGTERM to each process, but not to what these started: they end that themselves; or SIGKILL to all.

        seconds: until something harder is sent.
        """
        for process in self.running.values():
            if what == ASKED:
                os.kill(process.pid, signal.SIGTERM)  # not Popen.send_signal, which could reap it
            else:
                kill_group(process.pid)
        self.handed, self.deadline = what, time.monotonic() + (KILL_SECONDS if seconds is None else seconds)

    @property
    def died(self) -> bool:
        """Whether a process failed for no reason that another start would meet again."""
        again = self.failed is not None and self.failed.code not in (BAD_INPUT, *STOPPED)
        return again and not self.signals and not self.running

    def story(self) -> str:
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

    def say(self, sentence: str) -> None:
        self.printers[1].say(sentence)

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kills what is left, and waits a while until what they printed has been written."""
        self.hand(KILLED)
        until = time.monotonic() + LAST_LINES_SECONDS
        for reader in self.readers:
            reader.join(max(0.0, until - time.monotonic()))


def kill_group(pid: int) -> None:
    """Sends SIGKILL to a process and to all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM if all have ended
        os.killpg(pid, signal.SIGKILL)

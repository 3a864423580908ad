"""The processes of one attempt as a process group: started together, and gone together, with all that they started.

The group is that of a keeper, a tiny process that only waits. The keeper reads from a pipe whose other end the launcher
alone holds. When the launcher dies, by kill -9 too, the pipe ends and the keeper has SIGKILL sent to the group. A
process joins the group before it runs its program, so there is no moment at which it could be left behind. One that
leaves the group by setsid escapes, unless the launcher lives and has started it itself.

The group lies in the launcher's session, but not in the terminal's foreground: Ctrl-C reaches only the launcher.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

from fdg_jax.launch.lines import Printer
from fdg_jax.machine.cores import pinned

# The keeper obeys no signal but SIGKILL: whoever stops the training by name or session shall not stop its keeper first.
# A process that was being started when the launcher died can still join the group as long as the group has a member.
# So the keeper's child leaves the group and kills it again and again. Where there are too many processes for this
# child, the keeper kills the group, itself included, once.
KEEPER = """
import os, signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.read(0, 1)
group = os.getpgrp()
try:
    if os.fork():
        time.sleep(5)
    else:
        os.setpgid(0, 0)
        for _ in range(200):
            os.killpg(group, signal.SIGKILL)
            time.sleep(0.01)
except OSError:
    os.killpg(group, signal.SIGKILL)
"""
LAST_LINES_SECONDS = 5.0  # in which what the processes printed last has to be read


class HasEnded(NamedTuple):
    """An event: the process of that number has ended."""

    index: int


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

    `running` has those that have not been reaped yet.

    Arguments:
        commands: the words of each process.
        cores: the cores of each; () leaves a process where it is.
        events: gets a HasEnded for each process, in the order in which they end.
        printers: for stdout and stderr.
        stages: of each process, in words.

    Raises: OSError if a process cannot be started; then none is left.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        cores: Sequence[Collection[int]],
        events: SimpleQueue,
        printers: tuple[Printer, Printer],
        stages: Sequence[str] = (),
    ):
        self.events, self.printers, self.stages = events, printers, stages
        self.running: dict[int, subprocess.Popen] = {}
        self.readers: list[Thread] = []
        quiet = subprocess.DEVNULL
        self.keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", KEEPER],
            stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, process_group=0,
        )  # fmt: skip
        try:
            for index, words in enumerate(commands):
                self.start(index, words, cores[index])
        except BaseException:
            self.close()
            raise

    def start(self, index: int, words: Sequence[str], cores: Collection[int]) -> None:
        with pinned(cores):  # and not while the threads below begin, which belong to the launcher
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                process_group=self.keeper.pid,
            )  # fmt: skip
        self.running[index] = process
        prefix = f"[{index}] ".encode()
        for pipe, printer in zip((process.stdout, process.stderr), self.printers, strict=True):
            self.readers.append(Thread(target=printer.forward, args=(pipe, prefix), daemon=True))
        watcher = Thread(target=self.watch, args=(index, process.pid), daemon=True)
        for thread in (*self.readers[-2:], watcher):
            thread.start()

    def watch(self, index: int, pid: int) -> None:
        """Waits for the end of a process and leaves it unreaped, so that its number stays its own until `reap`."""
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self.events.put(HasEnded(index))

    def reap(self, index: int) -> Ended:
        """How a process ended of which an event said that it has."""
        process = self.running.pop(index)
        return Ended(index, process.pid, process.wait(), self.stages[index] if self.stages else "")

    def send(self, number: int) -> None:
        """Sends a signal to each process, but not to what these started: they end that themselves."""
        for process in self.running.values():
            os.kill(process.pid, number)  # not Popen.send_signal, which could reap it

    def kill(self) -> None:
        """Sends SIGKILL to all processes and to all that they started."""
        self.send(signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM if all have ended
            os.killpg(self.keeper.pid, signal.SIGKILL)

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kills what is left, and waits a while until what they printed has been written."""
        self.kill()
        assert self.keeper.stdin is not None
        self.keeper.stdin.close()
        self.keeper.wait()
        until = time.monotonic() + LAST_LINES_SECONDS
        for reader in self.readers:
            reader.join(max(0.0, until - time.monotonic()))

"""The command `python -m fdg_jax.launch`: starts a training in several processes on this machine.

Exit codes: 0 if all processes ended with 0; 2 for bad input; 130, 143, 129 or 138 after SIGINT, SIGTERM, SIGHUP or
SIGUSR1. Otherwise the exit code of the process that failed first, or 128 + n if signal n killed that process.

The launcher starts all processes together. To end a process, it sends SIGTERM and then, if the process has not ended in
time, SIGKILL. When one process fails, the launcher ends the others, since each needs its neighbours. If the exit code
is 130, 143, 129 or 138, it waits `--grace` seconds first: a signal stopped the process, which has written its
checkpoint, and the others may be about to stop at the same batch. For a process that has already received a signal,
SIGTERM would be the second one, which means "stop at once".

Each process leads its own process group. When a process has ended, the launcher kills its group, so that nothing that
it started is left. If the launcher dies, even by kill -9, the kernel kills the processes (fdg_jax.machine.leash). No
process is in the terminal's foreground, so Ctrl-C reaches only the launcher.

The launcher prints the output of the processes in whole lines, each prefixed with the number of its process. A slow
reader of this output does not stop the training. Output that can no longer be written is dropped. The main thread must
end the processes in time, so it never waits long for a reader.
"""

import contextlib
import io
import itertools
import math
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Collection, Sequence
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import IO, Any, NamedTuple

from fdg_jax.errors import BadInput, reason
from fdg_jax.machine import facts, leash, output
from fdg_jax.machine.child import hold_port, processes_of_stages
from fdg_jax.machine.output import Forgiving
from fdg_jax.machine.signals import IMPATIENT, PATIENT, Signals
from fdg_jax.options.parser import Parser

HOST = "127.0.0.1"
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 60.0  # before a restart; the wait doubles each time
KILL_SECONDS = 5.0  # from SIGTERM to SIGKILL, and from SIGKILL to giving up
LAST_LINES_SECONDS = 5.0  # the longest wait until the processes' last output is printed
PATIENCE_SECONDS = 1.0  # the longest wait of the main thread until a message of its own is read
LOOK_SECONDS = 0.1  # between two checks of deadlines; signals and ends of processes interrupt the wait
STOPPED = {128 + number: number for number in (*IMPATIENT, *PATIENT)}  # exit codes of processes that were stopped
BAD_INPUT = 2
LET_BE, ASKED, KILLED, GIVEN_UP = range(4)  # sent to the processes: nothing, SIGTERM, SIGKILL, SIGKILL in vain

ABOUT = """\
Starts a training in several processes on this machine and ends them together.

  python -m fdg_jax.launch --processes 3 -- -m fdg_jax.experiments.cifar --K 3

starts Python three times with the arguments after --, and adds --coordinator 127.0.0.1:PORT
--processes 3 --process-id I, with a free port and I = 0, 1, 2. Every line that process 1
prints begins with [1]. Each process has its own cores, if there are enough.

If a process fails, the launcher names it and stops the others within 15 s. On Ctrl-C, SIGTERM,
SIGHUP or SIGUSR1 the launcher sends SIGTERM to all processes, so that they save and end. A second
Ctrl-C or SIGTERM kills them. The launcher leaves no process behind; on Linux not even if it is
killed itself.

  python -m fdg_jax.launch --processes 3 --restart 5 -- \\
      -m fdg_jax.experiments.cifar --K 3 --run-dir runs/three

restarts all processes with --resume auto after one has died, at most five times. A program of your
own must accept --resume auto and the three flags above, as examples/several_processes.py does."""
EXAMPLE = "e.g. --processes 3 -- -m fdg_jax.experiments.cifar --K 3"


def parser() -> Parser:
    made = Parser(
        prog="python -m fdg_jax.launch", usage="%(prog)s --processes N [OPTIONS] -- ARGUMENTS FOR PYTHON",
        description=ABOUT
    )
    add = made.add_argument
    add("--processes", type=int, required=True, metavar="N", help="how many processes to start")
    add("--cores", type=int, nargs="+", metavar="CORE", help="cores to use (default: all usable ones; Linux)")
    about = "restart all processes with --resume auto after one has died, at most N times (default: 0), after pauses "
    about += "of 1, 2, 4, ... up to 60 s; not after exit code 2 or a stop by a signal. The command needs --run-dir"
    add("--restart", type=int, default=0, metavar="N", help=about)
    about = "time after a signal for the processes to write a checkpoint and end; then they are killed "
    add("--grace", type=float, default=300.0, metavar="SECONDS", help=f"{about}(default: 300)")
    return made


def planned(arguments: Sequence[str]) -> Namespace:
    """Reads the command line. --help prints the help and raises SystemExit(0).

    Returns: the flags. `words` has Python's arguments from the command line, and `cores` the cores of each process.

    Raises: BadInput if anything is wrong.
    """
    here = list(arguments)
    split = here.index("--") if "--" in here else len(here)
    ours, words = here[:split], here[split + 1 :]
    if not words and not {"-h", "--help"} & set(ours):
        raise BadInput(f"there is nothing to start. Write -- and then the arguments for Python, {EXAMPLE}.")
    given = parser().parse_args(ours)
    if os.name != "posix":
        way_out = "Use Linux or macOS, or start each process with --coordinator, --process-id and --processes"
        raise BadInput(f"this system has no process groups, which the launcher needs. {way_out}.")
    if given.processes < 1:
        raise BadInput(f"--processes {given.processes}: use 1 or more.")
    if given.restart < 0:
        raise BadInput(f"--restart {given.restart}: use 0 or more.")
    if not 0 <= given.grace < math.inf:
        raise BadInput(f"--grace {given.grace:g}: give a number of seconds, 0 or more.")
    if given.restart and not has_flag(words, "--run-dir"):
        raise BadInput("--restart goes on with the run in --run-dir, which is not given. Add --run-dir DIR after --.")
    if (K := number_of_stages(words)) is not None and given.processes > K:
        fact = f"--processes {given.processes}: each process needs a stage, but there are only K={K}"
        raise BadInput(f"{fact}. Use 1 to {K}.")
    given.words, given.cores = words, shares(given.processes, wanted_cores(given.cores))
    return given


def wanted_cores(asked: Sequence[int] | None) -> list[int]:
    """The cores to distribute. Raises BadInput if one of the given cores cannot be used."""
    usable = facts.usable()
    if asked is None:
        return usable
    if not facts.CAN_PIN:
        raise BadInput("--cores: this system cannot pin a process to a core. Leave --cores out.")
    wrong = [core for core in asked if core not in usable]
    if wrong:
        known = " ".join(map(str, usable))
        raise BadInput(f"--cores {' '.join(map(str, wrong))}: not usable here. The usable cores are {known}.")
    return list(dict.fromkeys(asked))


def shares(processes: int, among: Sequence[int]) -> tuple[Collection[int], ...]:
    """The cores of each process: consecutive cores, and nearly the same number of cores for each process. If there are
    fewer cores than processes, each process gets one core, which it may share with others.

    Arguments:
        processes: the number of processes. among: the cores; empty if processes cannot be pinned.
    """
    if len(among) < processes:
        return tuple(among[index % len(among) :][:1] if among else () for index in range(processes))
    ends = [index * len(among) // processes for index in range(processes + 1)]
    return tuple(among[begin:end] for begin, end in itertools.pairwise(ends))


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    output.open_closed_files()
    try:
        given = planned(arguments)
        # If stdout and stderr are one file, they share a lock, so that their lines stay whole.
        lock = Lock()
        out, err = Printer(sys.stdout, lock), Printer(sys.stderr, lock if os.path.sameopenfile(1, 2) else Lock())
        found = {core for share in given.cores for core in share}
        if len(found) < given.processes and found:
            err.say(f"{given.processes} processes share {len(found)} cores, so they take turns and are slower.")
        return run(given, out, err)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: a process could not be started: {reason(error)}.", file=sys.stderr)
        return 1


def run(given: Namespace, out: "Printer", err: "Printer") -> int:
    """Runs the processes to their end. If one fails, starts all again, at most `--restart` times.

    Returns: the exit code of the launcher. Raises: OSError if a process cannot be started.
    """
    words = given.words
    go_on = " Go on with --resume." if has_flag(words, "--run-dir") else ""  # other programs may not know --resume
    with Received() as received:
        for done in itertools.count():
            coordinator, held = hold_port(HOST)
            with held, Group(words, coordinator, given, received, out, err) as group:
                group.wait()
            if received.numbers:
                err.say(f"{group.story()}.{go_on}")
                return 128 + received.numbers[0]
            if not group.failures:
                return 0
            failed = group.failures[0]
            if failed.exit_code == BAD_INPUT:
                err.say(f"error: {group.story()}. Its lines above say what to change.")
                return BAD_INPUT
            if done == given.restart or failed.stopped or group.running:
                err.say(f"{'' if failed.stopped else 'error: '}{group.story()}.{go_on}")
                return failed.exit_code
            seconds, words = min(FIRST_WAIT_SECONDS * 2**done, LONGEST_WAIT_SECONDS), resuming(given.words)
            again = f"All processes are restarted in {seconds:g} s: restart {done + 1} of {given.restart}."
            err.say(f"warning: {group.story()}. {again}")
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                received.pause()
                if received.numbers:
                    err.say(f"no restart.{go_on}")
                    return 128 + received.numbers[0]
    raise AssertionError


def number_of_stages(words: Sequence[str]) -> int | None:
    """The value of --K among the words; None if there is no --K."""
    following = [after for word, after in itertools.pairwise(words) if word == "--K"]
    following += [word.removeprefix("--K=") for word in words if word.startswith("--K=")]
    return int(following[-1]) if following and following[-1].isdecimal() else None


def stages_of(words: Sequence[str], processes: int) -> list[str]:
    """For each process, the stages that it computes, as text for messages; [] if there is no --K among the words."""
    if (K := number_of_stages(words)) is None:
        return []
    where = processes_of_stages(K, processes)
    ends = [(where.index(process) + 1, K - where[::-1].index(process)) for process in range(processes)]
    return [f"stage k={first}, " if first == last else f"stages k={first} to {last}, " for first, last in ends]


def resuming(words: Sequence[str]) -> list[str]:
    """Appends --resume auto to the words, unless they contain --resume."""
    return [*words] if has_flag(words, "--resume") else [*words, "--resume", "auto"]


def has_flag(words: Sequence[str], flag: str) -> bool:
    """Whether a flag is among the words, in a spelling that the training command takes."""
    return any(word.partition("=")[0].replace("_", "-") == flag for word in words)


class Printer:
    """Writes whole lines to a stream, from any number of threads."""

    def __init__(self, stream: Any, lock: Lock):
        self.stream: Any = Forgiving(getattr(stream, "buffer", None))
        self.lock = lock

    def write(self, line: bytes) -> None:
        """Writes a line. line: without its newline."""
        with self.lock:
            self.stream.write(line + b"\n")
            self.stream.flush()

    def say(self, sentence: str) -> None:
        """Writes a sentence of the launcher itself, and waits at most PATIENCE_SECONDS until it is written."""
        thread = Thread(target=self.write, args=(sentence.encode("utf-8", "backslashreplace"),), daemon=True)
        thread.start()
        thread.join(PATIENCE_SECONDS)

    def forward(self, pipe: IO[bytes], prefix: str) -> None:
        r"""Writes what arrives through a pipe until it is closed at its other end. A line ends at \n, \r or \r\n."""
        for line in io.TextIOWrapper(pipe, "latin-1", newline=""):  # this encoding has a character for every byte
            if line != "\r":  # a progress line begins with one
                self.write((prefix + line.rstrip("\r\n")).encode("latin-1"))


class Received(Signals):
    """A context that collects the numbers of received signals, and notices when processes end. Signals that were
    ignored before, as under nohup, stay ignored. SIGCHLD is always handled: if it were ignored, exit codes would be
    lost."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []
        self.news = SimpleQueue[int]()
        signal.signal(signal.SIGCHLD, lambda number, _: self.news.put(number))

    def receive(self, number: int, _frame: object) -> None:
        self.numbers.append(number)
        self.news.put(number)  # a signal handler may put into a SimpleQueue while it interrupts a `get`

    def pause(self) -> None:
        """Waits for a signal or the end of a process, at most LOOK_SECONDS."""
        with contextlib.suppress(Empty):
            self.news.get(timeout=LOOK_SECONDS)


class Failure(NamedTuple):
    """A process that did not end with exit code 0.

    who: its number, stages and pid. code: its exit code, or minus the number of the signal that killed it.
    """

    who: str
    code: int

    @property
    def exit_code(self) -> int:
        """The exit code that a shell would report: 128 + n for signal n."""
        return self.code if self.code >= 0 else 128 - self.code

    @property
    def stopped(self) -> bool:
        """Whether the process was stopped by a signal and has written its checkpoint."""
        return self.code in STOPPED

    def __str__(self) -> str:
        if self.stopped:
            return f"{self.who} was stopped by {name_of(STOPPED[self.code])}"
        how = f"ended with exit code {self.code}" if self.code >= 0 else f"was killed by {name_of(-self.code)}"
        return f"{self.who} {how}"


def name_of(number: int) -> str:
    """A signal's name, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


class Group:
    """A context that starts the processes, and kills those that are left when it ends.

    `failures` has the process that failed first. Once the launcher has received a signal, `failures` has every process
    that fails.

    Arguments:
        words: Python's arguments, without --coordinator, --processes and --process-id.
        coordinator: the address and port at which process 0 is to listen.
        given: the launcher's flags.
        received: collects the launcher's signals.
        out, err: print the processes' stdout and stderr.

    Raises: OSError if a process cannot be started. The other processes have been killed.
    """

    def __init__(
        self, words: Sequence[str], coordinator: str, given: Namespace, received: Received, out: Printer, err: Printer
    ):
        self.received, self.signals, self.out, self.err = received, received.numbers, out, err
        self.grace = given.grace
        self.stages = stages_of(words, given.processes) or [""] * given.processes
        self.running, self.readers = dict[int, subprocess.Popen](), list[Thread]()
        self.failures, self.others_stopped = list[Failure](), False
        self.handed, self.deadline = LET_BE, math.inf
        common = [*words, "--coordinator", coordinator, "--processes", str(given.processes), "--process-id"]
        try:
            for index, own in enumerate(given.cores):
                self.start(index, [*common, str(index)], own)
        except BaseException:
            self.close()
            raise

    def start(self, index: int, words: Sequence[str], own: Collection[int]) -> None:
        with facts.pinned(own):  # only the process is pinned; the threads below belong to the launcher
            process = subprocess.Popen(
                [*leash.command(signal.SIGKILL), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, process_group=0,
            )  # fmt: skip
        self.running[index] = process
        for pipe, printer in ((process.stdout, self.out), (process.stderr, self.err)):
            self.readers.append(Thread(target=printer.forward, args=(pipe, f"[{index}] "), daemon=True))
            self.readers[-1].start()

    def wait(self) -> None:
        """Waits until all processes have ended, or have been given up because they cannot be killed."""
        while self.running and self.handed != GIVEN_UP:
            self.obey_signals()
            for index in [index for index, process in self.running.items() if has_ended(process.pid)]:
                self.ended(index)
            if time.monotonic() > self.deadline:
                self.harder()
            self.received.pause()

    def obey_signals(self) -> None:
        """The first signal asks the processes to stop; a second SIGINT or SIGTERM kills them."""
        if sum(number in IMPATIENT for number in self.signals) > 1 and self.handed < KILLED:
            self.hand(KILLED)
        elif self.signals and self.handed == LET_BE:
            self.hand(ASKED, self.grace)
            fact = f"{name_of(self.signals[0])}: waiting at most {self.grace:g} s for the processes to stop"
            self.err.say(f"{fact} (SIGINT or SIGTERM again stops them at once)")

    def ended(self, index: int) -> None:
        """Handles the end of a process. After the first failure, further failures only change the deadline of the
        remaining processes."""
        process = self.running.pop(index)
        kill_group(process.pid)  # everything that it has started
        one = Failure(f"process {index} ({self.stages[index]}pid {process.pid})", process.wait())
        if self.signals:
            if one.code not in (0, -signal.SIGTERM) and not one.stopped:
                self.failures.append(one)
        elif one.code != 0:
            if not self.failures:
                self.failures, self.others_stopped = [one], bool(self.running)
            if self.handed == LET_BE and one.stopped:
                self.deadline = min(self.deadline, time.monotonic() + self.grace)
            elif self.handed == LET_BE:
                self.hand(ASKED)

    def harder(self) -> None:
        """After a deadline has passed, takes the next step to end the processes: SIGTERM, SIGKILL, giving up."""
        left = ", ".join(f"process {index} (pid {one.pid})" for index, one in self.running.items())
        if self.handed == LET_BE:
            self.hand(ASKED)
        elif self.handed == ASKED:
            self.hand(KILLED)
            self.err.say(f"SIGKILL sent to {left}, which did not end in time after SIGTERM")
        else:
            self.handed = GIVEN_UP
            self.err.say(f"error: {left} cannot be killed: the operating system does not end them.")

    def hand(self, what: int, seconds: float | None = None) -> None:
        """Sends SIGTERM to each process, or SIGKILL to each process group.

        what: ASKED or KILLED. seconds: the time until the next step; None for KILL_SECONDS.
        """
        for process in self.running.values():
            if what == ASKED:
                os.kill(process.pid, signal.SIGTERM)  # Popen.send_signal could reap it
            else:
                kill_group(process.pid)
        self.handed, self.deadline = what, time.monotonic() + (KILL_SECONDS if seconds is None else seconds)

    def story(self) -> str:
        """What happened, without a full stop. Call it only after a signal or a failure."""
        if self.signals:
            return "; ".join([f"stopped by {name_of(self.signals[0])}", *map(str, self.failures)])
        return f"{self.failures[0]}{'; the others were stopped' if self.others_stopped else ''}"

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kills the processes that are left, and waits at most LAST_LINES_SECONDS until their output is printed."""
        self.hand(KILLED)
        until = time.monotonic() + LAST_LINES_SECONDS
        for reader in self.readers:
            reader.join(max(0.0, until - time.monotonic()))


def has_ended(pid: int) -> bool:
    """Whether a process has ended. It is not reaped, so that no other process can get its pid yet."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def kill_group(pid: int) -> None:
    """Sends SIGKILL to a process and to all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM if all have ended
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # sys.exit would wait for threads that wait for a reader of our output

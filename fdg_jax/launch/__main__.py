"""The command `python -m fdg_jax.launch`: starts a training in several processes on this machine.

Exit codes: 0 all processes ended with 0; 2 bad input; 130, 143, 129 and 138 stopped by SIGINT, SIGTERM, SIGHUP and
SIGUSR1; otherwise that of the process that failed first, 128 + n if signal n killed it.
"""

import itertools
import math
import os
import signal
import sys
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from fdg_jax.errors import BadInput, reason
from fdg_jax.launch import lines
from fdg_jax.launch.group import BAD_INPUT, STOPPED, Group, SignalEvents
from fdg_jax.machine import cores, output
from fdg_jax.machine.placement import processes_of_stages
from fdg_jax.machine.ports import hold_port
from fdg_jax.options.parser import Parser

HOST = "127.0.0.1"
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 60.0  # before a restart; the wait doubles each time

ABOUT = """\
Starts a training in several processes on this machine and ends them together.

  python -m fdg_jax.launch --processes 3 -- -m fdg_jax.experiments.cifar --K 3

starts Python three times with the words after --, and adds --coordinator 127.0.0.1:PORT
--processes 3 --process-id I, with a free port and I = 0, 1, 2. Every line that process 1
prints begins with [1]. Each process has cores of its own, if there are enough.

When one process fails, it is named, and the others are stopped within 15 s. Ctrl-C, SIGTERM,
SIGHUP and SIGUSR1 are handed to all as SIGTERM, so that they can save and end; a second one ends
them at once. None is left, on Linux even if the launcher itself is killed.

  python -m fdg_jax.launch --processes 3 --restart 5 -- \\
      -m fdg_jax.experiments.cifar --K 3 --run-dir runs/three

starts again with --resume auto after a process has died, at most five times. A program of your own
has to know that flag and the three above (docs/several-processes.md has one)."""
EXAMPLE = "e.g. --processes 3 -- -m fdg_jax.experiments.cifar --K 3"


class Plan(NamedTuple):
    """What is asked for.

    words: for Python, without the flags of a process. cores: those of each process. grace: see `Group`.
    """

    words: tuple[str, ...]
    cores: tuple[Collection[int], ...]
    restarts: int
    grace: float


def parser() -> Parser:
    made = Parser(
        prog="python -m fdg_jax.launch",
        usage="%(prog)s --processes N [OPTIONS] -- WORDS FOR PYTHON",
        description=ABOUT,
    )
    add = made.add_argument
    add("--processes", type=int, required=True, metavar="N", help="how many processes to start")
    add("--cores", type=int, nargs="+", metavar="CORE", help="cores to share out (default: all usable ones; Linux)")
    about = "start all again after a process has died, with --resume auto, at most N times, after 1, 2, 4, ... up to "
    about += "60 s; not after exit code 2 or a stop by a signal (default: 0). The words need --run-dir"
    add("--restart", type=int, default=0, metavar="N", help=about)
    about = "after a signal, the time for the processes to write a checkpoint and end; what is left is killed "
    add("--grace", type=float, default=300.0, metavar="SECONDS", help=f"{about}(default: 300)")
    return made


def planned(arguments: Sequence[str]) -> Plan:
    """Reads the command line. --help prints and leaves with SystemExit(0).

    Raises: BadInput for whatever is wrong.
    """
    here = list(arguments)
    split = here.index("--") if "--" in here else len(here)
    ours, words = here[:split], tuple(here[split + 1 :])
    wants_help = bool({"-h", "--help"} & set(ours))
    if not words and not wants_help:
        raise BadInput(f"there is nothing to start. Write -- and then the words for Python, {EXAMPLE}.")
    given = parser().parse_args(["--help"] if wants_help else ours)
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
    return Plan(words, shares(given.processes, wanted_cores(given.cores)), given.restart, given.grace)


def wanted_cores(asked: Sequence[int] | None) -> list[int]:
    """The cores to share out. Raises BadInput where one cannot be used."""
    usable = cores.usable()
    if asked is None:
        return usable
    if not cores.CAN_PIN:
        raise BadInput("--cores: this system cannot pin a process to a core. Leave --cores out.")
    wrong = [core for core in asked if core not in usable]
    if wrong:
        known = " ".join(map(str, usable))
        raise BadInput(f"--cores {' '.join(map(str, wrong))}: not usable here. The usable cores are {known}.")
    return list(dict.fromkeys(asked))


def shares(processes: int, among: Sequence[int]) -> tuple[Collection[int], ...]:
    """The cores of each process: neighbouring ones, in numbers that differ by 1 at most; of too few, one each in turns.

    Arguments:
        processes: how many there are. among: the cores; none if processes cannot be pinned.
    """
    if len(among) < processes:
        return tuple(among[index % len(among) :][:1] if among else () for index in range(processes))
    ends = [index * len(among) // processes for index in range(processes + 1)]
    return tuple(among[begin:end] for begin, end in itertools.pairwise(ends))


def run(plan: Plan, printers: tuple[lines.Printer, lines.Printer]) -> int:
    """Runs the processes to their end. After one has died, all are started again, a limited number of times.

    Returns: the exit code of the launcher. Raises: OSError if a process cannot be started.
    """
    say, words, signals = printers[1].say, plan.words, SignalEvents()
    with signals:
        for done in itertools.count():
            coordinator, held = hold_port(HOST)
            each = commands(words, len(plan.cores), coordinator)
            with held, Group(each, plan.cores, signals, printers, stages_of(words, len(each)), plan.grace) as group:
                group.wait()
            if group.signals:
                say(f"{group.story()}.{go_on(plan.words)}")
                return 128 + group.signals[0]
            if group.failed is None:
                return 0
            if done == plan.restarts or not group.died:
                say(last_sentence(group, plan.words))
                return group.failed.exit_code
            seconds, words = min(FIRST_WAIT_SECONDS * 2**done, LONGEST_WAIT_SECONDS), resuming(plan.words)
            again = f"All are started again in {seconds:g} s, restart {done + 1} of {plan.restarts}."
            say(f"warning: {group.story()}. {again}")
            until = time.monotonic() + seconds
            while (left := until - time.monotonic()) > 0:
                if (event := signals.within(left)) is not None and event < 0:
                    say(f"no restart.{go_on(plan.words)}")
                    return 128 - event
    raise AssertionError


def last_sentence(group: Group, words: Sequence[str]) -> str:
    """How an attempt failed, and how to go on. words: for Python."""
    assert group.failed is not None
    if group.failed.code == BAD_INPUT:
        return f"error: {group.story()}. What it printed above says what to change."
    return f"{'' if group.failed.code in STOPPED else 'error: '}{group.story()}.{go_on(words)}"


def go_on(words: Sequence[str]) -> str:
    """A sentence, to follow another one, for a program that has a run directory; others may not know --resume."""
    return " Go on with --resume." if has_flag(words, "--run-dir") else ""


def commands(words: Sequence[str], count: int, coordinator: str) -> list[list[str]]:
    """The words of each of so many processes. coordinator: address and port, where the first of them is to listen."""
    common = [*words, "--coordinator", coordinator, "--processes", str(count), "--process-id"]
    return [[*common, str(index)] for index in range(count)]


def stages_of(words: Sequence[str], processes: int) -> list[str]:
    """Which stages each process computes, in words for `Ended`; [] where --K is not among the words."""
    following = [after for word, after in itertools.pairwise(words) if word == "--K"]
    following += [word.removeprefix("--K=") for word in words if word.startswith("--K=")]
    if not following or not following[-1].isdecimal() or int(following[-1]) < processes:
        return []
    K = int(following[-1])
    where = processes_of_stages(K, processes)
    ends = [(where.index(process) + 1, K - where[::-1].index(process)) for process in range(processes)]
    return [f"stage k={first}, " if first == last else f"stages k={first} to {last}, " for first, last in ends]


def resuming(words: Sequence[str]) -> tuple[str, ...]:
    """The words with --resume auto, unless they have --resume already."""
    return tuple(words) if has_flag(words, "--resume") else (*words, "--resume", "auto")


def has_flag(words: Sequence[str], flag: str) -> bool:
    """Whether a flag is among the words, in a spelling that the training command takes."""
    return any(word.partition("=")[0].replace("_", "-") == flag for word in words)


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    output.open_closed_files()
    try:
        plan = planned(arguments)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by a careless parent, it would hide all exit codes
        printers = lines.printers()
        found = {core for share in plan.cores for core in share}
        if len(found) < len(plan.cores) and found:
            printers[1].say(f"{len(plan.cores)} processes share {len(found)} cores in turns; they will be slower.")
        return run(plan, printers)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: a process could not be started: {reason(error)}.", file=sys.stderr)
        return 1


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # not sys.exit, which waits for threads that wait for a reader of our output

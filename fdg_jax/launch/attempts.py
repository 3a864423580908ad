"""Attempts one after the other: after a process has died, all are started again, a limited number of times."""

import itertools
import sys
import time
from collections.abc import Collection, Sequence
from queue import Empty, SimpleQueue
from typing import NamedTuple

from fdg_jax.launch.attempt import BAD_INPUT, STOPPED, Attempt, Received, SignalEvents
from fdg_jax.launch.group import Group
from fdg_jax.launch.lines import Printer
from fdg_jax.machine.placement import processes_of_stages
from fdg_jax.machine.ports import hold_port

HOST = "127.0.0.1"
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 60.0  # before a restart; the wait doubles each time


class Plan(NamedTuple):
    """What is asked for.

    words: for Python, without the flags of a process. cores: those of each process. grace: see `Attempt`.
    """

    words: tuple[str, ...]
    cores: tuple[Collection[int], ...]
    restarts: int
    grace: float


def run(plan: Plan, printers: tuple[Printer, Printer]) -> int:
    """Runs the processes to their end, with restarts. Returns the exit code of the launcher.

    Raises: OSError if a process cannot be started.
    """
    events, say = SimpleQueue(), printers[1].say
    with SignalEvents(events):
        done, words = 0, plan.words
        while True:
            stages = stages_of(words, len(plan.cores))
            coordinator, held = hold_port(HOST)
            each = commands(words, len(plan.cores), coordinator)
            with held, Group(each, plan.cores, events, printers, stages) as group:
                attempt = Attempt(group, events, plan.grace, say)
                attempt.wait()
            if attempt.signals:
                say(f"{attempt.told()}.{go_on(plan.words)}")
                return 128 + attempt.signals[0]
            if attempt.failed is None:
                return 0
            if done == plan.restarts or not attempt.died:
                say(last_sentence(attempt, plan.words))
                return attempt.failed.exit_code
            seconds = min(FIRST_WAIT_SECONDS * 2**done, LONGEST_WAIT_SECONDS)
            done, words = done + 1, resuming(plan.words)
            again = f"All are started again in {seconds:g} s, restart {done} of {plan.restarts}."
            say(f"warning: {attempt.told()}. {again}")
            number = signal_within(seconds, events)
            if number is not None:
                say(f"no restart.{go_on(plan.words)}")
                return 128 + number


def last_sentence(attempt: Attempt, words: Sequence[str]) -> str:
    """How an attempt failed, and how to go on. words: for Python."""
    assert attempt.failed is not None
    if attempt.failed.code == BAD_INPUT:
        return f"error: {attempt.told()}. What it printed above says what to change."
    return f"{'' if attempt.failed.code in STOPPED else 'error: '}{attempt.told()}.{go_on(words)}"


def go_on(words: Sequence[str]) -> str:
    """A sentence, to follow another one, for a program that has a run directory; others may not know --resume."""
    return " Go on with --resume." if has_flag(words, "--run-dir") else ""


def commands(words: Sequence[str], count: int, coordinator: str) -> list[list[str]]:
    """The words of each of so many processes. coordinator: address and port, where the first of them is to listen."""
    common = [sys.executable, *words, "--coordinator", coordinator, "--processes", str(count), "--process-id"]
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


def signal_within(seconds: float, events: SimpleQueue) -> int | None:
    """Waits, or returns at once the number of a signal that comes."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        try:
            event = events.get(timeout=left)
        except Empty:
            break
        if isinstance(event, Received):
            return event.number
    return None

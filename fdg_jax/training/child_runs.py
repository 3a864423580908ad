"""Makes several runs, each by a training command in a process of its own: one after the other, or one a core.

The output of a run goes to a log beside its directory. A stop (Ctrl-C, SIGTERM) is passed on once, so that each run
under way ends with a checkpoint and can be gone on with. When this process is killed, its runs are told to stop
(Linux).
"""

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from fdg_jax.errors import BadInput
from fdg_jax.machine import child
from fdg_jax.machine.child import Child
from fdg_jax.machine.cores import CAN_PIN, usable
from fdg_jax.machine.signals import Signals

TELL_SECONDS, POLL_SECONDS, BAD_INPUT = 60.0, 0.2, 2


class Planned(NamedTuple):
    """A run to be made.

    command(): called just before the start; the words of the command after the interpreter, and "started" or
        "continued". None if there is nothing to do, which it says itself: another process may be at the same runs.
    """

    name: str
    log: Path
    command: Callable[[], tuple[list[str], str] | None]


def make_all(planned: Sequence[Planned], jobs: int, signals: Signals, folder: Path | None = None) -> int:
    """Makes the runs, `jobs` at a time, each on a core of its own if they are several.

    Arguments:
        folder: in which the commands are started; None: this one.

    Returns: the exit code. 0: all went well; 128 + the signal's number: stopped; else that of the first that failed.
    """
    cores, queue, going, codes = cores_for(jobs), deque(planned), list[Child](), list[int]()
    last_look = time.monotonic()
    try:
        while going or queue:
            if signals.number is not None:
                return stop(going, signals.number)
            if queue and len(going) < jobs:
                one = queue.popleft()
                if (words := one.command()) is not None:
                    taken = {core for each in going for core in each.cores}
                    core = next(core for core in cores if core is None or core not in taken)
                    going.append(start(one, *words, core, folder, jobs == 1))
                continue
            time.sleep(POLL_SECONDS)
            if time.monotonic() - last_look > TELL_SECONDS:
                last_look = time.monotonic()
                for one in going:
                    print(f"{one.name}: {last_line(one.log)}", flush=True)
            for ended in [one for one in going if not one.running]:
                going.remove(ended)
                codes.append(finish(ended))
                if codes[-1] == BAD_INPUT and queue:
                    print(f"not starting the other {len(queue)}, which would likely be refused as well")
                    queue.clear()
    except BaseException:  # a run that is refused only now, say: those under way are not left to themselves
        stop(going, signal.SIGTERM)
        raise
    return next((code for code in codes if code), 0)


def cores_for(jobs: int) -> list[int | None]:
    """One core for each of several jobs; a single job is not pinned."""
    if jobs < 1:
        raise BadInput(f"--jobs {jobs}: use 1 or more.")
    if jobs == 1 or not CAN_PIN:
        return [None] * jobs
    cores = usable()
    if jobs > len(cores):
        raise BadInput(f"--jobs {jobs}: each run gets a core, and there are {len(cores)}. Use 1 to {len(cores)}.")
    return list(cores[:jobs])


def start(
    one: Planned, words: Sequence[str], how: str, core: int | None, folder: Path | None, alone: bool
) -> Child:
    """Starts a run. words: after the interpreter. how: "started" or "continued". alone: no other one at a time."""
    where = "" if core is None else f" on core {core}"
    print(f"{one.name}: {how}{where}, log in {one.log}", flush=True)
    # JAX takes most of a GPU's memory at once, unless it is told that others want some.
    env = None if alone else {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    cores = [] if core is None else [core]
    return Child(words, one.name, env=env, cores=cores, log=one.log, stop=signal.SIGTERM, folder=folder)


def stop(going: Sequence[Child], number: int) -> int:
    """Passes the signal on and waits for the checkpoints."""
    for one in going:
        one.process.send_signal(number)
    for one in going:
        one.process.wait()
        finish(one)
    print("stopped; the same command goes on from here", flush=True)
    return 128 + number


def finish(one: Child) -> int:
    """Says how a run has ended; returns its exit code."""
    code = one.process.returncode
    how = "finished" if code == 0 else f"ended with exit code {code}"
    print(f"{one.name}: {how}: {last_line(one.log)}", flush=True)
    return code


def last_line(log: Path | None) -> str:
    """The newest line of a log that says how training stands, or how it ended."""
    return child.last_line(log, ("epoch ", "done:", "error:", "stopped by")) if log else ""

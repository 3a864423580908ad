"""Makes the runs that a table lacks: starts the missing ones and continues interrupted ones, one process per core.

Each run is the command that `list` shows, in a process of its own, whose output goes to <runs-dir>/<name>.log. A stop
(Ctrl-C, SIGTERM) is passed on once, so that each run ends with a checkpoint and can be continued.
"""

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.harness.run_table import CUT_OFF, DONE, MISSING, ROOT, RUNNING, Run, command, state
from fdg_jax.errors import BadInput
from fdg_jax.machine.cores import pinned
from fdg_jax.training.signals import Signals

TELL_SECONDS, POLL_SECONDS, BAD_INPUT = 60.0, 0.2, 2
ORDER = {DONE: 0, RUNNING: 0, CUT_OFF: 1, MISSING: 2}  # those that are skipped, with a message, come first


class Going(NamedTuple):
    """A run under way.

    core: which one it has to itself; None if it has none.
    """

    run: Run
    process: subprocess.Popen
    log: Path
    core: int | None


def run_missing(runs: Sequence[Run], runs_dir: Path, data_dir: str | None, jobs: int) -> int:
    """Makes all runs that are neither done nor being made by another process, `jobs` at a time.

    Returns: the exit code. 0: all went well; 128 + the signal's number: stopped; else that of the first that failed.
    """
    cores = cores_for(jobs)
    runs_dir = runs_dir.resolve()
    data_dir = str(Path(data_dir).expanduser().resolve()) if data_dir else None  # the runs start in another directory
    queue = deque(sorted(runs, key=lambda run: ORDER[state(run, runs_dir).kind]))
    going: list[Going] = []
    codes: list[int] = []
    last_look = time.monotonic()
    with Signals() as signals:
        while going or queue:
            if signals.number is not None:
                return stop(going, signals.number)
            if queue and len(going) < jobs:
                taken = [one.core for one in going if one.core is not None]
                run = queue.popleft()
                now = state(run, runs_dir)  # another process may be at the same table
                if now.kind in (DONE, RUNNING):
                    print(f"{run.name}: {now}", flush=True)
                    continue
                core = next(core for core in cores if core not in taken)
                going.append(start(run, runs_dir, data_dir, now.kind == CUT_OFF, core))
                continue
            time.sleep(POLL_SECONDS)
            if time.monotonic() - last_look > TELL_SECONDS:
                last_look = time.monotonic()
                tell(going)
            for ended in [one for one in going if one.process.poll() is not None]:
                going.remove(ended)
                codes.append(finish(ended))
                if codes[-1] == BAD_INPUT and queue:
                    print(f"not starting the other {len(queue)}, which would likely be refused as well")
                    queue.clear()
    return next((code for code in codes if code), 0)


def cores_for(jobs: int) -> list[int | None]:
    """One core for each of several jobs; a single job is not pinned."""
    if jobs < 1:
        raise BadInput(f"--jobs {jobs}: use 1 or more.")
    if jobs == 1 or not hasattr(os, "sched_setaffinity"):
        return [None] * jobs
    cores = sorted(os.sched_getaffinity(0))
    if jobs > len(cores):
        raise BadInput(f"--jobs {jobs}: each run gets a core, and there are {len(cores)}. Use 1 to {len(cores)}.")
    return list(cores[:jobs])


def start(run: Run, runs_dir: Path, data_dir: str | None, resume: bool, core: int | None) -> Going:
    log = runs_dir / f"{run.name}.log"
    words = [sys.executable, *command(run, data_dir, str(runs_dir / run.name), resume)[1:]]
    where = "" if core is None else f" on core {core}"
    print(f"{run.name}: {'continued' if resume else 'started'}{where}, log in {log}", flush=True)
    runs_dir.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file, pinned([] if core is None else [core]):
        # A session of its own: Ctrl-C in the terminal reaches this process only, which hands it on once (a
        # second signal would make the run leave without a checkpoint).
        process = subprocess.Popen(
            words, cwd=ROOT, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
        )  # fmt: skip
    return Going(run, process, log, core)


def stop(going: Sequence[Going], number: int) -> int:
    """Passes the signal on and waits for the checkpoints."""
    for one in going:
        one.process.send_signal(number)
    for one in going:
        one.process.wait()
        finish(one)
    print("stopped; the same command goes on from here", flush=True)
    return 128 + number


def finish(one: Going) -> int:
    code = one.process.returncode
    how = "finished" if code == 0 else f"ended with exit code {code}"
    print(f"{one.run.name}: {how}: {last_line(one.log)}", flush=True)
    return code


def tell(going: Sequence[Going]) -> None:
    for one in going:
        print(f"{one.run.name}: {last_line(one.log)}", flush=True)


def last_line(log: Path) -> str:
    """The newest line of a log that says how training stands, or how it ended."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("epoch ", "done:", "error:", "stopped by"))]
    return (telling or lines or ["nothing yet"])[-1]

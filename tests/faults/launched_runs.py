"""The runs of `fault_runs` in several processes that the launcher starts: any of them is struck at a chosen moment.

Each process has one core, so all compute as one process on one core does.
"""

import os
import signal
import time
from pathlib import Path
from random import Random

from cifar_processes import QUICK
from fault_runs import Config, Process, newest
from training_processes import pids

EPOCHS, EPOCH = 4, 3
STEPS = EPOCHS * EPOCH
AHEAD = 3  # batches from the newest checkpoint within which a process is struck


class Launched(Process):
    """A run in so many processes that begins in a run directory, or goes on there.

    Arguments:
        count: the number of processes. restarts: how often the launcher starts them again.
        The others are those of `Process`.
    """

    environment = QUICK

    def __init__(self, path: Path, config: Config, cache: Path, count: int, *more: str, restarts: int = 0):
        cores = map(str, sorted(os.sched_getaffinity(0))[:2])
        launch = ["-m", "fdg_jax.launch", "--processes", str(count), "--restart", str(restarts), "--cores", *cores]
        self.launcher = [*launch, "--"]
        self.count, self.compiled = count, 0
        epochs = () if (path / "config.json").exists() else ("--epochs", str(EPOCHS))
        super().__init__(path, config, cache, *epochs, *more)

    def seen(self, phase: str, step: int) -> bool:
        if phase == "compile":
            return self.times_compiled() > self.compiled
        return super().seen(phase, step)

    def times_compiled(self) -> int:
        return self.out.read_text().count("compiling...\n")

    def processes(self, seconds: float = 120) -> list[int]:
        """Their pids, once all are there; none if the launcher has ended."""
        until = time.monotonic() + seconds
        while len(found := pids(self.popen)) < self.count:
            if self.popen.poll() is not None:
                return []
            assert time.monotonic() < until, self.told()
            time.sleep(0.002)
        return found

    def kill(self, number: int, phase: str, step: int, delay: float) -> bool:
        """kill -9 of a process so long after a phase is seen; False where the run has ended by then. Call it again only
        for what the launcher has started since."""
        if not self.processes():
            return False
        if not self.wait_for(phase, step):
            return False
        time.sleep(delay)
        there = pids(self.popen)
        if len(there) < self.count:
            return False
        os.kill(there[number], signal.SIGKILL)
        self.wait_until_gone(there)
        self.compiled, self.began = self.times_compiled(), time.time()
        return True

    def wait_until_gone(self, there: list[int], seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while left := [pid for pid in there if os.path.exists(f"/proc/{pid}")]:
            assert time.monotonic() < until, f"{left} are still there: {self.told()}"
            time.sleep(0.002)


def moment(random: Random, phase: str, path: Path, seconds: dict[str, float]) -> tuple[int, float]:
    """(step, delay) of a random moment in a phase of a run that has come so far; as `fault_runs.moment`."""
    before = max(newest(path), 0)
    end_of_epoch = before - before % EPOCH + EPOCH
    step = end_of_epoch if phase == "evaluate" else before + random.randint(1, AHEAD)
    return min(step, STEPS), random.uniform(0, seconds[phase])

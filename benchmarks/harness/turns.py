"""Processes that take turns: each side trains for a window while the others sleep."""

import argparse
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.harness import report, side_specs
from benchmarks.harness.side_specs import Side
from fdg_jax.errors import BadInput
from fdg_jax.machine.cores import core_seconds, others_percent

ROOT = Path(__file__).resolve().parents[2]
CALIBRATION_BATCHES = 4  # warm ones, to find how many batches fill a window


class WorkerDied(Exception):
    """A side's process ended without an answer."""


class Worker:
    """The process of a side, and its newest answer. environment: of the process, beside what its side wants."""

    def __init__(self, side: Side, cores: Sequence[int], environment: Mapping[str, str] | None = None):
        self.side, self.cores, self.windows = side, list(cores[: side.cores]), list[dict[str, Any]]()
        self.operations: dict[str, Any] = {}  # what each takes by itself, if it was asked
        self.held: dict[str, Any] = {}  # the bytes of its arrays, likewise
        ours = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.cores)  # inherited, so that every thread pool is made for that many cores
        try:
            self.process = subprocess.Popen(
                [side.interpreter or sys.executable, "-m", side.worker, json.dumps(dataclasses.asdict(side))],
                cwd=ROOT,
                env={**side_specs.environment(side), **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is for the parent, which ends its workers
            )
        finally:
            os.sched_setaffinity(0, ours)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:  # not reaped, so its number is still its own
            os.killpg(self.process.pid, signal.SIGKILL)  # with the ranks that it may have started
        self.process.wait()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            raise WorkerDied(f"side {self.side.name} ended with exit code {code}; what it said is above")
        reply = json.loads(line)
        if "refused" in reply:
            raise BadInput(f"side {self.side.name}: {reply['refused']}")
        return reply

    def start(self, seconds: float) -> None:
        """Waits until the process is compiled and warm. Then finds how many batches make a window."""
        self.about = self.answer()
        self.batches = CALIBRATION_BATCHES
        reply = self.run()
        self.batches = max(2, math.ceil(seconds * reply.get("batches", self.batches) / reply["seconds"]))

    def run(self) -> dict[str, Any]:
        return self.ask({"run": self.batches})

    def ask(self, what: dict[str, int]) -> dict[str, Any]:
        self.tell(what)
        return self.answer()

    def tell(self, what: dict[str, int]) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # answer() says what happened

    def window(self) -> None:
        before, start = core_seconds(self.cores), time.perf_counter()
        reply = self.run()
        by_core = [after - then for after, then in zip(core_seconds(self.cores), before, strict=True)]
        if not math.isfinite(reply["loss"]):
            raise WorkerDied(f"side {self.side.name}: the loss is {reply['loss']}, so it trains nothing")
        window = time.perf_counter() - start
        reply["images_per_second"] = reply.get("batches", self.batches) * self.side.batch_size / reply["seconds"]
        reply["busy_percent"] = 100 * reply["busy_seconds"] / (len(self.cores) * reply["seconds"])
        reply["others_percent"] = others_percent(by_core, reply["busy_seconds"], window)
        reply["core_percent"] = [100 * seconds / window for seconds in by_core]
        self.windows.append(reply)

    def time_operations(self, batches: int) -> dict[str, Any]:
        """The time of each operation alone, with the percentage of core time that others took meanwhile."""
        before, start = core_seconds(self.cores), time.perf_counter()
        reply = self.ask({"operations": batches})
        by_core = [after - then for after, then in zip(core_seconds(self.cores), before, strict=True)]
        return {**reply, "others_percent": others_percent(by_core, reply["busy_seconds"], time.perf_counter() - start)}

    def column(self, name: str) -> list[Any]:
        return [window[name] for window in self.windows]


def started(stack: ExitStack, side: Side, cores: Sequence[int], seconds: float) -> Worker:
    """Starts the side's process and waits until it is compiled and warm; the stack ends it."""
    say(f"{side.name}: compiling, on {side.cores} core{'s' * (side.cores > 1)}")
    worker = stack.enter_context(Worker(side, cores))
    worker.start(seconds)
    return worker


def measure(
    sides: Sequence[Side], cores: Sequence[int], windows: int, seconds: float, operations: int = 0, held: bool = False
) -> list[Worker]:
    """Lets the sides' processes take turns.

    operations: over how many batches each side's operations are timed afterwards, one at a time.
    held: whether the bytes of each side's arrays are counted after that.

    Returns: the workers, finished, with their windows.
    """
    with ExitStack() as stack:
        workers = [started(stack, side, cores, seconds) for side in sides]
        same_network(workers)
        take_turns(workers, windows)
        for worker in workers if operations else []:
            worker.operations = worker.ask({"operations": operations})
        for worker in workers if held else []:
            worker.held = worker.ask({"held": 2})
        return workers


def take_turns(workers: Sequence[Worker], windows: int) -> None:
    """Lets every side train for so many windows, one at a time."""
    for turn in range(windows):
        # Back and forth, so that a machine that slowly gets faster or slower favours no side.
        for worker in workers if turn % 2 == 0 else reversed(workers):
            worker.window()
        speeds = "  ".join(f"{w.side.name} {w.windows[-1]['images_per_second']:.1f}" for w in workers)
        say(f"turn {turn + 1} of {windows}, images/s: {speeds}")


def same_network(workers: Sequence[Worker]) -> None:
    """Raises WorkerDied if a side trains another number of parameters than the first."""
    first, *others = workers
    for other in others:
        if other.about["parameters"] != first.about["parameters"]:
            counts = f"{other.about['parameters']} parameters and {first.side.name} {first.about['parameters']}"
            raise WorkerDied(f"side {other.side.name} trains {counts}: not the same network, nothing to compare.")


def command(
    made: argparse.ArgumentParser, measure: Callable[..., Any], table: Callable[..., str], arguments: list[str] | None
) -> int:
    """`report.run` for a benchmark that compares processes. One that died is a message; Ctrl-C ends them all."""
    try:
        return report.run(made, measure, table, arguments)
    except WorkerDied as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

"""Sides that take turns. They are processes, each of which trains while the others sleep, or functions in one
process."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarks.harness import children, report, side_specs
from fdg_jax.errors import BadInput
from fdg_jax.machine.facts import core_seconds, others_percent

CALIBRATION_BATCHES = 4  # warm batches, to find how many fill a window


class Worker(children.Child):
    """The process of a side, and its windows. environment: further variables of the process."""

    def __init__(self, side: side_specs.Side, cores: Sequence[int], environment: Mapping[str, str] | None = None):
        self.side, self.cores, self.windows = side, list(cores[: side.cores]), list[dict[str, Any]]()
        self.held: dict[str, Any] = {}  # the bytes of its arrays, if they were measured
        words, env = side_specs.words(side), {**side_specs.environment(side), **(environment or {})}
        super().__init__(words, f"side {side.name}", env=env, cores=self.cores, interpreter=side.interpreter)

    def ready(self) -> "Worker":
        """Waits until the process is compiled and warm."""
        self.about = self.answer()
        return self

    def calibrate(self, seconds: float) -> None:
        """Finds how many batches make a window."""
        self.batches = CALIBRATION_BATCHES
        reply = self.run()
        self.batches = max(2, math.ceil(seconds * reply.get("batches", self.batches) / reply["seconds"]))

    def run(self) -> dict[str, Any]:
        return self.ask({"run": self.batches})

    def watched(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """An answer, with two percentages of its cores' time: the busy time, and the time that other processes took."""
        before, start = core_seconds(self.cores), time.perf_counter()
        reply = ask()
        by_core = [after - then for after, then in zip(core_seconds(self.cores), before, strict=True)]
        length = time.perf_counter() - start
        reply["others_percent"] = others_percent(by_core, reply["busy_seconds"], length)
        return reply | {"core_percent": [100 * seconds / length for seconds in by_core]}

    def window(self) -> None:
        reply = self.watched(self.run)
        if not math.isfinite(reply["loss"]):
            raise children.ChildFailed(f"side {self.side.name}: the loss is {reply['loss']}, so it trains nothing")
        reply["images_per_second"] = reply.get("batches", self.batches) * self.side.batch_size / reply["seconds"]
        reply["busy_percent"] = 100 * reply["busy_seconds"] / (len(self.cores) * reply["seconds"])
        self.windows.append(reply)

    def time_operations(self, batches: int) -> dict[str, Any]:
        """The time of each operation alone, with the percentage of core time that others took meanwhile."""
        return self.watched(lambda: self.ask({"operations": batches}))

    def column(self, name: str) -> list[Any]:
        return [window[name] for window in self.windows]


@contextmanager
def started(
    sides: Sequence[side_specs.Side], cores: Sequence[int], seconds: float | None = None,
    left_out: dict[str, str] | None = None,
) -> Iterator[list[Worker]]:  # fmt: skip
    """A context with the sides' processes, compiled and warm.

    Arguments:
        seconds: the length of a window; None: the caller sets the number of batches.
        left_out: gets, for each side that could not start, the reason; such sides are left out. None: the error is
            raised.

    Raises: ChildFailed and BadInput of a side. ChildFailed if a side's number of parameters differs from the first
        side's.
    """
    with ExitStack() as stack:
        report.say(f"compiling {', '.join(side.name for side in sides)}")
        workers = [stack.enter_context(Worker(side, cores)) for side in sides]
        for step in (Worker.ready, lambda worker: seconds and worker.calibrate(seconds)):
            for worker in workers:
                with forgiven(worker, left_out):
                    step(worker)
            workers = left(workers, left_out)
        same_network(workers)
        yield workers


@contextmanager
def forgiven(worker: Worker, left_out: dict[str, str] | None) -> Iterator[None]:
    """A context in which a side may fail, if `left_out` collects the reason."""
    try:
        yield
    except (children.ChildFailed, BadInput) as error:
        if left_out is None:
            raise
        left_out[worker.side.name] = str(error)


def left(workers: Sequence[Worker], left_out: Mapping[str, str] | None) -> list[Worker]:
    """The workers that are not left out. Raises ChildFailed if the first is left out, as it is the baseline."""
    if left_out and workers[0].side.name in left_out:
        raise children.ChildFailed(left_out[workers[0].side.name])
    return [worker for worker in workers if worker.side.name not in (left_out or ())]


def back_and_forth(turns: int, each: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Yields (turn, one of `each`), alternately forwards and backwards, so that a slow drift of the machine's speed
    favours no side."""
    for turn in range(turns):
        for one in each if turn % 2 == 0 else list(each)[::-1]:
            yield turn, one


def take_turns(workers: Sequence[Worker], windows: int, left_out: dict[str, str] | None = None) -> list[Worker]:
    """Lets every side train for so many windows, one at a time. Returns the sides that are not left out (see
    `started`)."""
    for turn, worker in back_and_forth(windows, workers):
        if worker.side.name not in (left_out or ()):
            with forgiven(worker, left_out):
                worker.window()
                speed = worker.windows[-1]["images_per_second"]
                report.say(f"turn {turn + 1} of {windows}, {worker.side.name}: {speed:.1f} images/s")
    return left(workers, left_out)


def same_network(workers: Sequence[Worker]) -> None:
    """Raises ChildFailed if the sides do not train the same number of parameters."""
    first, *others = workers
    for other in others:
        if other.about["parameters"] != first.about["parameters"]:
            counts = f"{other.about['parameters']} parameters and {first.side.name} {first.about['parameters']}"
            raise children.ChildFailed(f"side {other.side.name} trains {counts}: not the same network.")


def compared(
    steps: Mapping[str, Callable[[], Any]], turns: int, size: int, host_only: bool = False
) -> dict[str, float]:
    """The time of a step of two sides, which take turns in this process, and the ratio of the second side's time to the
    first's.

    Arguments:
        steps: for each side, a function that makes a step and returns arrays that are ready when the step is done.
        turns: the number of turns. Two more come first, to compile and warm up.
        size: steps of a turn.
        host_only: whether only the host's time is counted, not the wait for the device.

    Returns: the median milliseconds of each side, and the median of the ratios with their quartiles.
    """
    import jax  # here, as the parents of measured processes do without it

    taken: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(turns + 2):
        for name, step in steps.items():
            start = time.perf_counter()
            for _ in range(size):
                last = step()
            host = time.perf_counter() - start
            jax.block_until_ready(last)
            seconds = host if host_only else time.perf_counter() - start
            if turn > 1:
                taken[name].append(seconds / size)
    ratios = sorted(b / a for a, b in zip(*taken.values(), strict=True))
    costs = {f"{name}_milliseconds": round(1e3 * statistics.median(each), 4) for name, each in taken.items()}
    quartiles = {"ratio": statistics.median(ratios), "low": ratios[turns // 4], "high": ratios[-1 - turns // 4]}
    return costs | {name: round(value, 3) for name, value in quartiles.items()}

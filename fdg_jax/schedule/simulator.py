"""Predicts how fast a schedule runs on real devices, by a discrete-event simulation of stages, links and hosts.

`fdg_jax.schedule.ideal` assumes free communication and even stages. Here each operation takes a given time
(`hardware.Machine`), and messages travel over links. The host thread of each process dispatches its stages' operations
in the schedule's order, and may be the bottleneck. Emulated devices may share a few cores. The code is pure Python;
numbers may be Fractions.

    #  stage  runs its operations in dispatch order; each begins when it is dispatched and its messages are there
    #  link   from stage k to stage j: sends one message after the other, each in bytes * seconds_per_byte; a message
    #         arrives latency_seconds later. Transfers that do not overlap occupy the sending stage, latency included
    #  host   dispatches one operation after the other, and waits while too many losses (`run_ahead`) are unread. A loss
    #         travels from stage K to the other processes; it takes the latency, but no bandwidth

The simulation ignores limits of memory, links that share a bus or a network card, and the core that a host thread
occupies.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fdg_jax.schedule import Schedule
from fdg_jax.schedule.hardware import NO_LINK, Link, Machine, Number, check_machine, slowest
from fdg_jax.schedule.tasks import Task, tasks_of

__all__ = ["NO_LINK", "Event", "Link", "Machine", "Prediction", "predict", "slowest"]


class Event(NamedTuple):
    """A simulated task, which ran from `begin` to `end`, in seconds.

    what: an operation's kind; "enter"; "U" (an update); "send" (to stage `to`) or "loss" (to the process of stage
        `to`); or "host" (a dispatch for stage k).
    """

    what: str
    k: int
    batch: int
    begin: Number
    end: Number
    to: int = 0


class Prediction(NamedTuple):
    """A run in its steady state. Lists are over the stages k = 1..K.

    seconds: per batch, which is also per tick, because one batch enters at every tick.
    utilisation: the fraction of time in which a stage computes (or sends, if transfers do not overlap).
    bubble: 1 - the mean utilisation.
    kept: the most batches that a stage keeps at a time.
    waiting: the most bytes of messages on the way to a stage or waiting there.
    links: {(k, j): the fraction of time in which bytes go from stage k to stage j}. Latency does not occupy a link.
    limits: seconds per batch that the slowest stage, the busiest link and the busiest host would each need alone.
    events: all events, in dispatch order.

    There is no steady state if `run_ahead` is None and a stage is slower than the stages before it. Then more and more
    messages wait, and `waiting` and `utilisation` depend on the number of simulated batches.
    """

    seconds: Number
    utilisation: list[Number]
    bubble: Number
    kept: list[int]
    waiting: list[Number]
    links: dict[tuple[int, int], Number]
    limits: dict[str, Number]
    events: list[Event]

    @property
    def limiting(self) -> str:
        """What limits the speed: "stage", "link" or "host" if the run is within 1% of that limit, else "waiting"."""
        most = max(self.limits, key=lambda name: self.limits[name])
        return most if self.seconds <= self.limits[most] * 1.01 else "waiting"


def run(tasks: Sequence[Task], machine: Machine) -> None:
    """Sets the begin and the end of each task. Each queue works on its tasks in the order of `tasks`."""
    _Run(tasks, machine).complete()


class _Run:
    """A simulated run. `now` is the time in seconds."""

    def __init__(self, tasks: Sequence[Task], machine: Machine):
        self.machine, self.queues = machine, dict[Any, deque[Task]]()
        for task in tasks:
            self.queues.setdefault(task.queue, deque()).append(task)
        self.coming: list[tuple[Number, int, bool, Task]] = []  # (when, tie-break, a message arrives?, task)
        self.running: list[Task] = []  # tasks on shared cores; their speed depends on their number
        self.count, self.now = 0, tasks[0].seconds * 0 if tasks else 0

    def complete(self) -> None:
        """Simulates until no task is left."""
        for queue in list(self.queues.values()):
            self.start(queue[0])
        while self.coming or self.running:
            if self.running:
                self.share_cores()
            else:
                self.next_event()

    def push(self, when: Number, arrives: bool, task: Task) -> None:
        """Adds an event: a task ends, or its message arrives."""
        self.count += 1
        heapq.heappush(self.coming, (when, self.count, arrives, task))

    def next_event(self) -> None:
        """Moves the time to the next event."""
        self.now, _, arrives, task = heapq.heappop(self.coming)
        (self.release if arrives else self.finish)(task)

    def start(self, task: Task) -> None:
        """Begins the task if it is not blocked and is the first in its queue."""
        if task.blockers or task.begin is not None or self.queues[task.queue][0] is not task:
            return
        task.begin = self.now
        if self.machine.cores is not None and isinstance(task.queue, int):
            self.running.append(task)
        else:
            self.push(self.now + task.seconds, False, task)

    def release(self, task: Task) -> None:
        """Unblocks the tasks that wait for this one."""
        for other in task.dependents:
            other.blockers -= 1
            self.start(other)

    def finish(self, task: Task) -> None:
        """Ends the task, and begins the next one in its queue."""
        task.end = self.now
        queue = self.queues[task.queue]
        queue.popleft()
        if task.latency:
            self.push(self.now + task.latency, True, task)
        else:
            self.release(task)
        if queue:
            self.start(queue[0])

    def share_cores(self) -> None:
        """Lets the running tasks share the cores until one of them ends, or until the next event."""
        running = self.running
        n, cores = len(running), self.machine.cores or 1
        speeds = [self.machine.alone(running[0].what, running[0].k)] if n == 1 else [min(1, cores / n)] * n
        ends = [self.now + task.left / speed for task, speed in zip(running, speeds, strict=True)]
        first = min(range(n), key=lambda i: ends[i])
        event = bool(self.coming) and self.coming[0][0] <= ends[first]
        until = self.coming[0][0] if event else ends[first]
        for task, speed in zip(running, speeds, strict=True):
            task.left -= (until - self.now) * speed
        self.now = until
        if event:
            self.next_event()
        else:
            self.finish(running.pop(first))


def predict(schedule: Schedule, machine: Machine) -> Prediction:
    """Simulates a run and returns its steady state.

    Arguments:
        schedule: the schedule.
        machine: the times of operations, links and hosts.

    Returns: the prediction. Its seconds per batch are the growth per tick of the slowest stage's finishing time.

    Raises:
        BadInput: a time is negative, the machine has no cores, or it has links or processes for another K.

    Examples:
        >>> from fdg_jax.schedule import bp
        >>> predict(bp(2), Machine(lambda kind, k: {"F": 1, "B": 2}.get(kind, 0))).seconds
        6.0
        >>> link = Link(latency_seconds=0.25, seconds_per_byte=1e-6)
        >>> slow = Machine(lambda kind, k: {"F": 1, "B": 2}.get(kind, 0), lambda address, op: 500_000, link)
        >>> predict(bp(2), slow).seconds  # 6, and twice a transfer of 0.5 and the latency
        7.5
    """
    check_machine(machine, schedule.K)
    K, (tasks, finished, first, last) = schedule.K, steady_run(schedule, machine)
    window = last - first
    seconds = max((finished[last][k] - finished[first][k]) / window for k in finished[first])
    busy: dict[Any, Number] = {}
    carried: dict[tuple[int, int], Number] = {}
    for task in tasks:
        if first < task.tick <= last:
            took = task.end - task.begin if isinstance(task.queue, int) else task.seconds
            busy[task.queue] = busy.get(task.queue, 0) + took
            if task.what == "send":
                pair = (task.k, task.to)
                carried[pair] = carried.get(pair, 0) + task.size * machine.between(*pair).seconds_per_byte
    kept = [(task.begin, 1, task.k) for task in tasks if task.what == "F"]
    kept += [(task.end, -1, task.k) for task in tasks if task.what == "B"]
    sent = [task for task in tasks if task.what == "send"]
    waiting = [(task.begin, task.size, task.to) for task in sent]
    waiting += [(reader.begin, -task.size, task.to) for task in sent for reader in task.dependents]
    stages = [busy.get(1 if machine.spread else k, 0) / window for k in range(1, K + 1)]
    utilisation = [took / seconds for took in stages]
    limits = {
        "stage": max(stages),
        "link": max((took / window for queue, took in busy.items() if queue in carried), default=0),
        "host": max(busy.get(("host", machine.process(k)), 0) / window for k in range(1, K + 1)),
    }
    return Prediction(
        seconds,
        utilisation,
        1 - sum(utilisation) / K,
        peaks(kept, K),
        peaks(waiting, K),
        {pair: took / window / seconds for pair, took in carried.items()},
        limits,
        [Event(task.what, task.k, task.batch, task.begin, task.end, task.to) for task in tasks],
    )


def steady_run(schedule: Schedule, machine: Machine) -> tuple[list[Task], dict[int, dict[int, Number]], int, int]:
    """Simulates a run until it is steady.

    Returns: (the tasks, `finishing_times` of the tasks, a, b). From the end of tick a to the end of tick b the run
        repeats itself a whole number of times. If no repetition is found, a and b span the last 4K + 8 ticks or a few
        more.
    """
    K = schedule.K
    # Any `period` successive ticks have the same number of updates.
    period = schedule.accumulate // math.gcd(schedule.accumulate, schedule.micro_batches)
    window = -(-(4 * K + 8) // period) * period
    fill = 4 * K + 8 + (machine.run_ahead or 0)  # the steady state begins later if the host runs ahead of the devices
    longest = 8 * fill
    while True:
        tasks = tasks_of(schedule, machine, fill + window)
        run(tasks, machine)
        finished = finishing_times(tasks)
        ticks = repeats_after([finished[t] for t in range(fill, fill + window + 1)], period)
        if ticks or fill == longest:
            return tasks, finished, fill + window % (ticks or window), fill + window
        fill *= 2  # needed, for example, if two loops of waiting operations are almost equally slow


def finishing_times(tasks: Sequence[Task]) -> dict[int, dict[int, Number]]:
    """{t: {k: when stage k has finished tick t}}. Transfers are not included, even if they occupy the stage."""
    found: dict[int, dict[int, Number]] = {}
    for task in tasks:
        if isinstance(task.queue, int) and not task.to:
            at = found.setdefault(task.tick, {})
            at[task.k] = max(at.get(task.k, task.end), task.end)
    return found


def repeats_after(finished: Sequence[Mapping[int, Number]], period: int) -> int | None:
    """The smallest number of ticks, a multiple of `period`, after which a run repeats itself; None if it does not.

    If stages wait for messages, several short ticks may follow a long one. So an average needs whole repetitions.

    finished: {k: when stage k has finished a tick}, tick by tick.
    """
    for ticks in range(period, len(finished) // 2 + 1, period):
        pairs = [(a[k], b[k], k) for a, b in zip(finished, finished[ticks:], strict=False) for k in a]
        first = {k: b - a for a, b, k in reversed(pairs)}
        if all(math.isclose(b - a, first[k], rel_tol=1e-9) for a, b, k in pairs):
            return ticks
    return None


def peaks(moves: Iterable[tuple[Number, Number, int]], K: int) -> list[Number]:
    """For k = 1..K, the largest amount that stage k ever has. moves: (time, change of the amount, k)."""
    now, most = [0] * (K + 1), [0] * (K + 1)
    for _, amount, k in sorted(moves):
        now[k] += amount
        most[k] = max(most[k], now[k])
    return most[1:]

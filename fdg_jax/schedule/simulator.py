"""How fast a schedule runs on devices that take their time: a discrete-event model of stages, links and one host.

`fdg_jax.schedule.ideal` says what a method could gain if communication were free and stages even. Here every operation
takes the seconds it is given, a message travels over a link, one host thread dispatches everything in the schedule's
order and may itself be the bottleneck, and emulated devices may share a few cores. Pure Python: numbers may be
Fractions.

    #  stage  does what was dispatched to it in that order, each once it has been dispatched and its messages are there
    #  link   from stage k to stage j: one message after the other, bytes * seconds_per_byte each; it is there
    #         latency_seconds later. Without overlap the copy, latency included, occupies the stage that sends instead
    #  host   dispatches one operation after the other, and stops while `run_ahead` losses are unread

Not modelled: the memory running full, links that share a bus, the host's thread taking a core from the stages.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fdg_jax.errors import BadInput
from fdg_jax.schedule.core import Box, Op, Schedule

Number = Any  # int, float or Fraction, whatever the seconds are given in


class Link(NamedTuple):
    """Between any two stages, in each direction. overlaps: copies run beside what the stages compute."""

    latency_seconds: Number = 0
    seconds_per_byte: Number = 0
    overlaps: bool = True


NO_LINK = Link()


class Machine(NamedTuple):
    """What things take.

    seconds(kind, k): of an operation of stage k: F, B, a method's own, U (the update), "enter" (what stage 1 does to a
        batch that comes from outside).
    size(box, op): bytes of the message that op puts into the box. link: what it travels over.
    host_seconds(kind, k): of dispatching an operation, and kind "send" of sending a message of stage k.
    run_ahead: how many losses may be unread (fdg_jax.engine.losses.LossWindow); None: any number.
    patient: the host waits for an operation's messages before it dispatches it (data parallel on a CPU).
    cores: of one machine whose cores stand in for the devices; None: every stage has a device of its own. With n
        stages computing on c < n cores each is n / c times as slow.
    alone(kind, k): how many times as fast an operation is while no other stage computes, on several cores. Only asked
        where `cores` is given.
    spread: every operation runs on all K devices at once (data parallel), so all stages have one queue.
    """

    seconds: Callable[[str, int], Number]
    size: Callable[[Box, Op], Number] = lambda box, op: 0
    link: Link = NO_LINK
    host_seconds: Callable[[str, int], Number] = lambda kind, k: 0
    run_ahead: int | None = None
    patient: bool = False
    cores: int | None = None
    alone: Callable[[str, int], Number] = lambda kind, k: 1
    spread: bool = False


class Event(NamedTuple):
    """Something that took place from `begin` to `end`, in seconds. what: an operation's kind, "enter", "send" (from
    stage k to stage `to`) or "host" (a dispatch for stage k)."""

    what: str
    k: int
    batch: int
    begin: Number
    end: Number
    to: int = 0


class Prediction(NamedTuple):
    """A run in its steady state; lists are over k = 1..K.

    seconds: per batch. utilisation: a stage's share of time in which it computes (or copies without overlap). bubble:
    1 - the mean of that. kept: the most batches of which a stage keeps something. waiting: the most bytes of messages
    that were on the way to a stage or waited there. limits: seconds per batch that the slowest stage, the busiest link
    and the host would need each by itself.
    """

    seconds: Number
    utilisation: list[Number]
    bubble: Number
    kept: list[int]
    waiting: list[Number]
    limits: dict[str, Number]
    events: list[Event]

    @property
    def limiting(self) -> str:
        """The largest limit, where the run is within a hundredth of it: "stage", "link" or "host"; else "waiting"."""
        most = max(self.limits, key=lambda name: self.limits[name])
        return most if self.seconds <= self.limits[most] * 1.01 else "waiting"


class Task:
    """Something in a queue. `missing` counts what has to end before it; `then` is who waits for it."""

    def __init__(self, what: str, k: int, batch: int, queue: Any, seconds: Number, tick: int, to: int = 0):
        self.what, self.k, self.batch, self.to, self.tick = what, k, batch, to, tick
        self.queue, self.seconds, self.left = queue, seconds, seconds
        self.missing, self.then = 0, list[Task]()
        self.later: Number = 0  # from its end to the release of those who wait
        self.begin: Number = None
        self.end: Number = None

    def after(self, *tasks: "Task | None") -> None:
        for task in tasks:
            if task is not None:
                self.missing += 1
                task.then.append(self)


def tasks_of(schedule: Schedule, machine: Machine, ticks: int) -> list[Task]:
    """Everything that happens in that many ticks, in the order of dispatch."""
    made: list[Task] = []
    mail: dict[Box, Task] = {}
    losses: list[Task] = []
    passes = [0] * schedule.K
    takes, gives, _ = schedule.messages
    no_link = machine.link[:2] == (0, 0)
    last_dispatch: Task | None = None
    hosted = machine.run_ahead is not None or machine.patient

    def add(what: str, k: int, batch: int, waits: Sequence[Task | None] = (), t: int = 0) -> Task:
        nonlocal last_dispatch
        task = Task(what, k, batch, 1 if machine.spread else k, machine.seconds(what, k), t)
        task.after(*waits)
        took = machine.host_seconds(what, k)
        if took or hosted:
            last_dispatch = Task("host", k, batch, "host", took, t)
            if machine.patient:
                last_dispatch.after(*waits)
            made.append(last_dispatch)
            task.after(last_dispatch)
        made.append(task)
        return task

    for t in range(1, ticks + 1):
        if machine.seconds("enter", 1):
            add("enter", 1, t, t=t)
        for op in schedule.tick(t, None):
            task = add(op.kind, op.k, op.batch, [mail.pop(box, None) for box in takes(op)], t)
            if op.kind == "B":
                passes[op.k - 1] += 1
                if passes[op.k - 1] % schedule.accumulate == 0:
                    add("U", op.k, op.batch, t=t)
            for box in gives(op):
                if box.what == "loss":
                    losses.append(task)
                    unread = schedule.micro_batches * (machine.run_ahead or 0)
                    if machine.run_ahead is not None and len(losses) > unread:
                        wait = Task("host", op.k, op.batch, "host", 0, t)  # reads the oldest loss
                        wait.after(losses[-1 - unread])
                        made.append(wait)
                    continue
                if no_link and not machine.host_seconds("send", op.k):
                    mail[box] = task
                    continue
                mail[box] = send(machine, task, box, op, made, t)
    return made


def send(machine: Machine, task: Task, box: Box, op: Op, made: list[Task], t: int) -> Task:
    """The copy of a message of `op`, which is `task`. Without overlap it stands behind the update in the queue."""
    link, took = machine.link, machine.host_seconds("send", op.k)
    seconds = machine.size(box, op) * link.seconds_per_byte
    queue: Any = (op.k, box.k)
    if not link.overlaps:
        queue, seconds = task.queue, seconds + link.latency_seconds
    copy = Task("send", op.k, op.batch, queue, seconds, t, box.k)
    copy.later = link.latency_seconds if link.overlaps else 0
    copy.after(task)
    if took:
        dispatch = Task("host", op.k, op.batch, "host", took, t)
        made.append(dispatch)
        copy.after(dispatch)
    made.append(copy)
    return copy


def run(tasks: Sequence[Task], machine: Machine) -> None:
    """Sets when each begins and ends. Queues are in the order of `tasks`."""
    queues: dict[Any, deque[Task]] = {}
    for task in tasks:
        queues.setdefault(task.queue, deque()).append(task)
    coming: list[tuple[Number, int, bool, Task]] = []  # (when, tie-break, whether it arrives or ends, what)
    running: list[Task] = []  # on shared cores, where what else runs decides how long it still takes
    count, now = 0, tasks[0].seconds * 0 if tasks else 0

    def push(when: Number, arrives: bool, task: Task) -> None:
        nonlocal count
        count += 1
        heapq.heappush(coming, (when, count, arrives, task))

    def start(task: Task) -> None:
        """If it has all it waits for and is the first in its queue."""
        if task.missing or task.begin is not None or queues[task.queue][0] is not task:
            return
        task.begin = now
        if machine.cores is not None and isinstance(task.queue, int):
            running.append(task)
        else:
            push(now + task.seconds, False, task)

    def release(task: Task) -> None:
        for other in task.then:
            other.missing -= 1
            start(other)

    def finish(task: Task) -> None:
        task.end = now
        queue = queues[task.queue]
        queue.popleft()
        if task.later:
            push(now + task.later, True, task)
        else:
            release(task)
        if queue:
            start(queue[0])

    for queue in list(queues.values()):
        start(queue[0])
    while coming or running:
        if not running:
            now, _, arrives, task = heapq.heappop(coming)
            (release if arrives else finish)(task)
            continue
        n, cores = len(running), machine.cores or 1
        speeds = [machine.alone(running[0].what, running[0].k)] if n == 1 else [min(1, cores / n)] * n
        ends = [now + task.left / speed for task, speed in zip(running, speeds, strict=True)]
        first = min(range(n), key=lambda i: ends[i])
        event = bool(coming) and coming[0][0] <= ends[first]
        until = coming[0][0] if event else ends[first]
        for task, speed in zip(running, speeds, strict=True):
            task.left -= (until - now) * speed
        now = until
        if event:
            now, _, arrives, task = heapq.heappop(coming)
            (release if arrives else finish)(task)
        else:
            finish(running.pop(first))


def predict(schedule: Schedule, machine: Machine, fill: int | None = None, window: int | None = None) -> Prediction:
    """The steady state of a run: the `window` ticks after the first `fill` ones (defaults: 4K + 8, and K + 8 rounded
    up to whole updates).

    Seconds per batch are what the finishing times of the slowest stage grow by from tick to tick; BadInput where the
    numbers are negative.
    """
    K = schedule.K
    if fill is None:  # a host that runs ahead fills the pipeline later
        fill = 4 * K + 8 + (machine.run_ahead or 0)
    # Ticks after which there have been as many updates as before.
    period = schedule.accumulate // math.gcd(schedule.accumulate, schedule.micro_batches)
    window = window or -(-(K + 8) // period) * period
    check(machine, K)
    tasks = tasks_of(schedule, machine, fill + window)
    run(tasks, machine)
    computing = [task for task in tasks if isinstance(task.queue, int)]

    def stage_ends(t: int) -> dict[int, Number]:
        found: dict[int, Number] = {}
        for task in computing:
            if task.tick == t and task.what != "send":
                found[task.k] = max(found.get(task.k, task.end), task.end)
        return found

    before, after = stage_ends(fill), stage_ends(fill + window)
    seconds = max((after[k] - before[k]) / window for k in after)
    inside = [task for task in tasks if fill < task.tick <= fill + window]
    busy: dict[Any, Number] = {}
    for task in inside:
        took = task.end - task.begin if isinstance(task.queue, int) else task.seconds
        busy[task.queue] = busy.get(task.queue, 0) + took
    stages = [busy.get(1 if machine.spread else k, 0) / window for k in range(1, K + 1)]
    links = [took / window for queue, took in busy.items() if isinstance(queue, tuple)]
    utilisation = [took / seconds for took in stages]
    return Prediction(
        seconds,
        utilisation,
        1 - sum(utilisation) / K,
        kept(tasks, K),
        waiting(tasks, machine, K),
        {"stage": max(stages), "link": max(links, default=0), "host": busy.get("host", 0) / window},
        [Event(task.what, task.k, task.batch, task.begin, task.end, task.to) for task in tasks],
    )


def check(machine: Machine, K: int) -> None:
    link = machine.link
    if link.latency_seconds < 0 or link.seconds_per_byte < 0:
        raise BadInput(f"link of {link[0]} s and {link[1]} s a byte: neither can be negative.")
    for k in range(1, K + 1):
        for kind in "FBU":
            if not machine.seconds(kind, k) >= 0:
                raise BadInput(f"{kind} of stage k={k} takes {machine.seconds(kind, k)} s: give 0 or more.")
    if machine.cores is not None and machine.cores < 1:
        raise BadInput(f"cores={machine.cores}: a machine has 1 or more.")


def kept(tasks: Sequence[Task], K: int) -> list[int]:
    """The most batches of which each stage had begun F and not ended B."""
    now, most = [0] * (K + 1), [0] * (K + 1)
    for task in tasks:  # of a stage in the order in which it does them
        if task.what == "F":
            now[task.k] += 1
            most[task.k] = max(most[task.k], now[task.k])
        elif task.what == "B":
            now[task.k] -= 1
    return most[1:]


def waiting(tasks: Sequence[Task], machine: Machine, K: int) -> list[Number]:
    """The most bytes of messages to each stage, from when they set out to the beginning of what reads them."""
    per_byte = machine.link.seconds_per_byte
    if not per_byte:
        return [0] * K
    moves: list[tuple[Number, Number, int]] = []
    for task in tasks:
        if task.what == "send":
            latency = 0 if machine.link.overlaps else machine.link.latency_seconds
            size = (task.seconds - latency) / per_byte
            moves.append((task.begin, size, task.to))
            moves += [(reader.begin, -size, task.to) for reader in task.then if reader.begin is not None]
    now, most = [0] * (K + 1), [0] * (K + 1)
    for _, size, k in sorted(moves):
        now[k] += size
        most[k] = max(most[k], now[k])
    return most[1:]

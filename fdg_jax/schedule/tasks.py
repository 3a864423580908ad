"""The tasks of the simulator: everything that stages, links and the host do in a run, and who waits for whom."""

from collections.abc import Sequence
from typing import Any

from fdg_jax.schedule.core import Box, Op, Schedule
from fdg_jax.schedule.hardware import Machine, Number
from fdg_jax.schedule.walk import Step, filling, walk


class Task:
    """One entry of a queue.

    what, k, batch, tick: an operation's kind, "enter", "U", "send" or "host"; whose it is, and when it was dispatched.
    to: the stage that a message goes to; 0 for everything else.
    queue: what works on it: a stage's number, (k, to) for a link, or "host".
    seconds, left: what it takes, and what is left of that.
    blockers: how many tasks must still end before it can begin. dependents: the tasks that wait for it.
    latency: seconds from its end until its dependents may go on.
    begin, end: when it ran; None before that is known.
    """

    def __init__(self, what: str, k: int, batch: int, queue: Any, seconds: Number, tick: int, to: int = 0):
        self.what, self.k, self.batch, self.to, self.tick = what, k, batch, to, tick
        self.queue, self.seconds, self.left = queue, seconds, seconds
        self.blockers, self.dependents = 0, list[Task]()
        self.latency: Number = 0
        self.begin: Number = None
        self.end: Number = None

    def after(self, *tasks: "Task | None") -> None:
        """Makes it wait for those tasks; None stands for one that is not part of the run."""
        for task in tasks:
            if task is not None:
                self.blockers += 1
                task.dependents.append(self)


def tasks_of(schedule: Schedule, machine: Machine, ticks: int) -> list[Task]:
    """All tasks of the first ticks, in dispatch order.

    Arguments:
        schedule: what is run, with batches that keep coming.
        machine: how long everything takes.
        ticks: how many ticks.
    """
    dispatch = _Dispatch(schedule, machine)
    for t, steps in walk(schedule, filling(schedule, ticks)):
        if machine.seconds("enter", 1):
            dispatch.compute("enter", 1, t, t)
        for step in steps:
            dispatch.step(step, t)
    return dispatch.tasks


class _Dispatch:
    """The host: turns steps of a schedule into tasks, one after the other."""

    def __init__(self, schedule: Schedule, machine: Machine):
        self.machine = machine
        self.tasks: list[Task] = []
        self.arrivals: dict[Box, Task] = {}  # the task that ends when the message is there
        self.losses: list[Task] = []
        self.unread = schedule.micro_batches * (machine.run_ahead or 0)  # losses before the host waits
        self.no_link = machine.link[:2] == (0, 0)
        self.has_host = machine.run_ahead is not None or machine.patient

    def compute(self, what: str, k: int, batch: int, t: int, waits: Sequence[Task | None] = ()) -> Task:
        """Adds what a stage computes, and its dispatch by the host."""
        machine = self.machine
        task = Task(what, k, batch, 1 if machine.spread else k, machine.seconds(what, k), t)
        task.after(*waits)
        took = machine.host_seconds(what, k)
        if took or self.has_host:
            dispatch = Task("host", k, batch, "host", took, t)
            if machine.patient:
                dispatch.after(*waits)
            self.tasks.append(dispatch)
            task.after(dispatch)
        self.tasks.append(task)
        return task

    def step(self, step: Step, t: int) -> None:
        """Adds an operation, the update after it, its messages, and the host's wait for an old loss."""
        op = step.op
        task = self.compute(op.kind, op.k, op.batch, t, [self.arrivals.pop(box, None) for box in step.senders])
        if step.updates:
            self.compute("U", op.k, op.batch, t)
        for box in step.sends:
            if box.what == "loss":
                self.read_loss(op, task, t)
            elif self.no_link and not self.machine.host_seconds("send", op.k):
                self.arrivals[box] = task
            else:
                self.arrivals[box] = self.send(task, box, op, t)

    def read_loss(self, op: Op, task: Task, t: int) -> None:
        """Makes the host wait for the oldest loss where too many are unread."""
        self.losses.append(task)
        if self.machine.run_ahead is not None and len(self.losses) > self.unread:
            wait = Task("host", op.k, op.batch, "host", 0, t)
            wait.after(self.losses[-1 - self.unread])
            self.tasks.append(wait)

    def send(self, task: Task, box: Box, op: Op, t: int) -> Task:
        """Adds the transfer of a message. If transfers do not overlap, it is in the stage's queue, after the update."""
        link, took = self.machine.link, self.machine.host_seconds("send", op.k)
        seconds = self.machine.size(box, op) * link.seconds_per_byte
        queue: Any = (op.k, box.k)
        if not link.overlaps:
            queue, seconds = task.queue, seconds + link.latency_seconds
        transfer = Task("send", op.k, op.batch, queue, seconds, t, box.k)
        transfer.latency = link.latency_seconds if link.overlaps else 0
        transfer.after(task)
        if took:
            dispatch = Task("host", op.k, op.batch, "host", took, t)
            self.tasks.append(dispatch)
            transfer.after(dispatch)
        self.tasks.append(transfer)
        return transfer

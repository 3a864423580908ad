"""The tasks of the simulator: everything that stages, links and hosts do in a run, and which tasks wait for which."""

from collections.abc import Sequence
from typing import Any

from fdg_jax.schedule import Address, Schedule
from fdg_jax.schedule.hardware import Machine, Number
from fdg_jax.schedule.walk import Step, filling, walk


class Task:
    """One entry of a queue.

    what: an operation's kind, "enter", "U" (an update), "send", "loss" or "host".
    k, batch, tick: the task's stage and batch, and the tick of its dispatch.
    to, size: for a message, its destination stage and its bytes; 0 for other tasks.
    queue: the queue that executes the task: a stage's number, (k, to) for a link, or ("host", process).
    seconds, left: the task's duration, and the part of it that is left.
    blockers: how many tasks must still end before the task can begin. dependents: the tasks that wait for this task.
    latency: seconds from the task's end until its dependents may begin.
    begin, end: when the task ran; None before the simulation.
    """

    def __init__(self, what: str, k: int, batch: int, queue: Any, seconds: Number, tick: int, to: int = 0):
        self.what, self.k, self.batch, self.to, self.tick = what, k, batch, to, tick
        self.queue, self.seconds, self.left = queue, seconds, seconds
        self.blockers, self.dependents = 0, list[Task]()
        self.size: Number = 0
        self.latency: Number = 0
        self.begin: Number = None
        self.end: Number = None

    def after(self, *tasks: "Task | None") -> None:
        """Makes this task wait for others; None is ignored."""
        for task in tasks:
            if task is not None:
                self.blockers += 1
                task.dependents.append(self)


def tasks_of(schedule: Schedule, machine: Machine, ticks: int) -> list[Task]:
    """All tasks of the first ticks, in dispatch order.

    Arguments:
        schedule: the schedule, with batches that keep coming.
        machine: the times of operations, links and hosts.
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
    """Makes the tasks of all stages, links and hosts, step by step through a schedule."""

    def __init__(self, schedule: Schedule, machine: Machine):
        self.machine = machine
        self.tasks: list[Task] = []
        self.arrivals: dict[Address, Task] = {}  # the task that ends when the message arrives
        self.last = {machine.process(k): k for k in range(1, schedule.K + 1)}  # the last stage of each process
        self.losses: dict[int, list[Task]] = {process: [] for process in self.last}
        self.unread = schedule.micro_batches * (machine.run_ahead or 0)  # the most unread losses before a host waits
        self.has_host = machine.run_ahead is not None or machine.patient

    def compute(self, what: str, k: int, batch: int, t: int, waits: Sequence[Task | None] = ()) -> Task:
        """Adds a computation of a stage, and its dispatch by the host."""
        machine = self.machine
        task = Task(what, k, batch, 1 if machine.spread else k, machine.seconds(what, k), t)
        task.after(*waits)
        took = machine.host_seconds(what, k)
        if took or self.has_host:
            dispatch = self.host(k, batch, took, t)
            if machine.patient:
                dispatch.after(*waits)
            task.after(dispatch)
        self.tasks.append(task)
        return task

    def host(self, k: int, batch: int, seconds: Number, t: int) -> Task:
        """Adds a task of the host of stage k."""
        task = Task("host", k, batch, ("host", self.machine.process(k)), seconds, t)
        self.tasks.append(task)
        return task

    def step(self, step: Step, t: int) -> None:
        """Adds an operation, the update after it, its messages, and, for a loss, the hosts' waits for older losses."""
        op = step.op
        task = self.compute(op.kind, op.k, op.batch, t, [self.arrivals.pop(address, None) for address in step.senders])
        if step.updates:
            self.compute("U", op.k, op.batch, t)
        for address in step.sends:
            if address.what == "loss":
                self.read_losses(task)
            else:
                self.arrivals[address] = self.send(task, "send", address.k, self.machine.size(address, op))

    def read_losses(self, task: Task) -> None:
        """Makes each host wait for the oldest unread loss if too many are unread. task: computes the newest loss."""
        if self.machine.run_ahead is None:
            return
        for process, losses in self.losses.items():
            k = self.last[process]
            here = process == self.machine.process(task.k)
            losses.append(task if here else self.send(task, "loss", k, 0))
            if len(losses) > self.unread:
                self.host(k, task.batch, 0, task.tick).after(losses[-1 - self.unread])

    def send(self, task: Task, what: str, to: int, size: Number) -> Task:
        """Adds the transfer of a task's result. If transfers do not overlap, the stage itself sends it, after the
        update.

        Returns: the task that ends when the message has been sent; `task` itself if sending takes no time.
        """
        link, took = self.machine.between(task.k, to), self.machine.host_seconds("send", task.k)
        if link[:2] == (0, 0) and not took:
            return task
        queue, seconds = (task.k, to), size * link.seconds_per_byte
        if not link.overlaps:
            queue, seconds = task.queue, seconds + link.latency_seconds
        transfer = Task(what, task.k, task.batch, queue, seconds, task.tick, to)
        transfer.size, transfer.latency = size, link.latency_seconds if link.overlaps else 0
        transfer.after(task)
        if took:
            transfer.after(self.host(task.k, task.batch, took, task.tick))
        self.tasks.append(transfer)
        return transfer

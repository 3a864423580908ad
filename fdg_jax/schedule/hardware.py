"""The hardware on which the simulator runs a schedule: how long operations, messages and dispatches take."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fdg_jax.errors import BadInput
from fdg_jax.schedule.core import Box, Op

Number = Any  # int, float or Fraction: whatever type the seconds are given in


class Link(NamedTuple):
    """The link between any two stages, in each direction.

    latency_seconds: from the end of a transfer to the message's arrival.
    seconds_per_byte: 1 / bandwidth.
    overlaps: whether transfers run while the sending stage computes.
    """

    latency_seconds: Number = 0
    seconds_per_byte: Number = 0
    overlaps: bool = True


NO_LINK = Link()


class Machine(NamedTuple):
    """How long everything takes, in seconds, and what is shared.

    seconds(kind, k): an operation of stage k. Kinds: F, B, a method's own, U (the update), and "enter" (what stage 1
        does to a batch that comes from outside).
    size(box, op): bytes of the message that op sends to box.
    link: what messages travel over.
    host_seconds(kind, k): the host's time to dispatch an operation, or, for kind "send", a message of stage k.
    run_ahead: how many losses may be unread before the host waits (fdg_jax.engine.losses); None: any number.
    patient: whether the host waits for an operation's messages before it dispatches the operation (data parallel on a
        CPU).
    cores: the cores of one machine that emulates all devices: n stages that compute on c < n cores are each n / c times
        as slow. None: every stage has a device of its own.
    alone(kind, k): how many times as fast an operation is while no other stage computes, as it may then use several
        cores. Used only if `cores` is given.
    spread: whether every operation runs on all K devices at once (data parallel), so that all stages share one queue.
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


def check_machine(machine: Machine, K: int) -> None:
    """Raises BadInput if times are negative or there are no cores."""
    link = machine.link
    if link.latency_seconds < 0 or link.seconds_per_byte < 0:
        raise BadInput(f"link of {link[0]} s and {link[1]} s a byte: neither can be negative.")
    for k in range(1, K + 1):
        for kind in "FBU":
            if not machine.seconds(kind, k) >= 0:
                raise BadInput(f"{kind} of stage k={k} takes {machine.seconds(kind, k)} s: give 0 or more.")
    if machine.cores is not None and machine.cores < 1:
        raise BadInput(f"cores={machine.cores}: a machine has 1 or more.")

"""The simulator's model of hardware: how long operations, messages and dispatches take."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fdg_jax.errors import BadInput
from fdg_jax.schedule import Address, Op

Number = Any  # int, float or Fraction: the type in which seconds are given


class Link(NamedTuple):
    """A link between two stages. Each direction has the full bandwidth.

    latency_seconds: the time from the end of a transfer to the message's arrival.
    seconds_per_byte: 1 / bandwidth.
    overlaps: whether transfers run while the sending stage computes.
    """

    latency_seconds: Number = 0
    seconds_per_byte: Number = 0
    overlaps: bool = True


NO_LINK = Link()


def slowest(links: Sequence[Link]) -> Link:
    """A link with the longest latency and the lowest bandwidth of these links. Transfers overlap if they do on all of
    them. NO_LINK if `links` is empty."""
    return Link(
        max((link.latency_seconds for link in links), default=0),
        max((link.seconds_per_byte for link in links), default=0),
        all(link.overlaps for link in links),
    )


def ring_seconds(n: int, size: Number, link: Link) -> Number:
    """How long n devices take to sum an array of `size` bytes over a ring (all-reduce): each device sends 1/n of the
    array 2(n-1) times."""
    return 2 * (n - 1) * (size * link.seconds_per_byte / n + link.latency_seconds)


class Machine(NamedTuple):
    """The times of all operations, in seconds, and the resources that stages share.

    seconds(kind, k): the time of an operation of stage k. Kinds: F, B, a method's own, U (the update), and "enter"
        (stage 1's preprocessing of an entering batch).
    size(address, op): bytes of the message that op sends to address.
    link: one link for all pairs of stages, or a list with the links between stages k and k+1 for k = 1..K-1.
    host_seconds(kind, k): the host's time to dispatch an operation, or, for kind "send", a message of stage k.
    run_ahead: how many losses may be unread before the host waits (fdg_jax.engine.losses); None for any number.
    processes: for k = 1..K, the process of stage k; () if all stages are in one process. Each process has its own host.
    patient: whether the host waits for an operation's messages before it dispatches the operation (data parallel on a
        CPU).
    cores: the number of cores of one machine that emulates all devices. If n stages compute on c < n cores, each is n/c
        times as slow. None: every stage has its own device.
    alone(kind, k): the speed-up of an operation while no other stage computes, so that it can use several cores. Used
        only if `cores` is given.
    spread: whether every operation runs on all K devices at once (data parallel), so that all stages share one queue.
    """

    seconds: Callable[[str, int], Number]
    size: Callable[[Address, Op], Number] = lambda address, op: 0
    link: Link | Sequence[Link] = NO_LINK
    host_seconds: Callable[[str, int], Number] = lambda kind, k: 0
    run_ahead: int | None = None
    processes: Sequence[int] = ()
    patient: bool = False
    cores: int | None = None
    alone: Callable[[str, int], Number] = lambda kind, k: 1
    spread: bool = False

    def between(self, k: int, j: int) -> Link:
        """The link between stages k and j. For stages that are not neighbours, it is as slow as the slowest link
        between them."""
        return self.link if isinstance(self.link, Link) else slowest(self.link[min(k, j) - 1 : max(k, j) - 1])

    def replicated(self, R: Sequence[int], gradients: Sequence[Number], within: Link) -> "Machine":
        """A copy of this machine in which stage k has R[k-1] devices, each of which computes a part of every batch.

        This is the best case. An operation takes 1/R of its time. A message between stages with r and s devices is
        spread over min(r, s) links. Every device makes the whole update. After a backward pass the gradients are summed
        over a ring.

        Arguments:
            R: the number of devices of each stage k = 1..K.
            gradients: bytes of each stage's gradients.
            within: the link between neighbouring devices of a stage.

        Raises:
            BadInput: R and gradients have different lengths.
        """
        if len(R) != len(gradients):
            raise BadInput(f"{len(R)} numbers of devices for K={len(gradients)} stages: give a number for each stage.")

        def seconds(kind: str, k: int) -> Number:
            r, taken = R[k - 1], self.seconds(kind, k)
            if kind == "U" or r == 1:
                return taken
            return taken / r + (ring_seconds(r, gradients[k - 1], within) if kind == "B" else 0)

        def size(address: Address, op: Op) -> Number:
            return self.size(address, op) / min(R[address.k - 1], R[op.k - 1])

        return self._replace(seconds=seconds, size=size)

    def process(self, k: int) -> int:
        """The process whose host dispatches the operations of stage k."""
        return self.processes[k - 1] if self.processes else 0


def check_machine(machine: Machine, K: int) -> None:
    """Raises BadInput if a time is negative, there are no cores, or the number of links or processes does not fit K."""
    links = [machine.link] if isinstance(machine.link, Link) else machine.link
    for link in links:
        if not (link.latency_seconds >= 0 and link.seconds_per_byte >= 0):
            raise BadInput(f"link of {link[0]} s and {link[1]} s a byte: use numbers of 0 or more.")
    if not isinstance(machine.link, Link) and len(links) != K - 1:
        raise BadInput(f"{len(links)} links for K={K} stages: give one link for all, or {K - 1} between neighbours.")
    if len(machine.processes) not in (0, K):
        fact = f"processes has {len(machine.processes)} entries for K={K} stages"
        raise BadInput(f"{fact}: give the process of each stage, or () for one process.")
    for k in range(1, K + 1):
        for kind in "FBU":
            if not machine.seconds(kind, k) >= 0:
                raise BadInput(f"{kind} of stage k={k} takes {machine.seconds(kind, k)} s: give 0 or more.")
    if machine.cores is not None and machine.cores < 1:
        raise BadInput(f"cores={machine.cores}: give 1 or more.")

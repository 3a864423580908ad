"""What each stage waited for in a recorded run: another stage, a message on its way, or the host."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness.recording import Dispatched, events
from fdg_jax.schedule import Address
from fdg_jax.schedule.simulator import Event

UNMADE, AWAY, HOST = "unmade", "away", "undispatched"  # kinds of waiting, as kinds of events
WAITING = {
    UNMADE: "waits: not computed yet",
    AWAY: "waits: on its way",
    HOST: "waits: not dispatched",
}


def read(ended: Sequence[Any]) -> list[tuple[Dispatched, float]]:
    """Reads the result of `Recording.stop` from JSON."""

    def addresses(found: Sequence[Any]) -> tuple[Address, ...]:
        return tuple(Address(*address) for address in found)

    found = []
    for (what, k, batch, at, takes, gives, to), end in ended:
        found.append((Dispatched(what, k, batch, at, addresses(takes), addresses(gives), to), end))
    return found


def waits(ended: Sequence[tuple[Dispatched, float]]) -> list[Event]:
    """The idle time of each stage between two of its operations, by cause.

    Of the messages that an operation reads, the last one to arrive counts. The stage waits for its sender until it is
    computed (UNMADE), then for the message until it arrives (AWAY), then for the host until the operation is dispatched
    (HOST).

    Arguments:
        ended: the results of the recordings of all processes.
    """
    arrived = {address: end for dispatched, end in ended if dispatched.what == "send" for address in dispatched.gives}
    made = {address: end for dispatched, end in ended if dispatched.what != "send" for address in dispatched.gives}
    free: dict[int, float] = {}
    found = []
    for (dispatched, end), event in zip(ended, events(ended), strict=True):
        if dispatched.what == "send":
            continue
        k, batch = dispatched.k, dispatched.batch
        begin = float(event.begin)
        now = free.get(k, begin)
        free[k] = end
        taken = [address for address in dispatched.takes if address in arrived]
        last = max(taken, key=lambda address: arrived[address], default=None)
        if last is not None:
            for what, until in ((UNMADE, made.get(last, 0.0)), (AWAY, arrived[last])):
                until = min(until, begin)
                if until > now:
                    found.append(Event(what, k, batch, now, until))
                    now = until
        if begin > now:
            found.append(Event(HOST, k, batch, now, begin))
    return found


def seconds_by_kind(found: Sequence[Event], k: int) -> dict[str, float]:
    """The seconds that stage k spent on each kind of operation and of waiting."""
    taken: dict[str, float] = {}
    for event in found:
        if event.k == k and not event.to:
            taken[event.what] = taken.get(event.what, 0.0) + event.end - event.begin
    return taken


def on_the_way(found: Sequence[Event]) -> Mapping[tuple[int, int], list[float]]:
    """For each link (k, to), the seconds of each of its messages."""
    taken: dict[tuple[int, int], list[float]] = {}
    for event in found:
        if event.to:
            taken.setdefault((event.k, event.to), []).append(event.end - event.begin)
    return taken

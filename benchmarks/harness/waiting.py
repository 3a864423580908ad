"""When each operation of a recorded run began, and what each stage waited for: a stage, a message or the host."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness.recording import Dispatched
from fdg_jax.schedule import Address
from fdg_jax.schedule.simulator import Event

UNMADE, AWAY, HOST = "unmade", "away", "undispatched"  # kinds of waiting, as kinds of events
WAITING = {UNMADE: "waits: not computed yet", AWAY: "waits: on its way", HOST: "waits: not dispatched"}


def read(ended: Sequence[Any]) -> list[tuple[Dispatched, float]]:
    """Reads the result of `Recording.stop` from JSON."""

    def addresses(found: Sequence[Any]) -> tuple[Address, ...]:
        return tuple(Address(*address) for address in found)

    return [(Dispatched(what, k, batch, at, addresses(takes), addresses(gives), to), end)
            for (what, k, batch, at, takes, gives, to), end in ended]  # fmt: skip


def events(ended: Sequence[tuple[Dispatched, float]]) -> list[Event]:
    """Computes when each operation and message began, and what each stage waited for before an operation.

    An operation begins at the latest of its dispatch, the previous end of its stage and the arrival of its messages. If
    its end was seen before this time, its length is 0.

    If an operation reads several messages, the last one to arrive counts. The stage waits until the sender has computed
    the message (UNMADE), then until the message arrives (AWAY), then until the host dispatches the operation (HOST).

    Arguments:
        ended: the results of the recordings of all processes, each stage and link in its own order.
    """
    arrived = {address: end for dispatched, end in ended if dispatched.what == "send" for address in dispatched.gives}
    made = {address: end for dispatched, end in ended if dispatched.what != "send" for address in dispatched.gives}
    free: dict[tuple[int, int], float] = {}
    found = []
    for (what, k, batch, at, takes, gives, to), end in ended:
        taken = [address for address in takes if address in arrived]
        ready = [made[address] for address in gives if address in made] if to else [arrived[each] for each in taken]
        begin = min(end, max([at, free.get((k, to), 0.0), *ready]))
        found.append(Event(what, k, batch, begin, end, to))
        causes = [(HOST, begin)]
        if taken:
            last = max(taken, key=lambda address: arrived[address])
            causes = [(UNMADE, made.get(last, 0.0)), (AWAY, arrived[last]), *causes]
        now = free.get((k, to), begin)
        for cause, until in causes if not to else ():
            if (until := min(until, begin)) > now:
                found.append(Event(cause, k, batch, now, until))
                now = until
        free[k, to] = end
    return found


def window(found: Sequence[Event], first: int, last: int) -> tuple[list[Event], float]:
    """Cuts out the time in which batches first..last enter.

    Returns: (the events in it, each cut to the window and counted from its beginning; its length in seconds).
    """
    entry = "enter" if any(event.what == "enter" for event in found) else "F"
    begins = {event.batch: event.begin for event in reversed(found) if (event.what, event.k) == (entry, 1)}
    start, end = begins[first], begins[last + 1]
    inside = [e for e in found if e.begin < end and e.end > start]
    return [e._replace(begin=max(e.begin, start) - start, end=min(e.end, end) - start) for e in inside], end - start


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

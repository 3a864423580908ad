"""The messages between the processes of a pipeline: what is predicted from their shapes, and what is really sent.

Counted is what this process asks its transport for and what comes out of it, array by array. Predicted is what one tick
of the schedule sends, from the shapes that the stages were checked with.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax

from fdg_jax.engine import memory
from fdg_jax.engine.host_engine import COUNT, HostEngine
from fdg_jax.schedule import Box, Op

LOSS, REFUSED = "loss", "refused"  # what every process is told: a loss, the number of a stage's first refused update


class Message(NamedTuple):
    """Messages of one kind from one stage to one process.

    what: "x" (activations), "dy" (cotangents), LOSS or REFUSED.
    k: the stage that sends.
    to: the process that receives.
    sent, sent_bytes: in the sender's process. arrived, arrived_bytes: in the receiver's.
    """

    what: str
    k: int
    to: int
    sent: int = 0
    sent_bytes: int = 0
    arrived: int = 0
    arrived_bytes: int = 0


Key = tuple[str, int, int]  # what, k, to


def together(found: Mapping[Key, Message], more: Message) -> Message:
    """The sum of what was counted of a kind and more of it."""
    key = (more.what, more.k, more.to)
    numbers = zip(found.get(key, Message(*key))[3:], more[3:], strict=True)
    return Message(*key, *(a + b for a, b in numbers))


def process_of(engine: HostEngine, k: int) -> int:
    """The process that has stage k."""
    return engine.problem.places[k - 1].device.process_index


def processes_of(engine: HostEngine) -> set[int]:
    """All processes that have a stage."""
    return {process_of(engine, spec.k) for spec in engine.problem.specs}


def bytes_of(message: Any) -> int:
    """The content of a message: of its arrays, not of what the network adds."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(message))


@contextmanager
def counting(engine: HostEngine) -> Iterator[dict[Key, Message]]:
    """Within the context, what this process sends to others and receives from them is counted."""
    found = dict[Key, Message]()
    send, tell, transport = engine.loop.send, engine.transport.tell, engine.transport
    here, everywhere = jax.process_index(), processes_of(engine)

    def count(what: str, k: int, to: int, given: Any, arrived: Any) -> None:
        if process_of(engine, k) == here:
            more = Message(what, k, to, 1, bytes_of(given), 0, 0)
        elif to == here:
            more = Message(what, k, to, 0, 0, 1, bytes_of(arrived))
        else:
            return
        found[more[:3]] = together(found, more)

    def counted_send(box: Box, message: Any, giver: Op | None) -> Any:
        arrived = send(box, message, giver)
        if giver is not None and process_of(engine, giver.k) != process_of(engine, box.k):
            count(box.what, giver.k, process_of(engine, box.k), message, arrived)
        return arrived

    def counted_tell(k: int, value: Any, like: Any) -> Any:
        arrived = tell(k, value, like)
        for to in everywhere - {process_of(engine, k)}:
            count(REFUSED if like is COUNT else LOSS, k, to, value, arrived)
        return arrived

    engine.loop.send, transport.tell = counted_send, counted_tell
    try:
        yield found
    finally:
        engine.loop.send = send
        del transport.tell


def predicted(engine: HostEngine) -> list[Message]:
    """The messages between processes in one tick of a full pipeline, of all processes."""
    schedule, found = engine.loop.schedule, defaultdict[Key, int](int)
    specs = memory.micro_batch_specs(engine.problem.specs, schedule.micro_batches)
    sizes = dict[Key, int]()

    def add(what: str, k: int, to: int, size: int) -> None:
        if to != process_of(engine, k):
            found[what, k, to] += 1
            sizes[what, k, to] = size

    for op in schedule.tick(4 * schedule.K + 2, None):
        for box in schedule.messages.gives(op):
            if box.what == "loss":
                for to in processes_of(engine):
                    add(LOSS, op.k, to, memory.tree_bytes(specs[-1].value))
                    for spec in specs:
                        if spec.guard:
                            add(REFUSED, spec.k, to, memory.tree_bytes(COUNT))
            else:
                add(box.what, op.k, process_of(engine, box.k), memory.message_bytes(box, op, specs))
    return [Message(*key, n, n * sizes[key], n, n * sizes[key]) for key, n in sorted(found.items())]

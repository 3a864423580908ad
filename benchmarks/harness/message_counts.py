"""The messages between the processes of a pipeline: predicted from their shapes, and counted.

Counted are the arrays that this process gives to its transport and gets from it. Predicted are the messages of one tick
of the schedule, from the shapes with which the stages were checked.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax

from benchmarks.harness.hooks import Call, around
from fdg_jax.engine import memory
from fdg_jax.engine.host_engine import COUNT, HostEngine

LOSS, REFUSED = "loss", "refused"  # sent to every process: a loss, the number of a stage's first refused update


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
    """The counts of one kind of message, with those of `more` added."""
    key = (more.what, more.k, more.to)
    numbers = zip(found.get(key, Message(*key))[3:], more[3:], strict=True)
    return Message(*key, *(a + b for a, b in numbers))


def process_of(engine: HostEngine, k: int) -> int:
    """The process that has stage k."""
    return engine.problem.places[k - 1].device.process_index


def processes_of(engine: HostEngine) -> set[int]:
    """All processes that have a stage."""
    return {process_of(engine, spec.k) for spec in engine.problem.specs}


@contextmanager
def counting(engine: HostEngine) -> Iterator[dict[Key, Message]]:
    """A context in which the messages that this process sends to others and receives from them are counted."""
    found, here = dict[Key, Message](), jax.process_index()

    def count(what: str, k: int, to: int, given: Any, arrived: Any) -> None:
        if process_of(engine, k) == here:
            more = Message(what, k, to, 1, memory.tree_bytes(given), 0, 0)
        elif to == here:
            more = Message(what, k, to, 0, 0, 1, memory.tree_bytes(arrived))
        else:
            return
        found[more[:3]] = together(found, more)

    def counted(call: Call, dispatch: Callable[[], Any]) -> Any:
        arrived, sender = dispatch(), call.sender.k if call.sender else call.k
        receivers = set[int]()
        if call.what == "send":
            receivers = {process_of(engine, call.k)}
        elif call.what == "tell":
            receivers = processes_of(engine)
        what = call.address.what if call.address else REFUSED if call.like is COUNT else LOSS
        for to in receivers - {process_of(engine, sender)}:
            count(what, sender, to, call.message, arrived)
        return arrived

    with around(engine, counted):
        yield found


def predicted(engine: HostEngine) -> list[Message]:
    """The messages between processes in one tick of a full pipeline, of all processes."""
    schedule, found = engine.loop.schedule, defaultdict[Key, list[int]](list)
    specs = memory.micro_batch_specs(engine.problem.specs, schedule.micro_batches)
    to_all = [(LOSS, schedule.K, memory.tree_bytes(specs[-1].value))]
    to_all += [(REFUSED, spec.k, memory.tree_bytes(COUNT)) for spec in specs if spec.guard]
    for op in schedule.tick(4 * schedule.K + 2, None):
        for address in schedule.messages.gives(op):
            if address.what == "loss":
                messages = [(what, k, to, size) for what, k, size in to_all for to in processes_of(engine)]
            else:
                size = memory.message_bytes(address, op, specs)
                messages = [(address.what, op.k, process_of(engine, address.k), size)]
            for what, k, to, size in messages:
                if to != process_of(engine, k):
                    found[what, k, to].append(size)
    return [Message(*key, *(len(sizes), sum(sizes)) * 2) for key, sizes in sorted(found.items())]

"""The messages between the processes of a pipeline: predicted from their shapes, and counted.

Counted are the arrays that this process gives to its transport and gets from it. The prediction is for one tick of the
schedule, computed from the shapes in the stages' specs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax

from benchmarks.harness.hooks import Call, around
from fdg_jax.engine import memory
from fdg_jax.engine.host_engine import COUNT, HostEngine

LOSS, REFUSED = "loss", "refused"  # sent to every process: a loss, the number of a stage's first refused update
SEEN = PREDICTED, SENT, ARRIVED = "predicted", "sent", "arrived"


class Message(NamedTuple):
    """A message from a stage to a process.

    what: "x" (activations), "dy" (cotangents), LOSS or REFUSED.
    k: the stage that sends.
    to: the process that receives.
    seen: PREDICTED, SENT (in the sender's process) or ARRIVED (in the receiver's).
    size: its bytes.
    """

    what: str
    k: int
    to: int
    seen: str
    size: int


def process_of(engine: HostEngine, k: int) -> int:
    """The process that has stage k."""
    return engine.problem.places[k - 1].device.process_index


def processes_of(engine: HostEngine) -> set[int]:
    """All processes that have a stage."""
    return {process_of(engine, spec.k) for spec in engine.problem.specs}


@contextmanager
def counting(engine: HostEngine) -> Iterator[list[Message]]:
    """A context that lists the messages that this process sends to other processes and receives from them."""
    found, here = list[Message](), jax.process_index()

    def counted(call: Call, dispatch: Callable[[], Any]) -> Any:
        arrived, sender = dispatch(), call.sender.k if call.sender else call.k
        all_of = {"send": {process_of(engine, call.k)}, "tell": processes_of(engine)}
        receivers = all_of.get(call.what, set())
        what = call.address.what if call.address else REFUSED if call.like is COUNT else LOSS
        for to in receivers - {process_of(engine, sender)}:
            if process_of(engine, sender) == here:
                found.append(Message(what, sender, to, SENT, memory.tree_bytes(call.message)))
            elif to == here:
                found.append(Message(what, sender, to, ARRIVED, memory.tree_bytes(arrived)))
        return arrived

    with around(engine, counted):
        yield found


def predicted(engine: HostEngine) -> list[Message]:
    """The messages that all processes exchange in one tick of a full pipeline."""
    schedule, found = engine.loop.schedule, list[tuple[str, int, int, int]]()
    specs = memory.micro_batch_specs(engine.problem.specs, schedule.micro_batches)
    to_all = [(LOSS, schedule.K, memory.tree_bytes(specs[-1].value))]
    to_all += [(REFUSED, spec.k, memory.tree_bytes(COUNT)) for spec in specs if spec.guard]
    for op in schedule.tick(4 * schedule.K + 2, None):
        for address in schedule.messages.gives(op):
            if address.what == "loss":
                found += [(what, k, to, size) for what, k, size in to_all for to in processes_of(engine)]
            else:
                size = memory.message_bytes(address, op, specs)
                found.append((address.what, op.k, process_of(engine, address.k), size))
    return [Message(what, k, to, PREDICTED, size) for what, k, to, size in found if to != process_of(engine, k)]

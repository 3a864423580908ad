"""What the engines share: the parts of a checked training problem, and losses that are read late.

An engine runs a training; all have the same verbs (step, train, drain, evaluate, state, restore), so that whoever
drives them need not know which it is. `host_engine` dispatches stage by stage, `scan_engine` many batches at once.
`fdg_jax.Pipeline` is the front door; it checks everything before one of them is made.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fdg_jax import checkpoint, compat
from fdg_jax.devices import Place
from fdg_jax.errors import BadInput
from fdg_jax.functions import Spec
from fdg_jax.schedule import Schedule
from fdg_jax.stage import Stage

Tree = Any
HOST_LOOP, SCAN = "host loop", "scan"


class Metrics(NamedTuple):
    """step: the batch's number, from 1. loss: of that batch, at the weights it met."""

    step: int
    loss: float


class LossWindow:
    """Reads losses late: only what is finished, or, beyond `limit` dispatches, the oldest one.

    The bound keeps the run-ahead on an accelerator finite; nothing else in the loop ever waits.
    """

    def __init__(self, limit: int):
        self.limit, self.pending, self.finished = limit, deque[tuple[int, jax.Array]](), list[Metrics]()

    def add(self, step: int, losses: jax.Array) -> None:
        """losses [] of batch `step`, or [W] of the batches from `step` on."""
        self.pending.append((step, losses))
        while self.pending and (len(self.pending) > self.limit or compat.is_ready(self.pending[0][1])):
            self.read()

    def read(self) -> None:
        step, losses = self.pending.popleft()
        values = np.atleast_1d(jax.device_get(losses))
        self.finished += [Metrics(step + i, float(value)) for i, value in enumerate(values)]

    def read_all(self) -> None:
        while self.pending:
            self.read()

    def take(self) -> list[Metrics]:
        taken, self.finished = self.finished, []
        return taken


class Parts(NamedTuple):
    """A checked training problem, ready to be run by either engine."""

    schedule: Schedule
    stage: type[Stage]  # the method's
    specs: Sequence[Spec]  # of the stages k = 1..K
    preprocess: Callable[[Tree, jax.Array], Tree] | None
    places: Sequence[Place]  # of each stage
    delays: Sequence[int]  # of each stage's gradient, in backward passes; 0 where the schedule itself is the delay
    weights: str
    read_behind: int


def signature(parts: Parts, engine: str) -> str:
    """What a state belongs to, beside its shapes."""
    schedule = parts.schedule
    behind = "/".join(str(b + d) for b, d in zip(schedule.behind, parts.delays, strict=True))  # tells the order too
    updates = f"{schedule.accumulation} of {schedule.accumulate}" if schedule.accumulate > 1 else "every gradient"
    computed = parts.specs[0].how.precision.compute
    dtype = "" if computed is None else f" in {np.dtype(computed).name}"
    return f"{schedule.name}, K={schedule.K}, {behind} behind, {updates}, {parts.weights} weights{dtype}, {engine}"


def check_signature(parts: Parts, engine: str, flat: checkpoint.Flat) -> None:
    """Raises BadInput where a state is of another run, or of this one on the other kind of machine."""
    ours, theirs = signature(parts, engine), bytes(flat.get("of", np.zeros(0, np.uint8))).decode()
    if ours == theirs:
        return
    if {ours.rpartition(", ")[2], theirs.rpartition(", ")[2]} == {HOST_LOOP, SCAN}:
        made = "an accelerator (scan)" if theirs.endswith(SCAN) else "the host loop (a CPU, or K devices)"
        raise BadInput(f"the checkpoint was made by {made} and has another layout. Resume it where it was made.")
    raise BadInput(f"the checkpoint is of another run ({theirs or 'unknown'}); this one is {ours}.")


def signed(parts: Parts, engine: str) -> dict[str, np.ndarray]:
    return {"of": np.frombuffer(signature(parts, engine).encode(), np.uint8)}


class Compiled:
    """Jits a function of evaluation's transform; keeps the last one, as callers give the same again and again."""

    def __init__(self, make: Callable[[Any], Callable]):
        self.make, self.last = make, None

    def __call__(self, transform: Callable | None) -> Callable:
        if self.last is None or self.last[0] is not transform:
            self.last = (transform, jax.jit(self.make(transform)))
        return self.last[1]

"""What the engines share: the parts of a checked training problem, and losses that are read late.

An engine runs a training; all have the same verbs (step, train, drain, evaluate, state, restore), so that whoever
drives them need not know which it is. `host_engine` dispatches stage by stage, `scan_engine` many batches at once.
`fdg_jax.Pipeline` is the front door; it checks everything before one of them is made.
"""

import math
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fdg_jax.errors import BadInput
from fdg_jax.machine import jax_internals, programs
from fdg_jax.schedule import Schedule
from fdg_jax.stage.functions import Functions, Spec, StageState
from fdg_jax.stage.nonfinite import finite
from fdg_jax.stage.stage import Stage
from fdg_jax.transport.devices import Place

Tree = Any
HOST_LOOP, SCAN = "host loop", "scan"


class Metrics(NamedTuple):
    """step: the batch's number, from 1. loss: of that batch, at the weights it met. bad: of a guarded pipeline, per
    stage the number of its first update that was refused (0: none), as far as was known then."""

    step: int
    loss: float
    bad: tuple[int, ...] = ()


class LossWindow:
    """Reads losses late: only what is finished, or, beyond `limit` dispatches, the oldest one.

    The bound keeps the run-ahead on an accelerator finite; nothing else in the loop ever waits.
    """

    def __init__(self, limit: int):
        self.limit, self.finished = limit, list[Metrics]()
        self.pending = deque[tuple[int, jax.Array, Sequence[jax.Array]]]()

    def add(self, step: int, losses: jax.Array, bad: Sequence[jax.Array] = ()) -> None:
        """losses [] of batch `step`, or [W] of the batches from `step` on; bad: of the stages in order."""
        self.pending.append((step, losses, bad))
        while self.pending and (len(self.pending) > self.limit or self.ready(*self.pending[0][1:])):
            self.read()

    def ready(self, losses: jax.Array, bad: Sequence[jax.Array]) -> bool:
        return jax_internals.is_ready(losses) and all(map(jax_internals.is_ready, bad))

    def read(self) -> None:
        step, losses, bad = self.pending[0]
        losses, *bad = jax_internals.fetch(
            [losses, *bad]
        )  # may wait, so this is where Ctrl-C comes: nothing is lost then
        refused = tuple(int(number) for stages in bad for number in np.ravel(stages))
        read = [Metrics(step + i, float(loss), refused) for i, loss in enumerate(np.ravel(losses))]
        self.pending.popleft()
        self.finished += read

    def read_all(self) -> None:
        while self.pending:
            self.read()

    def take(self) -> list[Metrics]:
        taken, self.finished = self.finished, []
        return taken


def warn_of_lost(finished: Sequence[Metrics]) -> bool:
    """Whether one of the losses is not finite. Then a warning names its batch."""
    lost = next((metrics for metrics in finished if not math.isfinite(metrics.loss)), None)
    if lost is not None:
        warnings.warn(
            f"the loss of batch {lost.step:,} is {lost.loss}. Look for a NaN in the data, labels outside the classes "
            "or a learning rate that is too high. unsound(batch) names the stage; guard=True keeps such gradients from "
            "the weights. This is said once.",
            stacklevel=4,
        )
    return lost is not None


class Unsound(NamedTuple):
    """Where a number stops being one: `what` of stage k (its weights, its outputs, the loss)."""

    k: int
    what: str


def first_unsound(stages: Sequence[tuple[Functions, StageState, Place]], x: Tree, labels: Tree) -> Unsound | None:
    """The first stage that gives something that is not finite for the inputs x of stage 1, in training mode and with
    the weights of now, or that has such weights; None where all is sound. Waits for every stage: for the rare case."""
    for k, (functions, state, place) in enumerate(stages, 1):
        if not jax.jit(finite)(state.params):
            return Unsound(k, "weights")
        run = programs.jit(
            lambda params, extra, x, labels, run=functions.forward: run(params, extra, x, labels)[0],
            place.device.platform,
            reductions=False,
        )
        messages = run(state.params, state.extra, place.batch(x), place.batch(labels))
        if not jax.jit(finite)(messages):
            return Unsound(k, "loss" if "loss" in messages else "outputs")
        x = messages.get("x")
    return None


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


def check_signature(parts: Parts, engine: str, flat: Mapping[str, Any]) -> None:
    """Raises BadInput where a state is of another run, or of this one on the other kind of machine."""
    of = np.asarray(flat["of"] if "of" in flat else np.zeros(0, np.uint8))
    ours, theirs = signature(parts, engine), of.tobytes().decode(errors="replace")
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

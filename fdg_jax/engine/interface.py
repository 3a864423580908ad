"""What an engine is, and what it is made of: a training problem that has been checked."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from fdg_jax.engine.evaluate import Evaluation
from fdg_jax.engine.losses import LossWindow
from fdg_jax.engine.unfinished import Trail
from fdg_jax.engine.unsound import Unsound
from fdg_jax.errors import BadInput
from fdg_jax.schedule import Schedule
from fdg_jax.stage.functions import Spec
from fdg_jax.stage.stage import Stage
from fdg_jax.transport.devices import Place

Tree = Any
HOST_LOOP, SCAN = "host loop", "scan"


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


class Engine(Protocol):
    """Runs a training problem. All engines have these members, so that whoever drives one need not know which it is.

    parts: the problem. losses: the losses of the batches so far. entered: how many batches have entered.
    within_tick: whether a call was cut off within a tick, or is within one now; then only `restore` helps.
    """

    parts: Parts
    losses: LossWindow
    entered: int
    within_tick: bool

    def step(self, inputs: Tree, labels: Tree) -> None:
        """Enters one batch. Dispatches and does not wait."""
        ...

    def train(self, images: np.ndarray, labels: np.ndarray, indices: np.ndarray) -> None:
        """Enters the batches images[row], labels[row] for the rows of indices [W, batch]."""
        ...

    def drain(self) -> None:
        """Finishes what is in flight, so that every batch has updated every stage."""
        ...

    def wait(self) -> None:
        """Blocks until everything dispatched has been computed."""
        ...

    def watch(self) -> Trail:
        """From now on notes every operation until it is finished."""
        ...

    def evaluate(self, batches: Iterable, transform: Callable[[Tree], Tree] | None) -> Evaluation:
        """Loss and error with the newest weights of all stages."""
        ...

    def unsound(self, inputs: Tree, labels: Tree, step: int) -> Unsound | None:
        """The first stage that gives a NaN or an infinity for a batch; step: batches before it."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """The exact state, batches in flight included, as {path: array}; arrays may still be under way."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `snapshot`, all or nothing. Raises BadInput for a state of another problem."""
        ...

    def stage_variables(self) -> list[dict[str, Tree]]:
        """Per stage the network's Flax variables."""
        ...

    def auxiliary(self) -> list[Tree]:
        """Per stage the trained parameters that the method adds to the network's."""
        ...

    def refused(self) -> tuple[int, ...]:
        """Per guarded stage the number of its first refused update, 0 if none. Waits for the devices."""
        ...

    def staleness(self) -> list[int]:
        """Per stage the most updates between a batch's forward pass and its update, as measured."""
        ...

    def updates(self) -> list[int]:
        """Per stage the updates made so far."""
        ...

"""The interface of engines, and `Problem`, which says what an engine is to train."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import jax
import numpy as np

from fdg_jax.engine.evaluate import Evaluation, Tally, evaluate, fitting, tally
from fdg_jax.engine.losses import Losses
from fdg_jax.engine.unfinished import UnfinishedOperations
from fdg_jax.errors import BadInput
from fdg_jax.machine import programs
from fdg_jax.schedule import Schedule
from fdg_jax.stages.functions import Spec, StageState, raw_key
from fdg_jax.stages.nonfinite import all_finite
from fdg_jax.stages.preprocessing import Preprocess
from fdg_jax.stages.shapes import describe, examples, shape_of, with_examples
from fdg_jax.stages.stage import Stage
from fdg_jax.stages.switches import name_of
from fdg_jax.transport.devices import Place

Tree = Any
HOST_LOOP, SCAN = "host loop", "scan"


class Problem(NamedTuple):
    """A training problem that has been checked, for any engine.

    schedule: the method's schedule for K stages.
    stage: the class of the method's stages.
    specs: the specs of the stages k = 1..K.
    preprocess: the function that changes each batch before it enters; None if there is none.
    places: the device, or the devices, of each stage.
    waits: for each stage, the number of gradients that its delay line holds back; 0 if the schedule itself makes the
        gradients late.
    weights: the weights at which gradients are taken: "stashed" (of the batch's forward pass) or "current" (newest).
    corrections: the names of the corrections of late gradients, in order, without the multiplication by beta.
    read_behind: the most dispatches whose losses may be unread.
    """

    schedule: Schedule
    stage: type[Stage]
    specs: Sequence[Spec]
    preprocess: Preprocess | None
    places: Sequence[Place]
    waits: Sequence[int]
    weights: str
    corrections: Sequence[str]
    read_behind: int


def signature(problem: Problem, engine: str) -> str:
    """A text that must be equal for a saved state and the pipeline that restores it. It names method, K, delays,
    updates, weights, corrections, dtype and engine."""
    schedule = problem.schedule
    late = zip(schedule.delays, problem.waits, strict=True)  # the delays depend on `order`, too
    delays = "/".join(str(delay + wait) for delay, wait in late)
    updates = f"{schedule.accumulation} of {schedule.accumulate}" if schedule.accumulate > 1 else "every gradient"
    # The states of two corrections may have the same shapes but different meanings.
    corrected = f", corrected by {','.join(problem.corrections)}" if problem.corrections else ""
    computed = problem.specs[0].compute.precision.compute_dtype
    dtype = "" if computed is None else f" in {np.dtype(computed).name}"
    what = f"{updates}, {problem.weights} weights{corrected}{dtype}"
    return f"{schedule.name}, K={schedule.K}, {delays} behind, {what}, {engine}"


def check_signature(problem: Problem, engine: str, flat: Mapping[str, Any]) -> None:
    """Raises BadInput if a saved state belongs to another problem, or to another kind of engine."""
    of = np.asarray(flat["of"] if "of" in flat else np.zeros(0, np.uint8))
    ours, theirs = signature(problem, engine), of.tobytes().decode(errors="replace")
    if ours == theirs:
        return
    if {ours.rpartition(", ")[2], theirs.rpartition(", ")[2]} == {HOST_LOOP, SCAN}:
        made = "an accelerator (scan)" if theirs.endswith(SCAN) else "the host loop (a CPU, or K devices)"
        raise BadInput(f"the checkpoint was made by {made}, which stores other arrays. Resume the run there.")
    raise BadInput(f"the checkpoint is of another run ({theirs or 'unknown'}); this run is {ours}. Use its options.")


def signature_entry(problem: Problem, engine: str) -> dict[str, np.ndarray]:
    """The signature as an entry of a saved state."""
    return {"of": np.frombuffer(signature(problem, engine).encode(), np.uint8)}


class Nonfinite(NamedTuple):
    """Where the first non-finite number appears.

    k: the stage.
    what: "weights", "outputs" or "loss".
    """

    k: int
    what: str


WHAT = ("", "weights", "outputs", "loss")  # `look` returns an index into this tuple


def look(forward: Callable, state: StageState, place: Place, x: Tree, labels: Tree) -> tuple[int, Tree]:
    """Runs a batch through a stage in training mode with its newest weights, and waits for the result.

    Arguments:
        forward: the stage's compiled forward pass.
        state, place: the stage's state and place.
        x, labels: the stage's inputs, and the labels.

    Returns: (index into `WHAT` of the part that is not finite, 0 for none; the stage's outputs).
    """
    finite = programs.jit(all_finite)
    if not finite(state.params):
        return WHAT.index("weights"), None
    messages, *_ = forward(state.params, state.extra, place.put_batch(x), place.put_batch(labels))
    if finite(messages):
        return 0, messages.get("x")
    return WHAT.index("loss" if "loss" in messages else "outputs"), None


class Engine(ABC):
    """Trains a problem. All engines have these members, so callers do not need to know which engine it is.

    problem: the problem, without the initial weights, which would stay in memory.
    losses: the losses of its batches.
    entered: number of batches that have entered.
    within_tick: whether a call is within a tick, or was cut off there. After a cut-off, only `restore` helps.
    unfinished: the unfinished operations; None until `watch` is called.
    last: the place of stage K; None if stage K is in another process.
    """

    last: Place | None
    alone = True  # whether no stage is in another process

    def __init__(self, problem: Problem):
        specs = problem.specs
        self.problem = problem._replace(specs=[spec._replace(variables={}) for spec in specs])
        self.losses = self.no_losses()
        self.entered = 0
        self.within_tick = False
        self.unfinished: UnfinishedOperations | None = None
        made = problem.preprocess
        self._make_inputs = programs.jit(made.inputs) if made else None
        self._make_labels = programs.jit(made.labels) if made and made.labels else None
        self._tally = programs.jit(partial(tally, specs[-1].report))
        self._transform: tuple[Any, Any] = (None, None)  # the newest transform and its program

    def no_losses(self) -> Losses:
        """A new `Losses`. A guarded pipeline does not warn of non-finite losses: `Metrics.bad` reports them."""
        return Losses(self.problem.read_behind, early=self.alone, warned=self.problem.specs[0].guard)

    @abstractmethod
    def train_batch(self, inputs: Tree, labels: Tree) -> None:
        """Enters one batch: dispatches the work and does not wait for it."""

    @abstractmethod
    def train(self, images: np.ndarray, labels: np.ndarray | None, indices: np.ndarray) -> None:
        """Enters the batches images[row], labels[row] for the rows of indices [W, batch]."""

    @abstractmethod
    def drain(self) -> None:
        """Finishes the batches in flight, so that every batch has updated every stage."""

    @abstractmethod
    def wait(self) -> None:
        """Blocks until all dispatched work has been computed."""

    @abstractmethod
    def watch(self) -> UnfinishedOperations:
        """Starts to record every operation from its dispatch until it is finished."""

    @abstractmethod
    def holding(self, variables: Sequence[Mapping[str, Tree]] | None) -> Any:
        """The stages for `outputs`: with their newest weights, or with these Flax variables (one dictionary each)."""

    @abstractmethod
    def outputs(
        self, held: Any, inputs: Tree, n: int, transform: Callable[[Tree], Tree] | None, keys: Sequence[Any]
    ) -> Tree:
        """The outputs of stage K for n examples, in evaluation mode; None if stage K is in another process.

        held: the result of `holding`. keys: for each stage a random key, or None.
        """

    def keys_of(self, call: str, key: Any, with_loss: bool) -> Callable[[int], list[Any]]:
        """Returns a function: batch number n in an evaluation, from 1 -> the random keys of the stages. The key of
        stage k is fold_in(fold_in(key, n), k). Raises BadInput if `key` is None but a module or the loss draws random
        numbers.

        call: the caller's name, for the message. with_loss: whether the loss is computed.
        """
        specs = self.problem.specs
        who = [f"stage k={spec.k} ({name_of(spec.module)})" for spec in specs if spec.compute.draws]
        who += ["the loss"] if with_loss and specs[-1].compute.loss_draws else []
        if not who:
            return lambda n: [None for _ in specs]
        if key is None:
            fact = f"{who[0]} draws random numbers in evaluation, too. Call {call}(..., key=jax.random.key(0))"
            raise BadInput(f"{fact}, or draw random numbers only if `train` is True.")
        return lambda n: [raw_key(jax.random.fold_in(jax.random.fold_in(key, n), spec.k)) for spec in specs]

    def from_last(self, value: Tree, like: Tree) -> Tree:
        """Sends a value from stage K to every process. like: its shapes and dtypes."""
        return value

    def evaluate(
        self, held: Any, batches: Iterable, transform: Callable[[Tree], Tree] | None, key: Any = None
    ) -> Evaluation:
        """Loss and error. held: the result of `holding`. transform: maps inputs to those of stage 1; or None. key: a
        random key, if modules or the loss draw random numbers."""
        specs, numbers = self.problem.specs, count(1)
        keys, loss_draws = self.keys_of("evaluate", key, with_loss=True), specs[-1].compute.loss_draws

        def run(inputs: Tree, labels: Tree) -> Tally:
            drawn: list[Any] = keys(next(numbers))
            found: Any = None
            n, of_loss = examples(inputs), drawn[-1] if loss_draws else None
            outputs = self.outputs(held, inputs, n, transform, drawn)
            if self.last:
                found = self._tally(outputs, self.last.put_batch(labels), self.last.put_weights(of_loss), n)
            if self.alone:
                return found
            like = self.outputs_like(n), shape_of(labels), of_loss, n
            return self.from_last(found, self._tally.eval_shape(*like))

        return evaluate(run, batches, self.unfinished, (specs[0].x, specs[-1].labels))

    def predict(self, held: Any, inputs: Tree, transform: Callable[[Tree], Tree] | None, key: Any = None) -> Tree:
        """The outputs of stage K, in every process; does not wait for them. held: the result of `holding`. key: a
        random key, if modules draw random numbers; they draw as for the first batch of `evaluate`."""
        n, specs, keys = examples(inputs), self.problem.specs, self.keys_of("predict", key, with_loss=False)(1)
        with fitting("predict", f"inputs {describe(inputs)}", f"stage 1 takes {describe(specs[0].x)}"):
            return self.from_last(self.outputs(held, inputs, n, transform, keys), self.outputs_like(n))

    def outputs_like(self, n: int) -> Tree:
        """The shapes of stage K's outputs for n examples."""
        specs = self.problem.specs
        return with_examples(specs[-1].outputs, n, examples(specs[0].x))

    def transformed(self, x: Tree, transform: Callable[[Tree], Tree] | None) -> Tree:
        """Applies the transform of an evaluation to inputs, on the device where they are."""
        if transform is None:
            return x
        if self._transform[0] is not transform:
            self._transform = transform, programs.jit(transform)
        return self._transform[1](x)

    @abstractmethod
    def first_nonfinite(self, inputs: Tree, labels: Tree, step: int) -> Nonfinite | None:
        """The first stage that produces a NaN or an infinity for a batch. step: number of batches before it."""

    @abstractmethod
    def snapshot(self, own: bool = False) -> dict[str, Any]:
        """The exact state, batches in flight included, as {path: array}. Later dispatches do not change its arrays.

        own: whether to return only this process's part. If False, each process waits for all processes and returns the
            whole state.
        """

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `snapshot`. Raises BadInput for a state that is incomplete, or of another model, split, method
        or engine. After this error nothing has changed in any process."""

    @abstractmethod
    def stage_variables(self, ema: bool = False) -> list[dict[str, Tree]]:
        """For each stage, the network's Flax variables; with `ema`, the averaged weights."""

    @abstractmethod
    def optimizer_states(self) -> list[Tree]:
        """For each stage, the state of the user's optimizer; None for a stage in another process."""

    @abstractmethod
    def set_hyperparameters(self, values: Mapping[str, Any], stages: Collection[int]) -> None:
        """Sets injected hyperparameters in the optimizers of these stages k. Raises BadInput if one of the optimizers
        does not have them. After this error nothing has changed in any process."""

    @abstractmethod
    def auxiliary(self) -> list[Tree]:
        """For each stage, the trained parameters that the method adds to the network's."""

    @abstractmethod
    def bad(self) -> list[jax.Array]:
        """For each guarded stage, the number of its first skipped update, 0 if none. Does not wait for the arrays."""

    @abstractmethod
    def norms(self) -> list[jax.Array]:
        """For each stage the norm of its newest gradient; [] if it is not measured. Does not wait for the arrays."""

    @abstractmethod
    def staleness(self) -> list[int]:
        """For each stage, the largest measured staleness, in updates."""

    @abstractmethod
    def updates(self) -> list[int]:
        """For each stage, the number of its updates."""

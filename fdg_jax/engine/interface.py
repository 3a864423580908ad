"""The interface of engines, and the training problem that an engine gets."""

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
    """A training problem that has been checked, for either engine.

    schedule: the method's, for K stages.
    stage: the class of the method's stages.
    specs: of the stages k = 1..K.
    preprocess: what is done to a batch first; None for nothing.
    places: where each stage is.
    waits: for each stage, the backward passes by which it puts off gradients; 0 if the schedule itself delays them.
    weights: "stashed" or "current".
    corrections: the names of the corrections of late gradients, in order, without beta's shrinking.
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
    """What a saved state and a pipeline must have in common, beside shapes: method, K, staleness, updates, weights,
    corrections, dtype, engine."""
    schedule = problem.schedule
    late = zip(schedule.delays, problem.waits, strict=True)  # the delays depend on `order`, too
    delays = "/".join(str(delay + wait) for delay, wait in late)
    updates = f"{schedule.accumulation} of {schedule.accumulate}" if schedule.accumulate > 1 else "every gradient"
    # Two corrections may have states of the same shapes with different meanings.
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
        raise BadInput(f"the checkpoint was made by {made} and has another layout. Resume it where it was made.")
    raise BadInput(f"the checkpoint is of another run ({theirs or 'unknown'}); this one is {ours}. Use its options.")


def signature_entry(problem: Problem, engine: str) -> dict[str, np.ndarray]:
    """The signature as an entry of a saved state."""
    return {"of": np.frombuffer(signature(problem, engine).encode(), np.uint8)}


class Nonfinite(NamedTuple):
    """Where the first non-finite number is.

    k: the stage.
    what: "weights", "outputs" or "loss".
    """

    k: int
    what: str


WHAT = ("", "weights", "outputs", "loss")  # by the number that `look` returns


def look(forward: Callable, state: StageState, place: Place, x: Tree, labels: Tree) -> tuple[int, Tree]:
    """Runs a batch through a stage in training mode with its newest weights, and waits for it.

    Arguments:
        forward: the stage's compiled forward pass.
        state, place: of the stage.
        x, labels: what the stage takes.

    Returns: (which part of the stage is not finite, as a number of `WHAT`, 0 for none; its outputs).
    """
    finite = programs.jit(all_finite)
    if not finite(state.params):
        return WHAT.index("weights"), None
    messages, *_ = forward(state.params, state.extra, place.put_batch(x), place.put_batch(labels))
    if finite(messages):
        return 0, messages.get("x")
    return WHAT.index("loss" if "loss" in messages else "outputs"), None


class Engine:
    """Trains a problem. Both engines have these members, so that no caller needs to know which engine it is.

    problem: what it trains, without the initial weights, which would stay in memory.
    losses: the losses of its batches.
    entered: number of batches that have entered.
    within_tick: whether a call is within a tick, or was cut off there. After a cut-off, only `restore` helps.
    unfinished: the operations under way; None until `watch` is called.
    last: where stage K is; None if that is in another process.
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
        """The losses before the first batch. A guarded pipeline does not warn: `Metrics.bad` reports its updates."""
        return Losses(self.problem.read_behind, early=self.alone, warned=self.problem.specs[0].guard)

    def train_batch(self, inputs: Tree, labels: Tree) -> None:
        """Enters one batch. Dispatches and does not wait."""
        raise NotImplementedError

    def train(self, images: np.ndarray, labels: np.ndarray | None, indices: np.ndarray) -> None:
        """Enters the batches images[row], labels[row] for the rows of indices [W, batch]."""
        raise NotImplementedError

    def drain(self) -> None:
        """Finishes what is in flight, so that every batch has updated every stage."""
        raise NotImplementedError

    def wait(self) -> None:
        """Blocks until everything that was dispatched has been computed."""
        raise NotImplementedError

    def watch(self) -> UnfinishedOperations:
        """From now on, notes every operation until it is finished."""
        raise NotImplementedError

    def holding(self, variables: Sequence[Mapping[str, Tree]] | None) -> Any:
        """What `outputs` evaluates: the stages as they are, or with these Flax variables, one dictionary for each."""
        raise NotImplementedError

    def outputs(
        self, held: Any, inputs: Tree, n: int, transform: Callable[[Tree], Tree] | None, keys: Sequence[Any]
    ) -> Tree:
        """The outputs of stage K for n examples, in evaluation mode; None if stage K is in another process.

        held: what `holding` gave. keys: for each stage a random key, or None if nobody has given any.
        """
        raise NotImplementedError

    def keys_of(self, call: str, key: Any, with_loss: bool) -> Callable[[int], list[Any]]:
        """The function n -> the random keys of the stages for batch n of an evaluation, from 1: stage k has
        fold_in(fold_in(key, n), k). Raises BadInput if there is no key but a module or the loss draws.

        call: for the message. with_loss: whether the loss is computed.
        """
        specs = self.problem.specs
        who = [f"stage k={spec.k} ({name_of(spec.module)})" for spec in specs if spec.compute.draws]
        who += ["the loss"] if with_loss and specs[-1].compute.loss_draws else []
        if not who:
            return lambda n: [None for _ in specs]
        if key is None:
            fact = f"{who[0]} draws random numbers in evaluation, too: call {call}(..., key=jax.random.key(0))"
            raise BadInput(f"{fact}, or let it draw nothing where `train` is False.")
        return lambda n: [raw_key(jax.random.fold_in(jax.random.fold_in(key, n), spec.k)) for spec in specs]

    def from_last(self, value: Tree, like: Tree) -> Tree:
        """A value of stage K, with the shapes and dtypes of `like`, in every process."""
        return value

    def evaluate(
        self, held: Any, batches: Iterable, transform: Callable[[Tree], Tree] | None, key: Any = None
    ) -> Evaluation:
        """Loss and error of what `holding` gave. transform: maps inputs to those of stage 1; or None. key: a random
        key, if something is to be drawn."""
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
        """The outputs of what `holding` gave, in every process. Dispatches and does not wait. key: a random key, if
        something is to be drawn; that of an evaluation's first batch."""
        n, specs, keys = examples(inputs), self.problem.specs, self.keys_of("predict", key, with_loss=False)(1)
        with fitting("predict", f"inputs {describe(inputs)}", f"stage 1 takes {describe(specs[0].x)}"):
            return self.from_last(self.outputs(held, inputs, n, transform, keys), self.outputs_like(n))

    def outputs_like(self, n: int) -> Tree:
        """The shapes of stage K's outputs for n examples."""
        specs = self.problem.specs
        return with_examples(specs[-1].outputs, n, examples(specs[0].x))

    def transformed(self, x: Tree, transform: Callable[[Tree], Tree] | None) -> Tree:
        """Applies the transform of an evaluation to inputs on their device."""
        if transform is None:
            return x
        if self._transform[0] is not transform:
            self._transform = transform, programs.jit(transform)
        return self._transform[1](x)

    def first_nonfinite(self, inputs: Tree, labels: Tree, step: int) -> Nonfinite | None:
        """The first stage that produces a NaN or an infinity for a batch. step: number of batches before it."""
        raise NotImplementedError

    def snapshot(self, own: bool = False) -> dict[str, Any]:
        """The exact state, batches in flight included, as {path: array}. No later dispatch touches its arrays.

        own: whether to return only this process's part. Otherwise each process waits for all and gets the whole state.
        """
        raise NotImplementedError

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `snapshot`. Raises BadInput for a state that is incomplete, or of another model, split, method
        or engine. Then nothing has changed in any process, since everything new is made first."""
        raise NotImplementedError

    def stage_variables(self, ema: bool = False) -> list[dict[str, Tree]]:
        """For each stage, the network's Flax variables; with `ema`, the average of the weights."""
        raise NotImplementedError

    def optimizer_states(self) -> list[Tree]:
        """For each stage, the state of the user's optimizer; None for a stage in another process."""
        raise NotImplementedError

    def set_hyperparameters(self, values: Mapping[str, Any], stages: Collection[int]) -> None:
        """Sets injected hyperparameters in the optimizers of these stages k. Raises BadInput if one cannot have them;
        then nothing has changed in any process."""
        raise NotImplementedError

    def auxiliary(self) -> list[Tree]:
        """For each stage, the trained parameters that the method adds to the network's."""
        raise NotImplementedError

    def bad(self) -> list[jax.Array]:
        """For each guarded stage, the number of its first refused update, 0 if none. The arrays may be under way."""
        raise NotImplementedError

    def norms(self) -> list[jax.Array]:
        """For each stage the norm of its newest gradient; [] if they are not measured. The arrays may be under way."""
        raise NotImplementedError

    def staleness(self) -> list[int]:
        """For each stage, the largest measured staleness, in updates."""
        raise NotImplementedError

    def updates(self) -> list[int]:
        """For each stage, the number of its updates."""
        raise NotImplementedError

"""`fdg_jax.Pipeline`: train your own Flax modules as K stages, each on its own device, none waiting for another.

Everything that can be wrong is checked by `jax.eval_shape` before anything compiles; then an engine does the work.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax

from fdg_jax.checkpoint import state as states
from fdg_jax.checkpoint.state import check_finite, check_state
from fdg_jax.checks.arguments import check_read_behind
from fdg_jax.checks.batches import as_pair, check_batch, check_indices, checked_batches, copy_arrays
from fdg_jax.checks.configuration import Configuration
from fdg_jax.corrections.interface import Kind
from fdg_jax.engine.evaluate import Evaluation
from fdg_jax.engine.host_engine import HostEngine, delay_line_engine
from fdg_jax.engine.interface import Engine, Problem
from fdg_jax.engine.losses import FinishedLosses, Metrics
from fdg_jax.engine.turn import Turn
from fdg_jax.engine.unfinished import UnfinishedOperations
from fdg_jax.engine.unsound import Unsound
from fdg_jax.errors import BadInput
from fdg_jax.methods.interface import Method
from fdg_jax.outcome import Outcome

Tree = Any
Batch = tuple[Tree, Tree] | Mapping[str, Tree]
ENGINES: dict[str, Callable[[Problem], Engine]] = {
    "pipeline": HostEngine,
    "delay-line": delay_line_engine,
}


class Pipeline(Outcome):
    """A network cut into stages k = 1..K, trained by one of the paper's methods.

    stages: Flax (linen) modules. Stage k+1 takes what stage k gives; a `train` argument, batch statistics and keys
        for "dropout" and other random streams are handled where a module has them. With `split`, the blocks of a
        network, any number of them. docs/own-modules.md says what else modules may do.
    split: cuts the blocks into K stages when shapes are known, in init: "balanced" by FLOPs, "measured" by block times
        on this device, "even", or the first blocks of stages 2..K, as the flag --split. K: by default as many as there
        are `devices`, or as the block numbers say. First weights then depend on init's key alone, not on K.
    loss: loss(outputs, labels) -> scalar, the mean over the batch, on stage K; or (scalar, {name: number}), whose
        numbers `Metrics.metrics` and `evaluate` give back. What modules sow as "losses" is minimised beside it.
    optimizer: an optax chain; each stage gets its own state of it, after the shrink by beta**(K-k) (Eq. 17). Or a list
        of chains, one a stage, or a function k -> chain. Each sees the gradients of its own stage only: so
        optax.clip_by_global_norm(c) clips every stage by the norm of that stage's gradient. For a whole network whose
        stages have gradients of about the same length, c / sqrt(K) is the nearest thing.
    correct: what else is done about late gradients: a file of fdg_jax/corrections, whose own options are keyword
        arguments here; a `Kind` of your own; or several, as "rate,cosine" or a list of names and kinds. Shrinking by
        beta is one of these files, and comes first unless the one asked for takes beta. Before Adam, Muon and others
        that divide a gradient by its size beta cancels: init warns where three steps of the optimizer show it.
    learning_rate, momentum: the optimizer's, for corrections that need them, as an optax chain does not tell.
    method: a file of fdg_jax/methods, or a `Method` of your own. beta, order, weights, and further keyword arguments
        (accumulate, aux, ...): as the flags of the same names; a method refuses those it does not have.
    devices: one per stage, or one for the delay line; default accelerators, else emulated CPU devices.
    engine: "pipeline" (K devices) or "delay-line" (the same training on one device, stashed weights only).
    dtype: "float32" (arrays are left as they are) or "bfloat16": kernels and activations are computed with in bfloat16,
        everything that is remembered, and the loss, in float32 (fdg_jax.stage.precision). Flax layers need `dtype` too.
    remat: stages whose backward pass computes the activations again, so that a memo keeps only the input: "none",
        "all", or their numbers (1, 2).
    preprocess: (inputs, step) -> what stage 1 takes, traced on stage 1's device; step counts batches from 0.
    guard: make no update by a loss or a gradient with a NaN or an infinity, and keep no running statistics with one;
        `Metrics.bad` tells of the updates. Weights and moments stay as they are; schedules count such an update, too.
    gradient_norms: measure the norm of every stage's gradient; `Metrics.gradient_norms` tells it.
    read_behind: dispatches whose losses may be unread, 1 or more (bounds how far the host runs ahead).

    Raises BadInput with the fact, the numbers and the way out. One thread at a time may call step, train, drain, state
    and restore. A pipeline cannot be copied or pickled: state() and restore() do that.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        loss: Callable[[Tree, Tree], Tree],
        optimizer: optax.GradientTransformation
        | Sequence[optax.GradientTransformation]
        | Callable[[int], optax.GradientTransformation],
        method: str | Method = "fdg",
        *,
        split: str | Sequence[int] | None = None,
        K: int | None = None,
        beta: float = 1.0,
        correct: str | Kind | Sequence[str | Kind] = "none",
        learning_rate: optax.ScalarOrSchedule | None = None,
        momentum: float | None = None,
        devices: Sequence[Any] | None = None,
        engine: str = "pipeline",
        order: str | None = None,
        weights: str | None = None,
        dtype: str = "float32",
        remat: str | Sequence[int] = "none",
        preprocess: Callable[[Tree, jax.Array], Tree] | None = None,
        guard: bool = False,
        gradient_norms: bool = False,
        read_behind: int = 16,
        **options: Any,
    ):
        self._configuration = given = Configuration(
            stages, loss, optimizer, method, list(ENGINES), engine=engine, beta=beta, correct=correct,
            learning_rate=learning_rate, momentum=momentum, devices=devices, weights=weights, dtype=dtype, remat=remat,
            preprocess=preprocess, guard=guard, norms=gradient_norms, options={"order": order, **options}, cut=split,
            K=K,
        )  # fmt: skip
        check_read_behind(read_behind)
        self.K, self.method, self.schedule = given.K, given.method, given.schedule
        self.beta, self.weights, self.corrections = given.beta, given.weights, given.corrections
        self.devices, self.places = given.devices, given.places
        self.engine_name, self._read_behind = engine, read_behind
        self._engine: Engine | None = None

    def init(
        self,
        key: jax.Array,
        example_batch: Batch,
        variables: Sequence[Mapping] | Mapping[str, Tree] | None = None,
    ):
        """Checks that everything fits, then makes the stages' variables (or takes the given ones).

        key: a JAX random key; stage k initialises with fold_in(key, k). example_batch: (inputs, labels) as arrays or
        jax.ShapeDtypeStruct, of the dtypes that batches will have (for 64 bits see fdg_jax.checks.batches). Each is a
        tree; labels may be `fdg_jax.Weighted`. A batch may also be a dictionary {"inputs", "labels"} and "weights".
        variables: one Flax dictionary {"params": ..., "batch_stats": ...} a stage, or one for the whole network where
        the stages are its blocks (`export`); they are copied.
        """
        given = self._configuration
        specs, example = given.specs(key, as_pair(example_batch), variables)
        delays = tuple(self.schedule.wait(k) for k in range(1, self.K + 1))
        problem = Problem(
            self.schedule, given.stage_class, specs, given.preprocess, self.places, delays, self.weights,
            given.corrected_by, self._read_behind,
        )  # fmt: skip
        parameters = [jax.tree.leaves(spec.variables.get("params", {})) for spec in specs]
        self._parameter_counts = [sum(leaf.size for leaf in leaves) for leaves in parameters]
        self._engine, self._example = ENGINES[self.engine_name](problem), example
        self._turn = Turn(self._engine)
        self._metrics = FinishedLosses(self._engine, warned=given.guard)  # a guarded pipeline tells by Metrics.bad
        return self

    def __repr__(self) -> str:
        stages = ", ".join(type(stage).__name__ for stage in self._configuration.stages)
        devices = ", ".join(f"{device.platform}:{device.id}" for device in self.devices)
        return f"Pipeline(method={self.method.name!r}, K={self.K}, stages=[{stages}], devices=[{devices}])"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """What copy.copy, copy.deepcopy and pickle ask for."""
        way_out = "Make a second one with the same arguments, call its init, and then second.restore(first.state())."
        raise BadInput(f"a pipeline cannot be copied or pickled: it holds devices and compiled programs. {way_out}")

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise BadInput("the pipeline has no variables yet. Call init(key, example_batch) first.")
        return self._engine

    def step(self, batch: Batch) -> Metrics | None:
        """Enters one batch (inputs, labels). Dispatches, and waits only where `read_behind` losses are unread.

        Returns the newest finished Metrics, None before any.

        NumPy arrays are copied and may be used again at once. JAX arrays are not: they must not be donated or deleted
        before the batch has updated every stage. Where this raises before the batch has entered, nothing has changed;
        where it is cut off later, `interrupted` becomes True.
        """
        engine, batch = self.engine, as_pair(batch)
        self._configuration.check_size(check_batch(self._example, batch))
        with self._turn:
            self._metrics.warn()
            engine.step(*copy_arrays(tuple(batch)))
            return self._metrics.newest()

    def train(self, images: np.ndarray, labels: np.ndarray, indices: np.ndarray) -> Metrics | None:
        """Enters W batches: rows of indices [W, batch] into images [N, ...], or whatever the examples
        are, and labels [N, ...].

        The pipeline makes W steps; the delay line one dispatch, with images and labels resident on its device.
        """
        engine = self.engine
        if shapes := check_indices(self._example, images, labels, indices):
            self._configuration.check_size(shapes)
        with self._turn:
            self._metrics.warn()
            engine.train(images, labels, indices)
            return self._metrics.newest()

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The Flax modules of the stages k = 1..K, to which `params` and `export` belong."""
        return self._configuration.stages

    def about(self) -> dict[str, Any]:
        """What a file says of the pipeline that it was written by."""
        modules = [type(module).__name__ for module in self.modules]
        return {"method": self.method.name, "K": self.K, "stages": modules, "cuts": self.cuts, "beta": self.beta}

    def check_whole(self) -> None:
        """Raises BadInput where a call was cut off within a tick (`interrupted`)."""
        self._turn.check_whole()

    @property
    def interrupted(self) -> bool:
        """Whether a call was cut off within a tick, by Ctrl-C or an error, or is within one now. Then the stages do not
        stand at the same batch: step, train, drain, state, snapshot and evaluate refuse, restore and init help."""
        return self._engine is not None and self._engine.within_tick

    def losses(self, wait: bool = False) -> list[Metrics]:
        """Metrics finished since the last call, in order; `wait` reads those still under way too.

        Of a caller who does not ask, the newest 100,000 are kept.
        """
        engine = self.engine
        if wait:
            engine.losses.read_all()
        self._metrics.warn()
        return self._metrics.take()

    def unread(self) -> dict[int, jax.Array]:
        """Losses under way, which neither `step` nor `losses` has given yet: {number of the batch: its loss [], or
        that of the first of several [W]}."""
        return {step: losses for step, losses, _ in self.engine.losses.pending}

    def unsound(self, batch: Batch, step: int = 0) -> Unsound | None:
        """Where a batch (inputs, labels) is lost, as (k, "weights" | "outputs" | "loss"), in training mode with the
        weights of now; None where every stage is sound. step: as `preprocess` gets it. Slow, and changes nothing."""
        inputs, labels = copy_arrays(tuple(as_pair(batch)))
        return self.engine.unsound(inputs, labels, step)

    def drain(self) -> None:
        """Finishes what is in flight: afterwards every batch has updated every stage once. Training may go on."""
        engine = self.engine
        with self._turn:
            self._metrics.warn()
            engine.drain()

    def wait(self) -> None:
        """Blocks until everything dispatched has been computed (for clocks, not for correctness)."""
        self.engine.wait()

    def refused(self) -> tuple[int, ...]:
        """Of a guarded pipeline, per stage the number of the first update that was refused, 0 if none. Waits for what
        has been dispatched: `Metrics.bad` tells the same without waiting, but not of updates after the last loss."""
        return self.engine.refused()

    def gradient_norms(self) -> tuple[float, ...]:
        """Of a pipeline with gradient_norms=True, per stage the norm of the gradient that it was last updated by, 0
        before the first; () of others. Waits for what has been dispatched: `Metrics.gradient_norms` tells the same
        without waiting, but not of updates after the last loss, such as those of `drain`."""
        return self.engine.gradient_norms()

    def watch(self) -> UnfinishedOperations:
        """What is under way, for a thread that looks after it: operations dispatched from now on and not finished."""
        return self.engine.watch()

    def evaluate(self, batches: Iterable, transform: Callable[[Tree], Tree] | None = None) -> Evaluation:
        """Test loss, top-1 error and the loss's metrics with the newest weights, batches in flight or not.

        batches of (inputs, labels); transform (traced) takes the inputs to what stage 1 takes. What a module writes
        into a collection of its own is dropped.
        """
        engine = self.engine
        self._turn.check_whole()
        return engine.evaluate(checked_batches(batches, self._example), transform)

    @property
    def staleness(self) -> list[int]:
        """Per stage, the most updates between a batch's forward pass and its update: measured, not computed."""
        return self.engine.staleness()

    @property
    def updates(self) -> list[int]:
        """Per stage, the updates made so far."""
        return self.engine.updates()

    @property
    def parameter_count(self) -> int:
        """Of the network: what a method adds to it is counted by `auxiliary_parameter_count`."""
        return sum(self.parameter_counts)

    @property
    def parameter_counts(self) -> list[int]:
        """The same per stage k = 1..K."""
        assert self.engine
        return list(self._parameter_counts)

    @property
    def auxiliary_parameter_count(self) -> int:
        """Parameters of auxiliary networks and synthesizers, which are trained but do not belong to the network."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.engine.auxiliary()))

    def snapshot(self, own: bool = False) -> dict[str, Any]:
        """What `state` gives, without waiting for it: arrays that are still being computed, and that a thread may
        read while training goes on. In a pipeline of several processes it waits for all of them; unless `own`, which
        gives only what this process has, and what all have together is the state."""
        engine = self.engine
        with self._turn:
            return engine.snapshot(own)

    def state(self) -> dict[str, Any]:
        """The exact state of the run, batches in flight included, as {path: array} on the host."""
        return jax.device_get(self.snapshot())

    def state_sha256(self) -> str:
        """sha256 over everything a resumed run would need."""
        return states.sha256(self.state())

    def restore(self, state: Mapping[str, Any], finite: bool = True) -> None:
        """Goes on exactly where `state()` was taken. Call init first, with the same stages and method.

        All or nothing: a state that does not fit, is not whole, or (unless `finite` is False) holds a NaN or an
        infinity among its weights, statistics or the optimizer's arrays is refused, and nothing has changed. The arrays
        are copied. Beta, the correction's options and the optimizer's settings are the pipeline's own: no state has
        them.
        """
        engine = self.engine
        state = check_state(state)
        if finite:
            check_finite(state)
        with self._turn.even_if_interrupted():
            engine.restore(state)
        self._metrics = FinishedLosses(engine, warned=self._configuration.guard)

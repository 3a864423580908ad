"""`fdg_jax.Pipeline`: train your own Flax modules as K stages, each on its own device, none waiting for another.

Everything that can be wrong is checked by `jax.eval_shape` before anything compiles; then an engine does the work.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, overload

import flax.linen as nn
import jax
import numpy as np
import optax

from fdg_jax import split as splits
from fdg_jax.checkpoint import state as states
from fdg_jax.checkpoint import weights
from fdg_jax.checkpoint.state import check_finite, check_state
from fdg_jax.checkpoint.weights import HASH
from fdg_jax.checks.arguments import OF_PIPELINE
from fdg_jax.checks.batches import as_pair, check_batch, check_indices, check_inputs, checked_batches, copy_arrays
from fdg_jax.checks.configuration import Configuration
from fdg_jax.corrections.interface import CorrectionSpec
from fdg_jax.engine.call_guard import CallGuard
from fdg_jax.engine.evaluate import Evaluation
from fdg_jax.engine.host_engine import HostEngine, delay_line_engine
from fdg_jax.engine.interface import Engine, Nonfinite, Problem
from fdg_jax.engine.losses import Metrics
from fdg_jax.engine.unfinished import UnfinishedOperations
from fdg_jax.errors import BadInput
from fdg_jax.methods.interface import Method
from fdg_jax.options.fields import checked

Tree = Any
Batch = tuple[Tree, Tree] | Mapping[str, Tree]
ENGINES: dict[str, Callable[[Problem], Engine]] = {
    "pipeline": HostEngine,
    "delay-line": delay_line_engine,
}


class Pipeline:
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
        arguments here; a `CorrectionSpec` of your own; or several, as "rate,cosine" or a list of names and specs.
        Shrinking by beta is one of these files, and comes first unless the one asked for takes beta. Before Adam, Muon
        and others that divide a gradient by its size beta cancels: init warns where three steps of the optimizer show
        it.
    learning_rate, momentum: the optimizer's, for corrections that need them, as an optax chain does not tell.
    method: a file of fdg_jax/methods, or a `Method` of your own. beta, order, weights, and further keyword arguments
        (accumulate, aux, ...): as the flags of the same names; a method refuses those it does not have.
    devices: one per stage, or one for the delay line; default accelerators, else emulated CPU devices.
    engine: "pipeline" (K devices) or "delay-line" (the same training on one device, stashed weights only).
    dtype: "float32" (arrays are left as they are) or "bfloat16": kernels and activations are computed with in bfloat16,
        everything that is remembered, and the loss, in float32 (fdg_jax.stage.precision). Flax layers need `dtype` too.
    remat: stages whose backward pass computes the activations again, so that a stash keeps only the input: "none",
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
        correct: str | CorrectionSpec | Sequence[str | CorrectionSpec] = "none",
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
        plan = given.plan
        self.K, self.method, self.schedule = given.K, plan.method, plan.schedule
        self.beta, self.weights, self.corrections = given.beta, plan.weights, plan.corrections
        self.devices, self.places = given.devices, given.places
        self.engine_name, self._read_behind = engine, checked(OF_PIPELINE["read_behind"], read_behind)
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
        waits = tuple(self.schedule.wait(k) for k in range(1, self.K + 1))
        problem = Problem(
            self.schedule, given.stage_class, specs, given.preprocess, self.places, waits, self.weights,
            given.plan.corrected_by, self._read_behind,
        )  # fmt: skip
        parameters = [jax.tree.leaves(spec.variables.get("params", {})) for spec in specs]
        self._parameter_counts = [sum(leaf.size for leaf in leaves) for leaves in parameters]
        self._engine, self._example = ENGINES[self.engine_name](problem), example
        self._guard, self._checked_kinds = CallGuard(self._engine), set[Any]()
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
        engine, (inputs, labels) = self.engine, self._checked(as_pair(batch))
        with self._guard:
            engine.losses.warn()
            engine.train_batch(inputs, labels)
            return engine.losses.newest()

    def _checked(self, batch: tuple[Tree, Tree]) -> Sequence[Tree]:
        """A batch that fits, its NumPy arrays copied. NumPy arrays like those of an earlier batch are not checked."""
        leaves, structure = jax.tree.flatten(batch)
        kinds = structure, *[(leaf.shape, leaf.dtype) if type(leaf) is np.ndarray else object() for leaf in leaves]
        if kinds not in self._checked_kinds:
            self._configuration.check_size(check_batch(self._example, batch))
            if all(type(leaf) is np.ndarray for leaf in leaves):
                self._checked_kinds.add(kinds)
        return structure.unflatten([leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves])

    def train(self, images: np.ndarray, labels: np.ndarray, indices: np.ndarray) -> Metrics | None:
        """Enters W batches: rows of indices [W, batch] into images [N, ...], or whatever the examples
        are, and labels [N, ...].

        The pipeline makes W steps; the delay line one dispatch, with images and labels resident on its device.
        """
        engine = self.engine
        if shapes := check_indices(self._example, images, labels, indices):
            self._configuration.check_size(shapes)
        with self._guard:
            engine.losses.warn()
            engine.train(images, labels, indices)
            return engine.losses.newest()

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The Flax modules of the stages k = 1..K, to which `params` and `export` belong."""
        return self._configuration.stages

    def about(self) -> dict[str, Any]:
        """What a file says of the pipeline that it was written by."""
        modules = [type(module).__name__ for module in self.modules]
        return {"method": self.method.name, "K": self.K, "stages": modules, "cuts": self.cuts, "beta": self.beta}

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
        engine.losses.warn()
        return engine.losses.take()

    def unread(self) -> dict[int, jax.Array]:
        """Losses under way, which neither `step` nor `losses` has given yet: {number of the batch: its loss [], or
        that of the first of several [W]}."""
        return {step: results.losses for step, results in self.engine.losses.pending}

    def first_nonfinite(self, batch: Batch, step: int = 0) -> Nonfinite | None:
        """Where a batch (inputs, labels) is lost, as (k, "weights" | "outputs" | "loss"), in training mode with the
        weights of now; None where every stage is sound. step: as `preprocess` gets it. Slow, and changes nothing."""
        inputs, labels = copy_arrays(tuple(as_pair(batch)))
        return self.engine.first_nonfinite(inputs, labels, step)

    def drain(self) -> None:
        """Finishes what is in flight: afterwards every batch has updated every stage once. Training may go on."""
        engine = self.engine
        with self._guard:
            engine.losses.warn()
            engine.drain()

    def wait(self) -> None:
        """Blocks until everything dispatched has been computed (for clocks, not for correctness)."""
        self.engine.wait()

    def refused(self) -> tuple[int, ...]:
        """Of a guarded pipeline, per stage the number of the first update that was refused, 0 if none. Waits for what
        has been dispatched: `Metrics.bad` tells the same without waiting, but not of updates after the last loss."""
        return tuple(map(int, jax.device_get(self.engine.bad())))

    def gradient_norms(self) -> tuple[float, ...]:
        """Of a pipeline with gradient_norms=True, per stage the norm of the gradient that it was last updated by, 0
        before the first; () of others. Waits for what has been dispatched: `Metrics.gradient_norms` tells the same
        without waiting, but not of updates after the last loss, such as those of `drain`."""
        return tuple(map(float, jax.device_get(self.engine.norms())))

    def watch(self) -> UnfinishedOperations:
        """What is under way, for a thread that looks after it: operations dispatched from now on and not finished."""
        return self.engine.watch()

    def evaluate(self, batches: Iterable, transform: Callable[[Tree], Tree] | None = None) -> Evaluation:
        """Test loss, top-1 error and the loss's metrics with the newest weights, batches in flight or not.

        batches of (inputs, labels); transform (traced) takes the inputs to what stage 1 takes. What a module writes
        into a collection of its own is dropped.
        """
        engine = self.engine
        self._guard.check_whole()
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

    @property
    def params(self) -> list[dict[str, Tree]]:
        """Per stage k = 1..K the Flax variables {"params": ..., "batch_stats": ...}, each on its stage's device.

        `export` gives them as NumPy arrays, which any program on any device can use together. With
        optax.contrib.schedule_free these are the weights for evaluation, here and wherever weights are given away.
        """
        return self.engine.stage_variables()

    @property
    def cuts(self) -> tuple[int, ...] | None:
        """The number of the first block of stages 2..K; None where stages are modules of their own.

        Where `split=` cuts, it is known from `init` on.
        """
        return splits.cuts_of(self.modules)

    def parameters_sha256(self) -> str:
        """sha256 over the bytes of all parameters, sorted by (key path, k): where stages have distinct names, as the
        experiments' have, the order is that of the whole network and does not depend on K."""
        return states.parameters_sha256([stage["params"] for stage in self.params])

    def predict(self, inputs: Tree, transform: Callable[[Tree], Tree] | None = None) -> Tree:
        """What stage K gives for inputs, with the newest weights, batches in flight or not, in evaluation mode.

        It waits for the result. A program is compiled for every new shape, so give batches of one size. In
        several processes all of them call it, and all get the result.

        Arguments:
            inputs: a tree of arrays [n, ...] like those in training, for any n from 1; their other axes may have other
                lengths, too.
            transform: (traced) takes the inputs to what stage 1 takes, as in `evaluate`; then they may be anything.
                `preprocess` is for training and is not used.

        Returns: a tree of NumPy arrays [n, ...].

        Raises:
            BadInput: the inputs do not fit.
        """
        engine = self.engine
        self._guard.check_whole()
        check_inputs(self._example[0], inputs, transformed=transform is not None)
        return jax.device_get(engine.predict(copy_arrays(inputs), transform))

    @overload
    def export(self, whole: Literal[False] = False) -> list[dict[str, Tree]]: ...

    @overload
    def export(self, whole: Literal[True]) -> dict[str, Tree]: ...

    def export(self, whole: bool = False) -> list[dict[str, Tree]] | dict[str, Tree]:
        """The weights and statistics as NumPy arrays: for plain Flax, or for `init(..., variables=...)`.

        Arguments:
            whole: one dictionary for the uncut network, where the stages are blocks of one: cut by `split=`, or by
                fdg_jax.split.stages. It belongs to `fdg_jax.split.whole(blocks)`, whatever the cut was.

        Returns: for each stage k = 1..K {"params": ..., "batch_stats": ...}, for `modules[k-1].apply`; or one such
        dictionary.

        Raises:
            BadInput: `whole` is asked for, and the stages are modules of their own.

        Example: `fdg_jax.split.whole(blocks).apply(pipeline.export(whole=True), x, train=False)`
        """
        if whole and self.cuts is None:
            fact = "export(whole=True): the stages are modules of their own, so there is no uncut network"
            raise BadInput(f"{fact}. Use export(), which gives one dictionary a stage, or Pipeline(blocks, split=...).")
        stages = jax.device_get(self.params)
        return splits.merge_variables(stages) if whole else stages

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the exact state, batches in flight included, and the weights beside it into one safetensors file.

        It is read by `fdg_jax.load(path)`. The file appears completely or not at all: if writing fails, a file that was
        there before stays. In several processes all of them call it, and process 0 writes.

        Arguments:
            path: the file.

        Raises:
            BadInput: there is no such folder, or an array has a dtype that no safetensors file can hold.
            OSError: the disk is full, or the like.
        """
        state, variables = self.state(), self.export()
        if jax.process_index() == 0:
            sha256 = states.parameters_sha256([stage.get("params", {}) for stage in variables])
            about = {**self.about(), HASH: sha256, "jax": jax.__version__}
            weights.save(path, state, variables, about)

    def snapshot(self, own: bool = False) -> dict[str, Any]:
        """What `state` gives, without waiting for it: arrays that are still being computed, and that a thread may
        read while training goes on. In a pipeline of several processes it waits for all of them; unless `own`, which
        gives only what this process has, and what all have together is the state."""
        engine = self.engine
        with self._guard:
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
        self._guard.take()
        try:
            engine.restore(state)
        finally:
            self._guard.release()

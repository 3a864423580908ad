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
from fdg_jax.checks.arguments import OF_PIPELINE, check_key
from fdg_jax.checks.batches import as_pair, check_batch, check_indices, check_inputs, checked_batches, copy_arrays
from fdg_jax.checks.configuration import Configuration
from fdg_jax.corrections.interface import CorrectionSpec
from fdg_jax.engine.call_guard import CallGuard
from fdg_jax.engine.evaluate import Evaluation
from fdg_jax.engine.host_engine import HostEngine, delay_line_engine
from fdg_jax.engine.interface import Engine, Nonfinite, Problem
from fdg_jax.engine.losses import Metrics
from fdg_jax.engine.scan_engine import ScanEngine
from fdg_jax.engine.unfinished import UnfinishedOperations
from fdg_jax.errors import BadInput
from fdg_jax.methods.interface import Method
from fdg_jax.options.fields import checked
from fdg_jax.stages.preprocessing import Preprocess
from fdg_jax.stages.switches import name_of

Tree = Any
Batch = tuple[Tree, Tree] | Mapping[str, Tree]
ENGINES: dict[str, Callable[[Problem], Engine]] = {
    "pipeline": HostEngine,
    "delay-line": delay_line_engine,
    "scan": ScanEngine,
}


class Pipeline:
    """A network cut into stages k = 1..K, trained by one of the paper's methods.

    stages: Flax (linen) modules. The output of stage k is the input of stage k+1. A `train` argument, batch statistics
        and keys for "dropout" and other random streams are handled where a module has them. With `split`, these are
        the blocks of a network, any number of them. docs/own-modules.md says what else modules may do.
    split: cuts the blocks into K stages in init, when shapes are known: "balanced" by FLOPs, "measured" by block times
        on this device, "even", or the first blocks of stages 2..K, as the flag --split. K: the number of stages; by
        default the number of `devices`, or the number that the first blocks give. With `split`, the initial weights
        depend on init's key alone, not on K.
    loss: loss(outputs, labels) -> scalar, the mean over the batch, on stage K; or (scalar, {name: number}), whose
        numbers `Metrics.metrics` and `evaluate` return. What modules sow as "losses" is minimised as well. Where
        batches have no labels, it gets None. loss(outputs, labels, key) also gets a random key, a new one for every
        step (and micro-batch), from stage K's stream "loss".
    optimizer: an optax chain. Each stage has its own state of it, and gives it gradients that are already shrunk by
        beta**(K-k) (Eq. 17). Or a list of chains, one a stage, or a function k -> chain. Each chain sees the gradients
        of its own stage only, so optax.clip_by_global_norm(c) clips every stage by the norm of that stage's gradient.
        To approximate clipping of the whole network at c, use c / sqrt(K), if the stages' gradients have about the
        same norm.
    correct: what else is done about late gradients: a file of fdg_jax/corrections, whose own options are keyword
        arguments here; a `CorrectionSpec` of your own; or several, as "rate,cosine" or a list of names and specs.
        Shrinking by beta is one of these files; it comes first, unless the chosen correction takes beta itself. Adam,
        Muon and others divide a gradient by its size, so that beta cancels; init warns where three steps of the
        optimizer show this.
    learning_rate, momentum: those of the optimizer, for corrections that need them: an optax chain does not show them.
    method: a file of fdg_jax/methods, or a `Method` of your own. beta, order, weights, and further keyword arguments
        (accumulate, aux, ...): as the flags of the same names; a method refuses those it does not have.
    devices: one per stage, a list or a mesh of several for each, or one for the delay line; by default accelerators,
        else emulated CPU devices.
    engine: "pipeline" (K devices), "delay-line" (the same training on one device, stashed weights only), or "scan"
        (that as one program a batch or window, as the delay line is on an accelerator, also on a CPU).
    dtype: "float32" (arrays are left as they are) or "bfloat16": modules compute with kernels and activations in
        bfloat16; weights, statistics, the optimizer's state and the loss stay float32 (fdg_jax.stages.precision). Flax
        layers need `dtype` too.
    remat: stages whose backward pass computes the activations again, so that a stash keeps only the input: "none",
        "all", or their numbers (1, 2).
    preprocess: preprocess(inputs, step) -> what stage 1 takes; or preprocess(inputs, labels, step) -> (that, the labels
        of the loss), for mixup, masks or noise. It is traced, and step counts batches from 0. The second form runs on
        stage 1's device and again on stage K's, each time without the half that is not needed there. Evaluation does
        not use it: `evaluate` takes labels like those of batches, or like those that preprocess makes.
    guard: skip an update whose loss or gradient has a NaN or an infinity, and keep no running statistics that do;
        `Metrics.bad` reports skipped updates. They leave weights and moments as they are; schedules count them, too.
    gradient_norms: measure the norm of every stage's gradient, for `Metrics.gradient_norms`.
    ema: keep an average of each stage's weights, `Pipeline.ema`. It starts at the first weights; every update of the
        stage that `guard` does not refuse makes it ema * average + (1 - ema) * new weights.
    axis_rules: where stages are on meshes, pairs of a name that modules give to an axis of their arrays
        (`nn.with_logical_partitioning` and the like) and the axis of the mesh over which it is cut: ("hidden",
        "tensor"). A name that is an axis of the mesh needs no rule; any other is not cut. Batches are cut over the
        axes "data" and "fsdp".
    read_behind: the most dispatches whose losses may be unread, 1 or more (bounds how far the host runs ahead).

    Raises BadInput with the fact, the numbers and the way out. One thread at a time may call step, train, drain, state
    and restore. A pipeline cannot be copied or pickled: use state() and restore() instead.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        loss: Callable[..., Tree],
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
        preprocess: Callable[..., Tree] | None = None,
        guard: bool = False,
        gradient_norms: bool = False,
        ema: float | None = None,
        axis_rules: Sequence[tuple[str, str | tuple[str, ...] | None]] = (),
        read_behind: int = 16,
        **options: Any,
    ):
        self._configuration = given = Configuration(
            stages, loss, optimizer, method, list(ENGINES), engine=engine, beta=beta, correct=correct,
            learning_rate=learning_rate, momentum=momentum, devices=devices, weights=weights, dtype=dtype, remat=remat,
            preprocess=preprocess, guard=guard, norms=gradient_norms, ema=ema, axis_rules=axis_rules,
            options={"order": order, **options},
            cut=split, K=K,
        )  # fmt: skip
        plan = given.plan
        self.K, self.method, self.schedule = given.K, plan.method, plan.schedule
        self.beta, self.weights, self.corrections = given.beta, plan.weights, plan.corrections
        self.devices, self.places = given.devices, given.places
        self.engine_name, self._read_behind = engine, checked(OF_PIPELINE["read_behind"], read_behind)
        self._engine: Engine | None = None

    def init(
        self, key: jax.Array, example_batch: Batch, variables: Sequence[Mapping] | Mapping[str, Tree] | None = None
    ):
        """Checks that everything fits, then makes the stages' variables (or takes the given ones).

        key: a JAX random key; stage k initialises with fold_in(key, k). example_batch: (inputs, labels) as arrays or
        jax.ShapeDtypeStruct, of the dtypes that batches will have (for 64 bits see fdg_jax.checks.batches). Each is a
        tree; labels may be `fdg_jax.Weighted`, or None. A batch may also be a dictionary of "inputs" and perhaps
        "labels" and "weights".
        variables: one Flax dictionary {"params": ..., "batch_stats": ...} per stage, or one for the whole network (as
        from `export`) where the stages are blocks of one; they are copied.
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

    def again(self, key: jax.Array, variables: Sequence[Mapping[str, Tree]], preprocess: Preprocess) -> "Pipeline":
        """A pipeline of engine "scan" with other first variables, which shares this one's checks and programs. It is
        to be trained together with this one (fdg_jax.engine.seeds).

        key, variables: as for `init`, one dictionary per stage, checked. preprocess: made by `preprocess_of`.
        """
        engine, other = self.engine, object.__new__(type(self))
        assert isinstance(engine, ScanEngine)
        vars(other).update(vars(self))
        other._engine = engine.again(key, variables, preprocess)
        other._guard, other._checked_kinds = CallGuard(other._engine), set[Any]()
        return other

    def __repr__(self) -> str:
        stages = ", ".join(name_of(stage) for stage in self._configuration.stages)
        devices = ", ".join(f"{device.platform}:{device.id}" for device in self.devices)
        return f"Pipeline(method={self.method.name!r}, K={self.K}, stages=[{stages}], devices=[{devices}])"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuses copy.copy, copy.deepcopy and pickle, which call this."""
        way_out = "Make a second one with the same arguments, call its init, and then second.restore(first.state())."
        raise BadInput(f"a pipeline cannot be copied or pickled: it holds devices and compiled programs. {way_out}")

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise BadInput("the pipeline has no variables yet. Call init(key, example_batch) first.")
        return self._engine

    def step(self, batch: Batch) -> Metrics | None:
        """Enters one batch (inputs, labels). It only dispatches, and waits only while `read_behind` losses are unread.

        Returns the newest finished Metrics, None before the first. Batches may have other lengths than the example
        batch (methods with auxiliary networks or projections, and pipelines in several processes, take another batch
        size only). Every shape compiles anew; the sixth gives a warning.

        NumPy arrays are copied and may be used again at once. JAX arrays are not copied: they must not be donated or
        deleted before the batch has updated every stage. If this raises before the batch has entered, nothing has
        changed; if it is cut off later, `interrupted` becomes True.
        """
        engine, (inputs, labels) = self.engine, self._checked(as_pair(batch))
        with self._guard:
            engine.losses.warn()
            engine.train_batch(inputs, labels)
            return engine.losses.newest()

    def _checked(self, batch: tuple[Tree, Tree]) -> Sequence[Tree]:
        """Checks a batch and copies its NumPy arrays. Shapes and dtypes of NumPy arrays are checked once only."""
        leaves, structure = jax.tree.flatten(batch)
        kinds = structure, *[(leaf.shape, leaf.dtype) if type(leaf) is np.ndarray else object() for leaf in leaves]
        if kinds not in self._checked_kinds:
            self._configuration.check_size(check_batch(self._example, batch))
            if all(type(leaf) is np.ndarray for leaf in leaves):
                self._checked_kinds.add(kinds)
        return structure.unflatten([leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves])

    def train(self, images: np.ndarray, labels: np.ndarray | None, indices: np.ndarray) -> Metrics | None:
        """Enters W batches: each row of indices [W, batch] selects from images [N, ...], or other examples, and from
        labels [N, ...], which may be None.

        The pipeline makes W steps. The delay line makes one dispatch, with images and labels resident on its device.
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
        """The facts about this pipeline that a file of its weights or state records."""
        modules = [name_of(module) for module in self.modules]
        about = {"method": self.method.name, "K": self.K, "stages": modules, "cuts": self.cuts, "beta": self.beta}
        return about | {"batches": self.batches}

    @property
    def batches(self) -> int:
        """The number of batches that have entered so far; a restored pipeline goes on counting."""
        return self.engine.entered

    @property
    def interrupted(self) -> bool:
        """Whether a call was cut off within a tick, by Ctrl-C or an error, or is within a tick now. Then the stages are
        at different batches, and step, train, drain, state, snapshot and evaluate refuse. Call restore or init."""
        return self._engine is not None and self._engine.within_tick

    def losses(self, wait: bool = False) -> list[Metrics]:
        """Metrics finished since the last call, in order; with `wait`, also those still being computed.

        At most the newest 100,000 are kept between calls.
        """
        engine = self.engine
        if wait:
            engine.losses.read_all()
        engine.losses.warn()
        return engine.losses.take()

    def unread(self) -> dict[int, jax.Array]:
        """Losses that neither `step` nor `losses` has returned yet: {number of the batch: its loss []}, or, where one
        dispatch trains W batches, {number of the first: their losses [W]}."""
        return {step: results.losses for step, results in self.engine.losses.pending}

    def first_nonfinite(self, batch: Batch, step: int = 0) -> Nonfinite | None:
        """Where a batch (inputs, labels) meets the first NaN or infinity, as (k, "weights" | "outputs" | "loss"), in
        training mode with the current weights; None if nowhere. step: for `preprocess`. Slow, and changes nothing."""
        inputs, labels = copy_arrays(tuple(as_pair(batch)))
        return self.engine.first_nonfinite(inputs, labels, step)

    def drain(self) -> None:
        """Finishes what is in flight: afterwards every batch has updated every stage once. Training may go on."""
        engine = self.engine
        with self._guard:
            engine.losses.warn()
            engine.drain()

    def wait(self) -> None:
        """Blocks until everything dispatched has been computed. Only measurements of time need this."""
        self.engine.wait()

    def refused(self) -> tuple[int, ...]:
        """For each stage of a guarded pipeline, the number of the first skipped update, 0 if none. Waits for everything
        dispatched. `Metrics.bad` has the same without waiting, except for updates after the last loss."""
        return tuple(map(int, jax.device_get(self.engine.bad())))

    def gradient_norms(self) -> tuple[float, ...]:
        """For each stage, the norm of the gradient of its last update, 0 before the first; () unless the pipeline has
        gradient_norms=True. Waits for everything dispatched. `Metrics.gradient_norms` has the same without waiting,
        except for updates after the last loss, such as those of `drain`."""
        return tuple(map(float, jax.device_get(self.engine.norms())))

    def watch(self) -> UnfinishedOperations:
        """The unfinished operations among those dispatched from now on, for a thread that monitors them."""
        return self.engine.watch()

    def evaluate(
        self,
        batches: Iterable,
        transform: Callable[[Tree], Tree] | None = None,
        key: jax.Array | None = None,
        *,
        variables: Sequence[Mapping] | Mapping[str, Tree] | None = None,
    ) -> Evaluation:
        """Test loss, top-1 error and the loss's metrics with the newest weights. Batches may be in flight.

        batches: (inputs, labels) each; labels are None if they were None at init. transform: maps inputs to those of
        stage 1; it is traced. What a module writes into a collection of its own is dropped. key: a JAX random key, for
        modules that draw in evaluation and for a loss that takes a key; nothing else depends on it. `train` stays
        False, so that dropout is off. In batch n = 1, 2, ... stage k draws its streams from fold_in(fold_in(key, n),
        k), so that another K draws other numbers. variables: other weights and statistics, as `init` takes them, such
        as `ema`; the training is left as it is.
        """
        engine = self.engine
        self._guard.check_whole()
        if key is not None:
            check_key(key, "evaluate takes a JAX random key", "evaluate(batches, key=jax.random.key(0))")
        held = engine.holding(self._configuration.fitting(variables))
        checked = checked_batches(batches, self._example[1], engine.problem.specs[-1].labels)
        return engine.evaluate(held, checked, transform, key)

    @property
    def staleness(self) -> list[int]:
        """Per stage, the most updates between a batch's forward pass and its update, as measured in this run."""
        return self.engine.staleness()

    @property
    def updates(self) -> list[int]:
        """Per stage, the updates made so far."""
        return self.engine.updates()

    @property
    def parameter_count(self) -> int:
        """The number of the network's parameters. `auxiliary_parameter_count` counts what a method adds."""
        return sum(self.parameter_counts)

    @property
    def parameter_counts(self) -> list[int]:
        """The number of the network's parameters in each stage k = 1..K."""
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
        optax.contrib.schedule_free, this and every other method that returns or saves weights gives those for
        evaluation.
        """
        return self.engine.stage_variables()

    @property
    def ema(self) -> list[dict[str, Tree]]:
        """As `params`, with the average of the weights and the newest statistics. Raises BadInput without `ema=`."""
        engine = self.engine
        if self._configuration.ema is None:
            raise BadInput("the pipeline keeps no average of its weights. Make it with Pipeline(..., ema=0.999), say.")
        return engine.stage_variables(ema=True)

    @property
    def optimizer_states(self) -> list[Tree]:
        """Per stage k = 1..K the state of its optimizer, as optax has it, on its stage's device: for
        `optax.tree_utils.tree_get(state, "count")`, say. They are copies; None for a stage in another process."""
        return self.engine.optimizer_states()

    def set_hyperparameters(self, *, k: int | None = None, **values: Any) -> None:
        """Sets numbers that `optax.inject_hyperparams` keeps in the optimizers' states, from the next update on.

        `set_hyperparameters(learning_rate=1e-4)`: nothing compiles again. States and checkpoints have the new values.
        The `learning_rate=` of corrections stays. In several processes all of them call it.

        Arguments:
            k: the stage; by default all stages.
            values: by name. Each keeps the shape and dtype of the one that it replaces.

        Raises:
            BadInput: a stage has no injected hyperparameter of that name, or it follows a schedule. Then nothing has
                changed.
        """
        engine, stages = self.engine, range(1, self.K + 1)
        if k is not None and k not in stages:
            raise BadInput(f"k={k!r}: the stages are k=1..{self.K}. Use one of them, or leave k out for all of them.")
        with self._guard:
            engine.set_hyperparameters(values, stages if k is None else [k])

    @property
    def cuts(self) -> tuple[int, ...] | None:
        """The number of the first block of stages 2..K; None where stages are modules of their own.

        With `split=` it is known after `init`.
        """
        return splits.cuts_of(self.modules)

    def parameters_sha256(self) -> str:
        """sha256 over the bytes of all parameters, sorted by (key path, k). If no two stages share a name, as in the
        experiments, the order is that of the whole network and does not depend on K."""
        return states.parameters_sha256([stage["params"] for stage in self.params])

    def predict(
        self,
        inputs: Tree,
        transform: Callable[[Tree], Tree] | None = None,
        key: jax.Array | None = None,
        *,
        variables: Sequence[Mapping] | Mapping[str, Tree] | None = None,
    ) -> Tree:
        """The output of stage K for inputs, in evaluation mode with the newest weights. Batches may be in flight.

        It waits for the result. A program is compiled for every new shape, so give batches of one size. In
        several processes all of them call it, and all get the result.

        Arguments:
            inputs: a tree of arrays [n, ...] like those in training, for any n from 1; their other axes may have other
                lengths, too.
            transform: maps the inputs to those of stage 1, as in `evaluate`; with it, any inputs are allowed.
                `preprocess` is for training and is not used.
            key: a JAX random key, for modules that draw in evaluation; as for the first batch of `evaluate`.
            variables: other weights and statistics, as in `evaluate`.

        Returns: a tree of NumPy arrays [n, ...].

        Raises:
            BadInput: the inputs do not fit, or a module draws and there is no key.
        """
        engine = self.engine
        self._guard.check_whole()
        if key is not None:
            check_key(key, "predict takes a JAX random key", "predict(inputs, key=jax.random.key(0))")
        check_inputs(self._example[0], inputs, transformed=transform is not None)
        held = engine.holding(self._configuration.fitting(variables))
        return jax.device_get(engine.predict(held, copy_arrays(inputs), transform, key))

    @overload
    def export(self, whole: Literal[False] = False, ema: bool = False) -> list[dict[str, Tree]]: ...

    @overload
    def export(self, whole: Literal[True], ema: bool = False) -> dict[str, Tree]: ...

    def export(self, whole: bool = False, ema: bool = False) -> list[dict[str, Tree]] | dict[str, Tree]:
        """The weights and statistics as NumPy arrays: for plain Flax, or for `init(..., variables=...)`.

        Arguments:
            whole: return one dictionary for the uncut network `fdg_jax.split.whole(blocks)`, whatever the cut was. The
                stages must have been cut by `split=` or by fdg_jax.split.stages.
            ema: return the average of the weights, as `Pipeline.ema` does.

        Returns: for each stage k = 1..K {"params": ..., "batch_stats": ...}, for `modules[k-1].apply`; or one such
        dictionary.

        Raises:
            BadInput: `whole` is True, and the stages were not cut from one network.

        Example: `fdg_jax.split.whole(blocks).apply(pipeline.export(whole=True), x, train=False)`
        """
        if whole and self.cuts is None:
            fact = "export(whole=True): the stages are modules of their own, so there is no uncut network"
            raise BadInput(f"{fact}. Use export(), which gives one dictionary a stage, or Pipeline(blocks, split=...).")
        stages = jax.device_get(self.ema if ema else self.params)
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
        """What `state` returns, without waiting: the arrays may not be computed yet, and a thread may read them
        while training goes on. In several processes it waits for all of them. With `own` it does not: it returns only
        this process's part of the state."""
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

        A state is refused if it does not fit, is incomplete, or (unless `finite` is False) has a NaN or an infinity
        among its weights, statistics or the optimizer's arrays. Then nothing has changed. The arrays are copied. Beta,
        the correction's options, `ema` and the optimizer's settings stay the pipeline's own: a state does not hold
        them, except for injected hyperparameters.
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

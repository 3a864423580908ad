"""`fdg_jax.Pipeline`: train your own Flax modules as K stages, each on its own device, none waiting for another.

Arguments and shapes are checked (with `jax.eval_shape`) before anything compiles. An engine then runs the training.
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

    stages: Flax (linen) modules. The output of stage k is the input of stage k+1. Modules may take a `train` argument,
        have batch statistics, and use "dropout" and other random streams. With `split`, `stages` lists the blocks of
        one network, any number of them. docs/own-modules.md says what else modules may do.
    split: how `init` cuts the blocks into K stages: "balanced" (equal FLOPs), "measured" (equal block times on this
        device), "even" (equal numbers of blocks), or the numbers of the first blocks of stages 2..K, as with the flag
        --split. With `split`, the initial weights depend on init's key alone, not on K.
    K: the number of stages, with `split`. Default: one more than the number of first blocks, or else the number of
        `devices`.
    loss: loss(outputs, labels) -> scalar, the mean over the batch; stage K computes it. It may also return (scalar,
        {name: number}); `Metrics.metrics` and `evaluate` report these numbers. Values that modules sow as "losses" are
        added to the loss. `labels` is None if batches have none. A loss with a third argument gets a random key,
        loss(outputs, labels, key): a new one for every step (and micro-batch), from stage K's stream "loss".
    optimizer: an optax chain, a list of K chains, or a function k -> chain. Each stage has its own optimizer state.
        Its gradients are multiplied by beta**(K-k) before they enter the chain (Eq. 17). Each chain sees the gradients
        of its own stage only, so optax.clip_by_global_norm(c) clips every stage by the norm of that stage's gradient.
        To approximate clipping of the whole network at c, use c / sqrt(K), if the stages' gradients have about the
        same norm.
    correct: further corrections of late gradients: the name of a file of fdg_jax/corrections, a `CorrectionSpec` of
        your own, or several, as "rate,cosine" or a list of names and specs. Options of a correction are keyword
        arguments here. beta**(K-k) is applied first, unless a chosen correction takes beta itself. Adam, Muon and
        others divide a gradient by its size, so beta cancels; `init` tries three steps of the optimizer and warns
        if beta cancels.
    learning_rate, momentum: the optimizer's learning rate and momentum, for corrections that need them. They cannot be
        read from an optax chain.
    method: the name of a file of fdg_jax/methods, or a `Method` of your own.
    beta, order, weights, and further keyword arguments (accumulate, aux, ...): as the flags of the same names. A
        method refuses options that it does not have.
    devices: one device per stage; a list or a mesh of devices for each stage; or a single device for the engines
        "delay-line" and "scan". The default is accelerators if there are any, else emulated CPU devices.
    engine: "pipeline" (K devices), "delay-line" (the same training on one device, where gradients wait in a queue; for
        stashed weights only), or "scan" ("delay-line" compiled as one program per batch or window of batches). On an
        accelerator, "delay-line" is the same as "scan".
    dtype: "float32" (arrays keep their dtypes) or "bfloat16" (modules compute with kernels and activations in
        bfloat16; weights, statistics, the optimizer's state and the loss stay float32; see fdg_jax.stages.precision).
        Flax layers need their `dtype` argument, too.
    remat: the stages that recompute their activations in the backward pass, so that they keep only the input of a
        batch: "none", "all", or stage numbers (1, 2).
    preprocess: preprocess(inputs, step) -> inputs of stage 1; or preprocess(inputs, labels, step) -> (inputs of stage
        1, labels of the loss), for mixup, masks or noise. It is traced, and step counts batches from 0. The second form
        runs on stage 1's device for the inputs and on stage K's device for the labels; XLA removes the unused half.
        Evaluation does not use preprocess: `evaluate` takes labels as batches have them, or as preprocess makes them.
    guard: skip every update whose loss or gradient has a NaN or an infinity, and discard non-finite running statistics.
        A skipped update leaves weights and moments unchanged, but learning-rate schedules count it. `Metrics.bad`
        reports skipped updates.
    gradient_norms: measure the norm of every stage's gradient, for `Metrics.gradient_norms`.
    ema: the decay of an average of each stage's weights, `Pipeline.ema`. The average starts at the initial weights.
        Every update that `guard` does not skip sets it to ema * average + (1 - ema) * new weights.
    axis_rules: for stages on meshes, pairs such as ("hidden", "tensor"): a logical axis name that modules give
        (`nn.with_logical_partitioning` and the like), and the mesh axis over which this axis of arrays is sharded. A
        logical name that is also a mesh axis needs no rule. Axes with other names are not sharded. Batches are sharded
        over the mesh axes "data" and "fsdp".
    read_behind: the most dispatches whose losses the host has not read, 1 or more. It bounds how far the host runs
        ahead of the devices.

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
        """Checks arguments and shapes, then initialises the stages' variables (or copies the given `variables`).

        key: a JAX random key; stage k initialises with fold_in(key, k). example_batch: (inputs, labels), trees of
        arrays or jax.ShapeDtypeStructs, with the dtypes that batches will have (for 64 bits see
        fdg_jax.checks.batches). Labels may be `fdg_jax.Weighted`, or None. A batch may also be a dictionary with
        "inputs" and, optionally, "labels" and "weights".
        variables: one Flax dictionary {"params": ..., "batch_stats": ...} per stage; or, if the stages were cut from
        one network, one dictionary for the whole network, as `export(whole=True)` returns.
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
        """A second pipeline of engine "scan", with other initial variables but this one's checks and programs. Both
        are meant to be trained together (fdg_jax.engine.seeds).

        key, variables: as for `init`, already checked, with one dictionary per stage. preprocess: from `preprocess_of`.
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
        """Refuses copy.copy, copy.deepcopy and pickle, which call this method."""
        way_out = "Make a second pipeline with the same arguments, call its init, then second.restore(first.state())."
        raise BadInput(f"a pipeline cannot be copied or pickled: it holds devices and compiled programs. {way_out}")

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise BadInput("the pipeline has no variables yet. Call init(key, example_batch) first.")
        return self._engine

    def step(self, batch: Batch) -> Metrics | None:
        """Enters one batch (inputs, labels). The call dispatches work and does not wait for it, unless more than
        `read_behind` losses are unread.

        Returns the newest finished Metrics, None before the first. The arrays of a batch may have other lengths than
        those of the example batch. With auxiliary networks or projections, and in several processes, only the batch
        size may differ. Every new shape compiles again; the sixth shape gives a warning.

        NumPy arrays are copied, so the caller may change them at once. JAX arrays are not copied: they must not be
        donated or deleted before the batch has updated every stage. If the call raises before the batch has entered,
        nothing has changed. If it is cut off later, `interrupted` becomes True.
        """
        engine, (inputs, labels) = self.engine, self._checked(as_pair(batch))
        with self._guard:
            engine.losses.warn()
            engine.train_batch(inputs, labels)
            return engine.losses.newest()

    def _checked(self, batch: tuple[Tree, Tree]) -> Sequence[Tree]:
        """Checks a batch and copies its NumPy arrays. Each combination of NumPy shapes and dtypes is checked once."""
        leaves, structure = jax.tree.flatten(batch)
        kinds = structure, *[(leaf.shape, leaf.dtype) if type(leaf) is np.ndarray else object() for leaf in leaves]
        if kinds not in self._checked_kinds:
            self._configuration.check_size(check_batch(self._example, batch))
            if all(type(leaf) is np.ndarray for leaf in leaves):
                self._checked_kinds.add(kinds)
        return structure.unflatten([leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves])

    def train(self, images: np.ndarray, labels: np.ndarray | None, indices: np.ndarray) -> Metrics | None:
        """Enters W batches. Each row of indices [W, batch] selects one batch from images [N, ...] (or other examples)
        and labels [N, ...]; labels may be None.

        The engine "pipeline" makes W steps. The delay line makes one dispatch, with images and labels kept on its
        device.
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
        """The facts about this pipeline that are written into a file of its weights or state."""
        modules = [name_of(module) for module in self.modules]
        about = {"method": self.method.name, "K": self.K, "stages": modules, "cuts": self.cuts, "beta": self.beta}
        return about | {"batches": self.batches}

    @property
    def batches(self) -> int:
        """The number of batches that have entered so far. After `restore` it includes the batches of the saved run."""
        return self.engine.entered

    @property
    def interrupted(self) -> bool:
        """Whether a call is within a tick (a step of the schedule) now, or was cut off there by Ctrl-C or an error.
        After a cut-off call the stages are at different batches, and step, train, drain, state, snapshot and evaluate
        raise BadInput. Call restore or init."""
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
        """The losses that the host has not read yet: {number of the batch: its loss []}. If one dispatch trains W
        batches, its entry is {number of the first batch: losses [W]}."""
        return {step: results.losses for step, results in self.engine.losses.pending}

    def first_nonfinite(self, batch: Batch, step: int = 0) -> Nonfinite | None:
        """Runs a batch (inputs, labels) in training mode with the current weights and returns where the first NaN or
        infinity appears, as (k, "weights" | "outputs" | "loss"); None if there is none. step: for `preprocess`. The
        call is slow and changes nothing."""
        inputs, labels = copy_arrays(tuple(as_pair(batch)))
        return self.engine.first_nonfinite(inputs, labels, step)

    def drain(self) -> None:
        """Finishes the batches in flight: afterwards every batch has updated every stage once. Training may go on."""
        engine = self.engine
        with self._guard:
            engine.losses.warn()
            engine.drain()

    def wait(self) -> None:
        """Blocks until everything dispatched has been computed. Only measurements of time need this."""
        self.engine.wait()

    def refused(self) -> tuple[int, ...]:
        """For each stage, the number of the first update that `guard` skipped, 0 if none; () without `guard`. Waits for
        all dispatched work. `Metrics.bad` has the same numbers without waiting, but misses updates after the last
        loss."""
        return tuple(map(int, jax.device_get(self.engine.bad())))

    def gradient_norms(self) -> tuple[float, ...]:
        """For each stage, the norm of the gradient of its last update, 0 before the first; () unless the pipeline has
        gradient_norms=True. Waits for all dispatched work. `Metrics.gradient_norms` has the same numbers without
        waiting, but misses updates after the last loss, such as those of `drain`."""
        return tuple(map(float, jax.device_get(self.engine.norms())))

    def watch(self) -> UnfinishedOperations:
        """Records every operation dispatched from now on until it is finished, for a thread that monitors them."""
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

        batches: (inputs, labels) each; labels are None if they were None at init. transform: a traced function that
        maps inputs to those of stage 1. key: a JAX random key, for modules that draw random numbers in evaluation and
        for a loss that takes a key. In batch n = 1, 2, ... stage k draws from fold_in(fold_in(key, n), k), so the
        numbers depend on K. variables: other weights and statistics to evaluate, in the form that `init` takes, such
        as `ema`. `train` is False, so dropout is off. Evaluation changes nothing in the training: variables that
        modules write are discarded.
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
        """Per stage, the largest number of updates between a batch's forward pass and the update by that batch, as
        measured in this run."""
        return self.engine.staleness()

    @property
    def updates(self) -> list[int]:
        """Per stage, the updates made so far."""
        return self.engine.updates()

    @property
    def parameter_count(self) -> int:
        """The number of the network's parameters. `auxiliary_parameter_count` counts those that a method adds."""
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

        `export` returns them as NumPy arrays, which a program on any device can use. With
        optax.contrib.schedule_free, all methods that return or save weights return the evaluation weights.
        """
        return self.engine.stage_variables()

    @property
    def ema(self) -> list[dict[str, Tree]]:
        """Like `params`, but with the averaged weights, and the newest statistics. Raises BadInput without `ema=`."""
        engine = self.engine
        if self._configuration.ema is None:
            raise BadInput("the pipeline keeps no average of its weights. To keep one: Pipeline(..., ema=0.999).")
        return engine.stage_variables(ema=True)

    @property
    def optimizer_states(self) -> list[Tree]:
        """Per stage k = 1..K a copy of its optax state, on its stage's device; None for a stage in another process.
        Read it with, for example, `optax.tree_utils.tree_get(state, "count")`."""
        return self.engine.optimizer_states()

    def set_hyperparameters(self, *, k: int | None = None, **values: Any) -> None:
        """Sets hyperparameters that `optax.inject_hyperparams` keeps in the optimizers' states, from the next update
        on.

        Example: `set_hyperparameters(learning_rate=1e-4)`. Nothing compiles again. States and checkpoints contain the
        new values. The `learning_rate=` that `Pipeline` passes to corrections does not change. In several processes,
        every process must call it.

        Arguments:
            k: the stage; by default all stages.
            values: the new values by name. Each takes the shape and dtype of the value that it replaces.

        Raises:
            BadInput: a stage has no injected hyperparameter of that name, or the hyperparameter follows a schedule.
                Nothing has changed.
        """
        engine, stages = self.engine, range(1, self.K + 1)
        if k is not None and k not in stages:
            raise BadInput(f"k={k!r}: the stages are k=1..{self.K}. Use one of them, or leave k out for all of them.")
        with self._guard:
            engine.set_hyperparameters(values, stages if k is None else [k])

    @property
    def cuts(self) -> tuple[int, ...] | None:
        """The numbers of the first blocks of stages 2..K; None if the stages were not cut from one network.

        With `split=` they are known after `init`.
        """
        return splits.cuts_of(self.modules)

    def parameters_sha256(self) -> str:
        """sha256 over the bytes of all parameters, sorted by (key path, k). If no two stages share a parameter name, as
        in the experiments, the order and thus the hash do not depend on K."""
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

        It waits for the result. Every new shape compiles again, so give batches of one size. In several processes,
        every process must call it, and every process gets the result.

        Arguments:
            inputs: a tree of arrays [n, ...] with the structure and dtypes of the training inputs. n is 1 or more;
                other axes may differ in length from those in training.
            transform: maps the inputs to those of stage 1, as in `evaluate`; with it, any inputs are allowed.
                `preprocess` is not used: it is for training.
            key: a JAX random key, for modules that draw random numbers in evaluation. They draw the same numbers as in
                the first batch of `evaluate`.
            variables: other weights and statistics, as in `evaluate`.

        Returns: a tree of NumPy arrays [n, ...].

        Raises:
            BadInput: the inputs do not fit, or a module draws random numbers and `key` is None.
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
            whole: return one dictionary for the uncut network `fdg_jax.split.whole(blocks)`. The stages must have been
                cut by `split=` or by fdg_jax.split.stages.
            ema: return the averaged weights, as `Pipeline.ema` does.

        Returns: a list with {"params": ..., "batch_stats": ...} for each stage k = 1..K, for `modules[k-1].apply`; with
        `whole`, one such dictionary.

        Raises:
            BadInput: `whole` is True, and the stages were not cut from one network.

        Example: `fdg_jax.split.whole(blocks).apply(pipeline.export(whole=True), x, train=False)`
        """
        if whole and self.cuts is None:
            fact = "export(whole=True): the pipeline was made of K stages, not cut from one network"
            raise BadInput(f"{fact}. Use export(), which gives a dictionary a stage, or Pipeline(blocks, split=...).")
        stages = jax.device_get(self.ema if ema else self.params)
        return splits.merge_variables(stages) if whole else stages

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the exact state, batches in flight included, and the weights into one safetensors file.

        `fdg_jax.load(path)` reads it. The write is atomic: if it fails, an older file at this path is unchanged. In
        several processes, every process must call it, and process 0 writes.

        Arguments:
            path: the file.

        Raises:
            BadInput: there is no such folder, or an array has a dtype that no safetensors file can hold.
            OSError: the file cannot be written, for example because the disk is full.
        """
        state, variables = self.state(), self.export()
        if jax.process_index() == 0:
            sha256 = states.parameters_sha256([stage.get("params", {}) for stage in variables])
            about = {**self.about(), HASH: sha256, "jax": jax.__version__}
            weights.save(path, state, variables, about)

    def snapshot(self, own: bool = False) -> dict[str, Any]:
        """Returns the same entries as `state`, but as JAX arrays and without waiting for them. A thread may read these
        arrays while training goes on. With several processes, the call waits for all processes, unless `own` is True:
        then it returns only this process's part of the state."""
        engine = self.engine
        with self._guard:
            return engine.snapshot(own)

    def state(self) -> dict[str, Any]:
        """The exact state of the run, batches in flight included, as {path: array} on the host."""
        return jax.device_get(self.snapshot())

    def state_sha256(self) -> str:
        """sha256 over the state: everything that a resumed run needs."""
        return states.sha256(self.state())

    def restore(self, state: Mapping[str, Any], finite: bool = True) -> None:
        """Replaces the pipeline's state by one that `state()` returned, so that training continues exactly from there.
        Call init first, with the same stages and method.

        Raises BadInput if the state does not fit or is incomplete. Unless `finite` is False, it also raises BadInput if
        weights, statistics or optimizer arrays have a NaN or an infinity. After an error nothing has changed. The
        arrays are copied. A state does not contain beta, the corrections' options, `ema` or the optimizer's settings
        (except injected hyperparameters): the pipeline keeps its own.
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

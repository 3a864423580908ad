"""From checked options to a pipeline that is ready to train.

The order matters: cheap refusals come first, and the CPU devices that stand in for accelerators must be requested
before JAX computes anything.
"""

import dataclasses
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from fdg_jax import block_times, corrections, data, methods, models, own_files, recipe, split
from fdg_jax.api import Pipeline
from fdg_jax.checks import no_effect
from fdg_jax.checks.options import replicas
from fdg_jax.checks.plan import Plan, of_config
from fdg_jax.config import FIELDS, Config, model_options, run_length, values
from fdg_jax.corrections.interface import Late
from fdg_jax.data import fingerprint
from fdg_jax.data.sampling import sampled
from fdg_jax.errors import BadInput, NoEffect
from fdg_jax.layers import EMBED, HEADS, HIDDEN
from fdg_jax.machine import facts
from fdg_jax.machine.output import say
from fdg_jax.methods.interface import Method
from fdg_jax.stages.preprocessing import preprocess_of
from fdg_jax.stages.update import UpdateRule
from fdg_jax.training.processes import Peers
from fdg_jax.transport import devices

MOST_BATCHES = 10**8
ALONE = Peers()
OF_PIPELINE = ("method", "engine", "dtype", "remat", "correct", "momentum", "beta")  # options that Pipeline has, too
OF_RECIPE = ("momentum", "weight_decay", "decay", "b2", "clip_norm")
WARMED_UP = ("resnet110", "resnet1202")
Variables = Mapping[str, Any]
# (the network's random initial variables, the model's name) -> the variables to begin with, as InitialWeights.read.
Initial = Callable[[Variables, str], Variables]


class Partition(NamedTuple):
    """How a network is cut into K stages."""

    blocks: list[nn.Module]
    name: str  # paper, even, balanced, measured or block numbers
    cuts: tuple[int, ...]  # the first block of stages 2..K
    costs: list[float]  # of each block; only their ratios count
    unit: str  # of the costs: time (in seconds) or FLOPs
    has_paper_split: bool  # whether the authors' code cuts this model into K stages

    @property
    def bounds(self) -> tuple[int, ...]:
        """[K + 1] The first block of every stage, then the number of blocks."""
        return (0, *self.cuts, len(self.blocks))


def partition(options: Config, dataset: data.Source, device: Any, peers: Peers = ALONE) -> Partition:
    """Cuts the model as --split says. By default the cut is the authors'; it is balanced if they have no split. Raises
    BadInput.

    device: the device of stage 1, on which `--split measured` measures.
    """
    blocks = models.blocks(options.model, dataset.classes, **model_options(options))
    has_paper_split = models.paper_split(options.model, options.K) is not None
    name = options.split or ("paper" if has_paper_split else "balanced")
    costs, unit = block_costs(name, options, blocks, dataset, device, peers)
    R = replicas(options.replicas, options.K)
    cuts = split.parse(name, options.model, options.K, len(blocks), costs, R)
    return Partition(blocks, name, cuts, costs, unit, has_paper_split)


def block_costs(
    name: str, options: Config, blocks: list[nn.Module], dataset: data.Source, device: Any, peers: Peers = ALONE
) -> tuple[list[float], str]:
    """Returns the cost of each block and the unit of the costs: time for `--split measured`, else FLOPs by XLA's
    analysis. Process 0 measures the times for all processes."""
    if name == "measured" and options.K > 1:
        batch = network_input(dataset, options.batch_size)
        return peers.from_zero(lambda: block_times.seconds(blocks, batch, device)), "time"
    return split.costs(blocks, network_input(dataset, 1)), "FLOPs"


def network_input(dataset: data.Source, batch_size: int) -> Any:
    """The shape and dtype of a batch as block 0 takes it, after the data set's transform (such as augmentation)."""
    stored = jax.ShapeDtypeStruct((batch_size, *dataset.shape), dataset.dtype)
    return jax.eval_shape(dataset.train_transform(0), stored, jax.ShapeDtypeStruct((), jnp.int32))


# Which axes of a transformer's weights (fdg_jax.layers) are cut over which axes of a stage's mesh.
TENSOR, FSDP = ((HEADS, "tensor"), (HIDDEN, "tensor")), ((EMBED, "data"),)


class Job(NamedTuple):
    """Everything that a training loop needs: the options, and the objects that the options name."""

    options: Config  # as used, with all defaults filled in
    dataset: data.Source
    pipeline: Pipeline
    method: Method
    partition: Partition  # of the network into stages
    steps_per_epoch: int
    steps: int  # the number of batches after which the run ends
    learning_rates: np.ndarray  # [batches of all epochs] float32; entry b-1 is batch b's
    devices: list[str]  # of stages k = 1..K; a stage on several devices names all of them
    peers: Peers
    remark: str  # a sentence where stages share a device, or where auto chose the delay line

    @property
    def evaluated_every(self) -> int:
        """Batches between evaluations; 0: only at the end."""
        return self.options.evaluate_every * (self.steps_per_epoch if self.options.epochs else 1)

    @property
    def asked_for(self) -> tuple[str, ...]:
        """The options that configure the method and the correction of late gradients."""
        kinds = [kind for kind in corrections.parse(self.options.correct) if kind.name != "none"]
        own = [name for kind in kinds for name in ("correct", *kind.answers_to)]
        return tuple(dict.fromkeys((*self.method.answers_to, *own)))

    @property
    def of_recipe(self) -> tuple[str, ...]:
        """The options of model, data and recipe in which similar runs may differ. They are the model's own options, and
        the options of optimizer and learning rate that do not have the paper's values."""
        o = self.options
        found = [*models.declared(o.model), *(("block_size",) if self.dataset.unit == "tokens" else ())]
        found += [name for name in ("blocks", "final_rate") if getattr(o, name) != FIELDS[name].default]
        found += [name for name in ("optimizer", "lr_schedule") if getattr(o, name) != FIELDS[name].default]
        found += [name for name in ("warmup_steps", "clip_norm") if getattr(o, name)]
        return tuple(found)


def prepare_cpu(before: Mapping[str, Any] | None = None, one_core: bool | None = None) -> None:
    """Sets how many threads and CPU devices XLA gets, which decides the last bits of results. Call it before JAX
    starts. On one core and for a resumed run, the number of devices is known, so the function starts JAX. Raises
    BadInput if JAX cannot start.

    On one core no operation is split, since threads would take turns on the core (docs/log.md, 2026-11-22). A single
    process then has one device for all stages. Each of several processes keeps the K devices, and so K threads, that it
    requested when it joined. A single thread could not compute while it waits for a message.

    before: config.json of a resumed run, which keeps the settings of its first session. one_core: whether all processes
        act as on one core; None if there is one process only.
    """
    flag, given = "--xla_cpu_multi_thread_eigen", os.environ.get("XLA_FLAGS", "")
    alone = one_core is None
    one = facts.usable_cores() == 1 if alone else one_core
    one = f"{flag}=false" in (before.get("xla_flags") or "") if before else one
    if one and flag not in given:
        os.environ["XLA_FLAGS"] = f"{given} {flag}=false".strip()
    emulated = before.get("cpu_devices") if before else 1 if one and alone else None
    if emulated:
        devices.request_cpu_devices(emulated, exactly=before is not None or not alone)
        devices.stage_devices(emulated)


def prepare(options: Config, note: str = "", peers: Peers = ALONE, initial: Initial | None = None) -> Job:
    """Loads the data, cuts the network, finds devices and initialises the pipeline. Raises BadInput.

    note: the resumed run's note on its data. peers: the processes that train together; by default this process alone,
        even if others have joined it. initial: makes the first variables of a new run from another network's weights.
    """
    dataset = peers.on_all(lambda: load_data(options, note))
    code = {name: file.sha256 for _, name, file in own_files.used(vars(options))}
    peers.compare({"data set": dataset.name, "examples": dataset.fingerprint, "code": code})
    return peers.on_all(lambda: built(options, dataset, peers, initial=initial))


def built(
    options: Config, dataset: data.Source, peers: Peers, parts: Partition | None = None, initial: Initial | None = None
) -> Job:
    """The job on loaded data. parts: the stages, if they are known. Raises BadInput."""
    method = methods.find(options.method)
    options, stage_devices, remark = choose_engine(options, method, peers)
    first = stage_devices[0].devices.flat[0] if isinstance(stage_devices[0], Mesh) else stage_devices[0]
    streamed = isinstance(dataset, data.Stream)  # then the examples are never all on a device
    N, parts = len(dataset.train_inputs), parts or partition(options, dataset, first, peers)
    options = dataclasses.replace(
        options,
        dataset=dataset.name,
        train_size=N,
        split=",".join(map(str, parts.cuts)) if options.K > 1 else parts.name,
        block_size=dataset.per_example if dataset.unit == "tokens" else None,
        vocabulary=dataset.classes if options.dataset == "tokens" else None,
        warmup="on" if wants_warmup(options, method) else "off",
        window=options.window or (1 if streamed else default_window(options, first.platform, N)),
    )
    check_last_batch(options, method, N)
    sampled(options, dataset.classes)
    if not devices.is_here(first):  # stage 1 alone needs the inputs
        dataset = dataset.without_inputs()
    length = run_length(N, options.batch_size, options.epochs, options.steps)
    if length.all_epochs > MOST_BATCHES:  # the learning rates of all batches are kept in memory
        fact = f"{length.all_epochs:,} batches are more than {MOST_BATCHES:,}"
        raise BadInput(f"--epochs {options.epochs}: {fact}. Use fewer epochs.")
    by_batch = rate_by_batch(options, length.per_epoch)
    rates = learning_rates(by_batch, length.all_epochs, options.accumulate)
    plan = of_config(options)
    if peers.first:
        warn_of_no_effect(options, plan, rates[: length.end])
    schedule = lambda updates: by_batch(updates * options.accumulate)  # noqa: E731
    pipeline = Pipeline(
        stages=split.stages(parts.blocks, parts.cuts),
        loss=cross_entropy,
        optimizer=recipe.optimizer(options.optimizer, schedule, **values(options, OF_RECIPE)),
        devices=stage_devices,
        axis_rules=[*(TENSOR if options.tensor > 1 else ()), *(FSDP if options.fsdp else ())],
        guard=True,
        preprocess=dataset.train_transform(options.seed),
        learning_rate=schedule,
        weights=options.weights if "weights" in method.takes else None,
        **values(options, (*OF_PIPELINE, *plan.declared)),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoEffect)  # warn_of_no_effect has printed the warning
        initialise(pipeline, parts, dataset, options, initial)
    if any(spec.compute.draws for spec in pipeline.engine.problem.specs):
        fact = f"model {options.model} draws random numbers in evaluation, too, which a run cannot do"
        raise BadInput(f"{fact}. Draw only if the argument `train` of __call__ is True.")
    names = [" and ".join(device_name(device, peers) for device in place.devices) for place in pipeline.places]
    return Job(options, dataset, pipeline, method, parts, length.per_epoch, length.end, rates, names, peers, remark)


def of_seed(job: Job, seed: int, initial: Initial | None = None) -> Job:
    """The job of a run that differs from `job` in its seed only. Both are trained together (fdg_jax.engine.seeds)."""
    key, preprocess = jax.random.key(seed), preprocess_of(job.dataset.train_transform(seed), with_labels=False)
    whole = first_variables(job.partition, job.dataset, dataclasses.replace(job.options, seed=seed), initial)
    pipeline = job.pipeline.again(key, split.split_variables(whole, job.partition.cuts), preprocess)
    return job._replace(options=dataclasses.replace(job.options, seed=seed), pipeline=pipeline)


def update_rules(job: Job, beta: Any = None, rates: Any = None) -> list[UpdateRule]:
    """The update rules of a run's stages with another beta, or other learning rates. Both may be traced.

    beta: a number; None: the run's own. rates: [batches], as `Job.learning_rates`; None: the run's own.
    """
    o, plan, rules = job.options, of_config(job.options), list[UpdateRule]()
    rates = jnp.asarray(job.learning_rates if rates is None else rates)
    schedule = lambda updates: rates[updates * o.accumulate]  # noqa: E731
    optimizer = recipe.optimizer(o.optimizer, schedule, **values(o, OF_RECIPE))
    asked = [(kind, own if beta is None or "beta" not in own else {**own, "beta": beta})
             for kind, own in plan.corrections]  # fmt: skip
    for spec, staleness in zip(job.pipeline.engine.problem.specs, plan.schedule.mean_staleness, strict=True):
        made = corrections.for_stage(asked, Late(spec.k, spec.K, staleness, schedule, o.momentum))
        correction = corrections.together([each for _, each in made])
        rules.append(UpdateRule.of(spec._replace(optimizer=correction.around(optimizer), correction=correction)))
    return rules


def warn_of_no_effect(options: Config, plan: Plan, rates: np.ndarray) -> None:
    """Prints which options have little or no effect. rates: [batches of the run], the learning rate of each batch."""
    divides = options.optimizer in recipe.SCALE_FREE
    nothing = no_effect.lines(plan, options.momentum, lambda: divides)
    for line in (*nothing, *no_effect.of_run(options, plan, rates)):
        say(f"warning: {line}")


def load_data(options: Config, note: str) -> data.Source:
    """The training examples, with the fingerprint of the whole data set. Raises BadInput."""
    if data.unit(options.dataset) == "tokens":
        files = {name: (getattr(options, name) or "").split(os.pathsep) for name in (options.dataset, "validation")}
        files = {name: paths for name, paths in files.items() if paths != [""]}
        more = {}
        if options.dataset == "tokens":
            more = {"validation": files.get("validation", ()), **values(options, ("vocabulary", "token_dtype"))}
        size = options.block_size or data.BLOCK_SIZE
        whole = data.load_text(options.dataset, files.get(options.dataset, ()), size, **more)
    else:
        whole = data.load(options.dataset, options.data_dir)
    dataset = without_last(whole, options.hold_out) if options.hold_out else whole
    N, n, examples = len(dataset.train_inputs), options.train_size, fingerprint.WORDS[dataset.unit][0]
    if n is not None and n > N and options.dataset != "auto":  # with auto, N is not known in advance
        fact = f"--train-size {n}: {dataset.name} has {N} training {examples}"
        raise BadInput(f"{fact}. Use at most {N}, or leave it out. A resumed run needs the same data as before.")
    if options.batch_size > N:
        raise BadInput(
            f"--batch-size {options.batch_size} is more than the {N} training {examples} of {dataset.name}. "
            f"Use a smaller batch."
        )
    if options.blocks == "random":  # all batches have the same size
        n = (n or N) // options.batch_size * options.batch_size
    if isinstance(dataset, data.Stream) and (options.window or 1) > 1:
        raise BadInput(f"--window {options.window}: {dataset.name} is decoded batch by batch. Leave --window out.")
    return dataset.first(n)._replace(note=dataset.note or note, fingerprint=fingerprint.of(whole))


def check_data(dataset: data.Source, about: Mapping[str, Any], flag: str) -> None:
    """Raises BadInput if a checkpoint was made with other data. Warns if the checkpoint does not name its data."""
    was, now = about.get("data"), dataset.fingerprint
    if now is None or not fingerprint.comparable(was):
        fact = f"another version wrote the newest checkpoint, without a usable fingerprint of the {dataset.unit}"
        print(f"warning: {fact}. So nothing checks that they are the same.", file=sys.stderr, flush=True)
        return
    if differs := fingerprint.difference(was, now):
        fact = f"{flag}: {dataset.name} is not the data set of the newest checkpoint: {differs}"
        where = "Give the directory that holds those images as --data-dir"
        where = where if dataset.unit == "images" else f"Give the same files as --{dataset.name}"
        raise BadInput(f"{fact}. {where}{'' if flag == 'evaluating' else ', or start a new run'}.")


def without_last(whole: data.Source, n: int) -> Any:
    """The data set with its last n training examples as the test set, and a note that says so. Raises BadInput if no
    training example is left."""
    N, examples = len(whole.train_inputs), fingerprint.WORDS[whole.unit][0]
    if n >= N:
        fact = f"--hold-out {n}: {whole.name} has {N} training {examples}, so none would be left for training"
        raise BadInput(f"{fact}. Hold out fewer.")
    said = f"The last {n:,} training {examples} are held out: they are the test data of this run."
    return whole.held_out(n)._replace(note=f"{whole.note} {said}".strip())


def check_last_batch(options: Config, method: Method, N: int) -> None:
    """Refuses a number of micro-batches into which an epoch's last, smaller batch cannot be cut."""
    last, M = N % options.batch_size, options.micro_batches
    if "micro_batches" in method.answers_to and 0 < last < M:
        raise BadInput(
            f"--micro-batches {M}: an epoch of {N} examples ends in a batch of only {last}. Use fewer "
            f"micro-batches, or another --batch-size or --train-size."
        )


def choose_engine(options: Config, method: Method, peers: Peers = ALONE) -> tuple[Config, list[Any], str]:
    """Returns the options with the engine settled, a device or a mesh per stage, and a remark on the devices ("" if
    none is needed).

    Both engines get K CPU devices (or one, see `prepare_cpu`), though the delay line uses only one. XLA's pool has
    max(devices, cores) threads. The number of threads that share a convolution decides how its sums are rounded, so
    engines with equal pools agree to the last bit.
    """
    K, T = options.K, options.tensor
    R = [r * T for r in replicas(options.replicas, K)]
    found, remark = devices.stage_devices(K, peers.processes == 1, R)
    if max(R) > 1:
        if len(set(found)) < len(found):
            asked = f"--K {K} --replicas {options.replicas}{f' --tensor {T}' if T > 1 else ''}"
            raise BadInput(f"{asked} needs {len(found)} devices, but there are {len(set(found))}. Use fewer.")
        parts = np.split(np.array(found, object), np.cumsum(R)[:-1])
        meshes = [Mesh(of.reshape(-1, T), ("data", "tensor")) for of in parts]
        engine = "pipeline" if options.engine == "auto" else options.engine
        return dataclasses.replace(options, engine=engine), meshes, ""
    why = ""
    if options.engine == "auto":
        why = reason_for_delay_line(options, method, found, shared=bool(remark))
        options = dataclasses.replace(options, engine="delay-line" if why else "pipeline")
    if options.engine != "pipeline":
        return options, [found[0]] * options.K, why
    return options, found, remark


def reason_for_delay_line(options: Config, method: Method, found: list[Any], shared: bool) -> str:
    """A sentence on why `--engine auto` takes the delay line; "" if it takes the pipeline.

    K=1 on an accelerator also takes the delay line, so that a baseline is dispatched in windows of batches like the
    other runs.
    """
    if found[0].platform == "cpu":  # the delay line is no faster there
        return ""
    if not method.delay_line or options.weights != "stashed":
        return ""
    one, same = f"--engine auto chose delay-line, all stages on {device_name(found[0])}: ", "the results are the same."
    if shared:
        return f"{one}there are {len(set(found))} devices for K={options.K} stages; {same}"
    if options.K == 1:
        return f"{one}it runs many batches per dispatch, like runs with K > 1 on one device; {same}"
    return ""


def default_window(options: Config, platform: str, examples: int) -> int:
    """Batches per dispatch. On an accelerator the delay line takes the largest number up to 50 that divides an epoch
    evenly. If this number is at most 25, the window is 50, and a shorter window at the epoch's end is compiled as well.
    Otherwise 1."""
    if options.engine == "pipeline" or platform == "cpu":
        return 1
    bound, full = 50, examples // options.batch_size
    even = max((w for w in range(1, bound + 1) if full % w == 0), default=1)
    return even if even > bound // 2 else min(bound, full)


def wants_warmup(options: Config, method: Method) -> bool:
    """The paper's rule: warm-up for ResNet-110 and ResNet-1202, and at K = 3 and 4 for methods that depend on K.
    Schedules other than the paper's use --warmup-steps."""
    if options.lr_schedule != "paper":
        return False
    if options.warmup == "paper":
        return options.model in WARMED_UP or (options.K >= 3 and not method.same_for_every_K)
    return options.warmup == "on"


def rate_by_batch(options: Config, per_epoch: int) -> optax.Schedule:
    """The learning rate as a function of the batch's number, from 0. Warm-up must be settled."""
    if options.lr_schedule == "paper":
        return recipe.paper_schedule(options.learning_rate, options.epochs, per_epoch, options.warmup == "on")
    total = options.epochs * per_epoch or options.steps or 0
    return recipe.schedule(options.lr_schedule, options.learning_rate, total, options.warmup_steps, options.final_rate)


def learning_rates(schedule: optax.Schedule, batches: int, accumulate: int = 1) -> np.ndarray:
    """The learning rate for each batch's gradient, computed once, so that logging never reads from a device. If
    `accumulate` batches make one update, all have the rate of the first batch."""
    first = jnp.arange(batches) // accumulate * accumulate
    return np.asarray(jnp.broadcast_to(jax.vmap(schedule)(first), (batches,)))


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean over the batch. logits [batch, classes], labels [batch]; or [batch, T, classes] and [batch, T] of tokens."""
    logits, labels = logits.astype(jnp.float32), labels.astype(jnp.int32)  # the labels of text are bytes
    of_label = of_labels(logits, labels, logits.shape[-1])
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - of_label)  # as in optax


def at_labels(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The logit of each label."""
    return jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


def _of_labels_backward(classes, labels, dy):
    def scattered(dy, labels):
        logits = jax.ShapeDtypeStruct((*labels.shape, classes), dy.dtype)
        return jax.linear_transpose(lambda x: at_labels(x, labels), logits)(dy)[0]

    def compared(dy, labels):
        return jnp.where(jnp.arange(classes) == labels[..., None], dy[..., None], 0)

    return jax.lax.platform_dependent(dy, labels, cpu=scattered, default=compared), None


# `at_labels`, whose gradient on a GPU is no scatter, which XLA would sort first, to repeat its bits. The backward pass
# needs only the number of classes, so a stash does not keep the logits.
of_labels = jax.custom_vjp(lambda logits, labels, classes: at_labels(logits, labels), nondiff_argnums=(2,))
of_labels.defvjp(lambda logits, labels, classes: (at_labels(logits, labels), labels), _of_labels_backward)


def initialise(
    pipeline: Pipeline, parts: Partition, dataset: data.Source, options: Config, initial: Initial | None
) -> None:
    """Initialises the whole network, then cuts it, so that the initial weights are the same for every K."""
    key, B = jax.random.key(options.seed), options.batch_size
    whole = first_variables(parts, dataset, options, initial)
    labels = jax.ShapeDtypeStruct((B, *dataset.labels_shape), dataset.labels_dtype)
    example = jax.ShapeDtypeStruct((B, *dataset.shape), dataset.dtype), labels
    pipeline.init(key, example, variables=split.split_variables(whole, parts.cuts))


def first_variables(parts: Partition, dataset: data.Source, options: Config, initial: Initial | None) -> Variables:
    """The first variables of the whole network."""
    key = jax.random.key(options.seed)
    whole = split.init_whole(parts.blocks, key, network_input(dataset, options.batch_size))
    return initial(whole, options.model) if initial else whole


def device_name(device: Any, peers: Peers = ALONE) -> str:
    """A device's name, such as cpu:0 or gpu:0 (NVIDIA H100 80GB HBM3), with its process if there are several."""
    number, kind = f"{device.platform}:{device.id}", device.device_kind
    name = number if kind == device.platform else f"{number} ({kind})"
    return name if peers.processes == 1 else f"{name} of process {device.process_index}"

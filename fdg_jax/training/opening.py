"""The lines that a run prints before it begins. `--dry-run` prints the same lines and the costs.

The lines name the network and its data, the split, what each stage needs, and when the learning rate changes. --dry-run
also times a few batches and an evaluation, and throws their weights away. It writes no files except in the user's
cache.
"""

import itertools
import time
from typing import Any, NamedTuple

from fdg_jax import models
from fdg_jax.config import Config
from fdg_jax.data.stream import Stream
from fdg_jax.engine import memory
from fdg_jax.machine import output
from fdg_jax.machine.facts import OtherProcesses
from fdg_jax.machine.signals import Signals
from fdg_jax.recipe import DROPS, learning_rate_changes, warmup_updates
from fdg_jax.runs.progress import clock, count, per_second
from fdg_jax.stages import shapes
from fdg_jax.training.job import Job
from fdg_jax.training.loop import FirstDispatches, feed
from fdg_jax.training.record import Record, Run

FEW_SECONDS, MOST_BATCHES, MOST_SECONDS = 2.0, 200, 60.0  # timed training ends at the first limit
NEVER = 10**9  # batches between two lines of metrics.jsonl, which a dry run does not write
DISTURBED_PERCENT = 5.0  # other processes that take more of the cores' time are reported
PARTS = ("weights", "optimizer", "statistics", "auxiliary", "stashes", "old_weights", "gradients", "in_flight")


def tell(run: Run, known: list[dict[str, Any]]) -> None:
    """Prints the first lines of a run. known: `stage_facts`."""
    show(lines(run.job, known))
    print(f"run        {run.path}{' (resumed)' if run.resumed else ''}", flush=True)
    if run.resumed:  # a new run's note was printed while its data were loaded
        loudly(run.job.dataset.note)
    print("compiling...", flush=True)


def show(lines: list[str], where: Any = None) -> None:
    """Prints lines, wrapped to the terminal's width. where: the stream; by default stdout."""
    width = output.columns()
    print("\n".join(output.wrapped(line, width) for line in lines), file=where, flush=True)


def loudly(note: str) -> None:
    """Prints a note that nobody should miss."""
    if note:
        print(f"\n{output.wrapped(f'!!! {note}', output.columns())}\n", file=output.loud(), flush=True)


def lines(job: Job, known: list[dict[str, Any]]) -> list[str]:
    """The first lines that a person sees: method, data, model, stages with devices and staleness, schedule.

    Arguments:
        job: what is trained.
        known: `stage_facts`.
    """
    o, data, pipeline = job.options, job.dataset, job.pipeline
    asked = [f", {name}={getattr(o, name)}" for name in job.asked_for]
    changed = [name for name, option in models.declared(o.model).items() if getattr(o, name) != option.default]
    own = "".join(f", {name}={getattr(o, name)}" for name in changed)
    computes = o.dtype if o.precision == "auto" else o.precision
    blocks, auxiliary = len(job.partition.blocks), pipeline.auxiliary_parameter_count
    found = [
        f"method     {o.method} with K={o.K}{''.join(asked)}, engine {o.engine}, seed {o.seed}",
        f"data       {data.name}: {data.described()}",
        f"model      {o.model}: {pipeline.parameter_count:,} parameters in {blocks} blocks, {computes}{own}",
    ]
    if auxiliary:
        found.append(f"auxiliary  {auxiliary:,} parameters of auxiliary networks, trained as well")
    found += stage_lines(job, known)
    if o.remat != "none":
        found.append(f"remat      {o.remat}: the backward pass recomputes the activations")
    if o.K > 1:
        begin = "stage 2 begins" if o.K == 2 else f"stages 2 to {o.K} begin"
        cuts = ", ".join(map(str, job.partition.cuts))
        found.append(f"split      {job.partition.name}: {begin} at block {cuts}{whose_split(job)}")
    if o.optimizer != "sgd" or o.clip_norm:
        found.append(f"optimizer  {optimizer_sentence(o)}")
    found.append(f"schedule   {schedule_sentence(o, job.steps_per_epoch)}{stop_clause(job)}")
    about = "devices" if o.engine == "pipeline" else "engine"
    return [*found, f"{about:<10} {job.remark}"] if job.remark else found


SHAPES = {
    "constant": "{}",
    "cosine": "{}, falling to {} along a cosine",
    "wsd": "{}, falling linearly to {} in the last fifth",
}


def optimizer_sentence(options: Config) -> str:
    """The optimizer and its options. Each stage's optimizer sees the gradients of its stage only."""
    o = options
    text = f"{o.optimizer} with momentum {o.momentum:g}"
    text += "" if o.optimizer == "sgd" else f", b2 {o.b2:g}"
    text += f", weight decay {o.weight_decay:g}{' of matrices' if o.decay == 'matrices' else ''}"
    of = "of the whole network" if o.K == 1 else "of a stage"
    return f"{text}, gradients {of} clipped to norm {o.clip_norm:g}" if o.clip_norm else text


def whose_split(job: Job) -> str:
    """A note that the split is the authors', or that they have none for this K."""
    o, parts = job.options, job.partition
    if parts.name == "paper":
        return " (as in the authors' code)"
    if parts.name == "balanced" and not parts.has_paper_split:
        way = f"the blocks are divided for equal {parts.unit} per device"
        others = any(models.paper_split(o.model, K) for K in range(2, 5))
        return f" (the authors' code has no split of {o.model} for K={o.K}, so {way})" if others else f" ({way})"
    return ""


def schedule_sentence(options: Config, per_epoch: int) -> str:
    """A sentence on when the learning rate changes, with a note if the paper's schedule is scaled to fewer epochs."""
    length = f"{count(options.epochs, 'epoch')} of {count(per_epoch, 'batch', 'es')}"
    if not options.epochs:
        length = f"{count(options.steps or 0, 'batch', 'es')} (an epoch has {per_epoch:,})"
    text = f"{length}; learning rate "
    if options.lr_schedule == "paper":
        *early, last = [f"{fraction * options.epochs:.4g}" for fraction in DROPS]
        text += f"{options.learning_rate:g}, divided by 10 after epochs {', '.join(early)} and {last}"
        text += "" if options.epochs == 300 else " (the paper's 150, 225 and 275 of 300, scaled)"
    else:
        rate = options.learning_rate
        text += SHAPES[options.lr_schedule].format(f"{rate:g}", f"{options.final_rate * rate:g}")
    if options.warmup_steps:
        text += f"; linear warm-up for {count(options.warmup_steps, 'batch', 'es')}"
    if options.warmup == "on":
        batches = warmup_updates(options.epochs * per_epoch)
        rate = learning_rate_changes(options.learning_rate, options.epochs * per_epoch, warmup=True)[0][1]
        text += f"; warm-up with {rate:g} for the first {count(batches, 'batch', 'es')} (3 of 300 epochs)"
    return text


def stop_clause(job: Job) -> str:
    """A clause on the batch and learning rate at which --steps ends the run before its schedule; "" if it does not."""
    end, rates = job.steps, job.learning_rates
    if end == len(rates):
        return ""
    return f"; stops after {count(end, 'batch', 'es')} (--steps), at a learning rate of {rates[end - 1]:.3g}"


def stage_facts(job: Job) -> list[dict[str, Any]]:
    """Collects the facts about the stages.

    Returns: for k = 1..K the blocks, cost, parameters, the bytes sent upwards, and the predicted memory
        (fdg_jax.engine.memory; None if it is not predicted).
    """
    engine, found, names = job.pipeline.engine, [], ("k", "total", *PARTS, "kept", "stash")
    here = [{name: getattr(each, name) for name in names} for each in memory.predict(engine)]
    predicted = {each["k"]: each for of_process in job.peers.all_gather(here) for each in of_process}
    bounds, costs, unit = job.partition.bounds, job.partition.costs, job.partition.unit
    for k, ((a, b), size) in enumerate(zip(itertools.pairwise(bounds), job.pipeline.parameter_counts, strict=True), 1):
        sent = engine.problem.specs[k - 1].y if k < len(bounds) - 1 else None
        of = predicted.get(k)
        found.append(
            {
                "k": k,
                "first_block": a,
                "last_block": b - 1,
                "share_percent": round(100 * sum(costs[a:b]) / sum(costs), 1),
                "share_of": unit,
                "seconds": round(sum(costs[a:b]), 6) if unit == "time" else None,
                "parameters": size,
                "sends": shapes.describe(sent),
                "sends_bytes": memory.tree_bytes(sent),
                "memory_bytes": of and {name: of[name] for name in names[1:]},
            }
        )
    return found


def stage_lines(job: Job, known: list[dict[str, Any]]) -> list[str]:
    """Two lines per stage: its blocks and parameters, and its memory. known: `stage_facts`."""
    text = []
    for stage, device, place in zip(known, job.devices, job.pipeline.places, strict=True):
        k = stage["k"]
        seconds = f"{1e3 * stage['seconds']:,.0f} ms a batch, " if stage["seconds"] else ""
        text.append(
            f"stage k={k}  {block_numbers(stage['first_block'], stage['last_block'])}, {seconds}"
            f"{stage['share_percent']:.0f}% of the {stage['share_of']}, {stage['parameters']:,} parameters, staleness "
            f"{count(job.pipeline.schedule.staleness[k - 1], 'update')}, on {device}"
        )
        if stage["memory_bytes"]:
            sends = f"; sends {stage['sends']}, {megabytes(stage['sends_bytes'])} MB" if stage["sends_bytes"] else ""
            part = stage["sends_bytes"] // place.parts
            sends += f", {megabytes(part)} MB from each device" if sends and place.parts > 1 else ""
            each = " on each device" if len(place.devices) > 1 else ""
            text.append(f"  memory   {memory_words(stage['memory_bytes'], each)}{sends}")
    return text


def memory_words(stage: dict[str, int], where: str) -> str:
    """A stage's memory: 27.5 MB{where} (weights 1.0, ...), and XLA's buffers. Parts below 1% are left out."""
    words = []
    for name in PARTS:
        if stage[name] < stage["total"] / 100 and name not in ("weights", "optimizer"):
            continue
        several = name == "stashes" and stage["kept"] > 1 and stage["kept"] * stage["stash"] == stage["stashes"]
        each = f"{stage['kept']} stashes of {megabytes(stage['stash'])}"
        words.append(each if several else f"{name.replace('_', ' ')} {megabytes(stage[name])}")
    return f"{megabytes(stage['total'])} MB{where} ({', '.join(words)}), and XLA's buffers"


def megabytes(n: int) -> str:
    """Bytes in megabytes."""
    return f"{n / 1e6:,.1f}" if n >= 1e5 else f"{n / 1e6:.2f}"


def block_numbers(first: int, last: int) -> str:
    """Block numbers in words."""
    return f"block {first}" if first == last else f"blocks {first} to {last}"


# --dry-run


class Times(NamedTuple):
    """What was measured, in seconds.

    compiling: the time until all programs were compiled.
    example: the time per training example; None if every batch may have compiled.
    evaluation: the time for all test examples.
    others_percent: the percentage of the CPU cores' time that other processes used meanwhile.
    """

    compiling: float
    example: float | None
    evaluation: float
    others_percent: float = 0.0


def tell_costs(job: Job, signals: Signals) -> None:
    """Prints the shapes, the split, the memory, the times and the totals of a run. Raises Stopped."""
    known = stage_facts(job)
    show([*lines(job, known), *memory_lines(job, known)])
    print("computing a few batches to measure the time...", flush=True)
    found = measured(job, signals)
    state = memory.tree_bytes(job.pipeline.state())
    show([*time_lines(job, found, state), "dry run    nothing was trained, nothing was written"], output.loud())
    loudly(job.dataset.note)


def memory_lines(job: Job, known: list[dict[str, Any]]) -> list[str]:
    """The predicted memory of every device; [] if it is not predicted."""
    if not all(stage["memory_bytes"] for stage in known):
        return []
    on: dict[str, int] = {}
    for stage, device in zip(known, job.devices, strict=True):
        on[device] = on.get(device, 0) + stage["memory_bytes"]["total"]
    each = ", ".join(f"{device} {megabytes(n)} MB" for device, n in on.items())
    return [f"memory     {each} (predicted, without XLA's buffers)"]


def measured(job: Job, signals: Signals) -> Times:
    """Trains on batches of the run until enough are timed, then evaluates a test batch."""
    o, pipeline, begun = job.options, job.pipeline, time.monotonic()
    examples, first = len(job.dataset.train_inputs), FirstDispatches(o)
    record = Record(examples, o.batch_size, NEVER, job.learning_rates, writes=False, source=job.dataset)
    record.on_nonfinite = lambda metrics: None
    batches = feed(job.dataset, o, job.steps + MOST_BATCHES, signals.check)  # a short run is repeated
    compiling, began_timing, others = 0.0, None, OtherProcesses()
    try:
        while record.step < 2 * o.K + o.accumulate + MOST_BATCHES:
            signals.check()
            work = batches.next(record.step)
            may_compile = first.may_compile(work.shape)
            now = time.monotonic()
            if began_timing is None and not may_compile:
                began_timing, others = now, OtherProcesses()
            if began_timing and now - began_timing > FEW_SECONDS and record.step > 5:
                break
            work.enter(pipeline)
            record.entered(work.shape[0], work.shape[0] * work.shape[1])
            if may_compile:
                pipeline.wait()
                record.speed.forget()
                compiling += time.monotonic() - now
            record.losses(pipeline.losses())
            if time.monotonic() - begun > MOST_SECONDS:
                break
        pipeline.wait()
        record.losses(pipeline.losses(wait=True))
        rate, taken = record.speed.mean(), others.percent()
        return Times(compiling, record.per_example / rate if rate else None, evaluation(job, batches), taken)
    finally:
        batches.close()


def evaluation(job: Job, batches: Any) -> float:
    """Seconds of an evaluation: the time of one batch, without compiling, times the number of batches."""
    first, transform = next(iter(batches.test())), job.dataset.test_transform()
    seconds = 0.0
    for _ in range(2):  # the first time may compile
        begun = time.monotonic()
        job.pipeline.evaluate(iter([first]), transform)
        seconds = time.monotonic() - begun
    return seconds * len(job.dataset.test_inputs) / len(first[1])


def time_lines(job: Job, found: Times, state: int) -> list[str]:
    """The times, and the totals of the run: hours, device hours, bytes on the disk. state: bytes of a checkpoint."""
    o = job.options
    kept = o.keep + o.keep_best
    disk = f"disk       {count(kept, 'checkpoint')} of {megabytes(state)} MB, plus one while it is being written"
    if found.example is None:
        fact = f"time       not measured: in {short(found.compiling)} s, every batch may have compiled programs"
        return [f"{fact}. They are kept, so repeat the command", *disturbed(found.others_percent, job), disk]
    per_step, every = found.example * o.batch_size, job.evaluated_every
    evaluations = 1 + (job.steps - 1) // every if every else 1
    examples = job.steps * len(job.dataset.train_inputs) / job.steps_per_epoch
    training, evaluating = examples * found.example, evaluations * found.evaluation
    total = found.compiling + training + evaluating
    devices = len(set(itertools.chain.from_iterable(name.split(" and ") for name in job.devices)))
    hours = devices * total / 3600
    speed = per_second(job.dataset.per_example / found.example, job.dataset.unit)
    return [
        f"time       {short(1000 * per_step)} ms a batch of {o.batch_size}, {speed}; "
        f"an evaluation {short(found.evaluation)} s; compiling {short(found.compiling)} s",
        *disturbed(found.others_percent, job),
        f"total      {clock(total)}: {count(job.steps, 'batch', 'es')} {clock(training)}, "
        f"{count(evaluations, 'evaluation')} {clock(evaluating)}; without checkpoints",
        f"cost       {short(hours)} device-hours on {count(devices, 'device')}",
        disk,
    ]


def short(value: float) -> str:
    """A number with three significant digits; a large one without an exponent."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def disturbed(others_percent: float, job: Job) -> list[str]:
    """A line if other processes used the cores that the run computes on; else []. Always [] for a stream, since the
    run's own decoding processes would count as others."""
    few = isinstance(job.dataset, Stream) or others_percent < DISTURBED_PERCENT
    if few or job.pipeline.places[0].devices[0].platform != "cpu":
        return []
    fact = f"other processes took {others_percent:.0f}% of the cores' time during this measurement"
    return [f"loaded     {fact}; alone, the run is faster"]

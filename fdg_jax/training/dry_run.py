"""`--dry-run`: what a run would be and what it would cost, before it is begun.

The network is built and cut, and computes a few batches and an evaluation for their times. What they train is thrown
away. Nothing is written but what every start may write into the user's cache.
"""

import itertools
import time
from typing import Any, NamedTuple

from fdg_jax.cli import Program
from fdg_jax.config import Config
from fdg_jax.data.stream import Stream
from fdg_jax.engine import memory
from fdg_jax.machine import output, terminal
from fdg_jax.machine.cores import OtherProcesses
from fdg_jax.machine.signals import Signals
from fdg_jax.runs.progress import clock, count, per_second
from fdg_jax.training import lifecycle, opening
from fdg_jax.training.job import Job
from fdg_jax.training.loop import ThroughputClock, feed
from fdg_jax.training.processes import Peers
from fdg_jax.training.record import Record

FEW_SECONDS, MOST_BATCHES, MOST_SECONDS = 2.0, 200, 60.0  # of timed training; then it ends, whatever is known
DISTURBED_PERCENT = 5.0  # of the cores' time taken by other processes: from here on it is said


class Times(NamedTuple):
    """What was measured, in seconds.

    compiling: until nothing compiled any more.
    example: a training example's share; None if every batch may have compiled.
    evaluation: of all test examples.
    others_percent: not seconds, but what other processes took of the CPU cores while the examples were timed.
    """

    compiling: float
    example: float | None
    evaluation: float
    others_percent: float = 0.0


def tell(options: Config, program: Program, signals: Signals) -> int:
    """Prints the shapes, the split, the memory, the times and the totals of a run. Raises BadInput and Stopped."""
    job, _ = lifecycle.prepare(options, None, program, signals, Peers())
    known, width = opening.stage_facts(job), terminal.columns()
    lines = [*opening.lines(job, known), *memory_lines(job, known)]
    print("\n".join(terminal.wrapped(line, width) for line in lines), flush=True)
    print("computing a few batches for the time...", flush=True)
    found = measured(job, signals)
    state = memory.tree_bytes(job.pipeline.state())
    said = [*time_lines(job, found, state), "dry run    nothing was trained, nothing was written"]
    print("\n".join(terminal.wrapped(line, width) for line in said), file=output.loud(), flush=True)
    opening.loudly(job.dataset.note)
    return 0


def memory_lines(job: Job, known: list[dict[str, Any]]) -> list[str]:
    """The predicted memory of every device; [] if it is not predicted."""
    if not all(stage["memory_bytes"] for stage in known):
        return []
    on: dict[str, int] = {}
    for stage, device in zip(known, job.devices, strict=True):
        on[device] = on.get(device, 0) + stage["memory_bytes"]["total"]
    each = ", ".join(f"{device} {opening.megabytes(n)} MB" for device, n in on.items())
    return [f"memory     {each} (predicted, without XLA's buffers)"]


def measured(job: Job, signals: Signals) -> Times:
    """Trains on batches of the run until enough of them were timed, and evaluates a test batch."""
    o, pipeline, begun = job.options, job.pipeline, time.monotonic()
    examples = len(job.dataset.train_inputs)
    record = Record(examples, o.batch_size, o.log_every, job.learning_rates, writes=False, source=job.dataset)
    timer = ThroughputClock(pipeline, record, o)
    batches = feed(job.dataset, o, job.steps + MOST_BATCHES, signals.check)  # a short run is repeated
    compiling, began_timing, others = 0.0, None, OtherProcesses()
    try:
        while record.step < 2 * o.K + o.accumulate + MOST_BATCHES:
            signals.check()
            work = batches.next(record.step)
            may_compile = timer.before_dispatch(work.shape)
            now = time.monotonic()
            if began_timing is None and not may_compile:
                began_timing, others = now, OtherProcesses()
            if began_timing and (record.timed_seconds + now - began_timing > FEW_SECONDS) and record.step > 5:
                break
            work.enter(pipeline)
            record.entered(work.shape[0], work.shape[0] * work.shape[1])
            timer.after_dispatch(may_compile)
            pipeline.losses()  # else they would be kept
            compiling += time.monotonic() - now if may_compile else 0.0
            if time.monotonic() - begun > MOST_SECONDS:
                break
        timer.stop()
        rate, taken = record.per_second(), others.percent()
        return Times(compiling, record.per_example / rate if rate else None, evaluation(job, batches), taken)
    finally:
        batches.close()


def evaluation(job: Job, batches: Any) -> float:
    """Seconds of an evaluation: those of a batch, without compiling, times the number of batches."""
    first, transform = next(iter(batches.test())), job.dataset.test_transform()
    seconds = 0.0
    for _ in range(2):  # the first time may compile
        begun = time.monotonic()
        job.pipeline.evaluate(iter([first]), transform)
        seconds = time.monotonic() - begun
    return seconds * len(job.dataset.test_inputs) / len(first[1])


def time_lines(job: Job, found: Times, state: int) -> list[str]:
    """The times, and the totals of the run: hours, hours of devices, bytes on the disk. state: of a checkpoint."""
    o = job.options
    kept = o.keep + o.keep_best
    disk = f"disk       {count(kept, 'checkpoint')} of {opening.megabytes(state)} MB, one more while it is written"
    if found.example is None:
        return ["time       not measured: every batch may have compiled programs", disk]
    per_step, every = found.example * o.batch_size, o.evaluate_every * job.steps_per_epoch
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
        f"{count(evaluations, 'evaluation')} {clock(evaluating)}; checkpoints come on top",
        f"cost       {short(hours)} device-hours on {count(devices, 'device')}",
        disk,
    ]


def short(value: float) -> str:
    """A number with three digits that count; a large one without an exponent."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def disturbed(others_percent: float, job: Job) -> list[str]:
    """A line where other processes took a part of the cores that the run computes on; else []. Of a stream nothing is
    said, as the processes that decode its images are the run's own and would count."""
    few = isinstance(job.dataset, Stream) or others_percent < DISTURBED_PERCENT
    if few or job.pipeline.places[0].devices[0].platform != "cpu":
        return []
    fact = f"meanwhile other processes took {others_percent:.0f}% of the cores' time"
    return [f"loaded     {fact}: alone, a run is faster than this says"]

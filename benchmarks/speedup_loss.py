"""Where the missing speed-up goes: a pipeline's time for a batch minus BP's time / K, by cause, in microseconds.

    .venv/bin/python -m benchmarks.speedup_loss --model resnet20 --batch-size 128 --K 2

An ideal pipeline of K stages on K cores trains a batch in 1/K of the time that BP takes on one core. A real one takes
longer. To find the causes, every turn measures BP, the pipeline, and each operation of the pipeline by itself (with the
host's dispatch), once with all stages on one core and once on K cores. A cause is the difference of two such times, so
the causes add up to the whole difference:

    cut             all operations on one core and one device, minus BP: the cost of cutting the network into stages
    cores together  all operations on K cores, F and B while the other stages compute, minus those on one core:
                    cores share caches, memory and clock; XLA may split an operation over them; copies between devices
    uneven stages   the slowest stage's operations, minus the mean over the stages
    the rest        the pipeline as it trains, minus the slowest stage's operations. Gaps between operations make it
                    positive; a host hidden behind the devices, and cores that other stages leave idle, negative

For K=2 two independent BP processes, one per core, are measured in the same turns: they show how much of "cores
together" is the machine's own limit.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import report, side_specs
from benchmarks.harness.children import say
from benchmarks.harness.turns import Worker, started
from fdg_jax import methods
from fdg_jax.errors import BadInput
from fdg_jax.methods import interface

CAUSES = ("cut", "cores together", "uneven stages", "the rest")


def by_stage(operations: Mapping[str, float], K: int) -> list[float]:
    """Seconds of all operations of a batch, by stage. A message counts for the stage that receives it."""
    sums = [0.0] * K
    for name, seconds in operations.items():
        sums[int(name.rpartition("/")[2]) - 1] += seconds
    return sums


def terms(bp: float, one_core: Mapping[str, Any], pipeline: Mapping[str, Any], took: float, K: int) -> dict[str, float]:
    """Seconds per batch by cause. They add up to took - bp / K.

    Arguments:
        bp, took: seconds per batch of BP on one core, and of the pipeline on K cores.
        one_core, pipeline: the times that benchmarks.harness.operation_times returns with all stages on one core, and
            with one core per stage.
        K: the number of stages.
    """

    def stages(device: Mapping[str, float], host: Mapping[str, float]) -> list[float]:
        return [sum(both) for both in zip(by_stage(device, K), by_stage(host, K), strict=True)]

    alone = sum(stages(one_core["alone"]["device"], one_core["alone"]["host"]))
    beside = stages(pipeline["crowded"], pipeline["alone"]["host"])
    together, slowest = sum(beside), max(beside)
    steps = (bp / K, alone / K, together / K, slowest, took)
    return {cause: after - before for cause, before, after in zip(CAUSES, steps, steps[1:], strict=False)}


def results(given: report.Given) -> list[dict[str, Any]]:
    if given.K < 2:
        raise BadInput("--K 1: a pipeline of one stage is BP. Use --K 2 or more.")
    if given.windows < 2:
        raise BadInput("--windows 1: one turn has no standard error. Use 2 or more.")
    method = check_pipelined(given.method)
    cores = side_specs.cores_available()
    common = {"K": given.K, "model": given.model, "batch_size": given.batch_size}
    names = ["bp", f"{method}:cores=1", method, *(["bp-on-each-core"] if given.K == 2 else [])]
    sides = [side_specs.parse(name, common, "", given.split) for name in names]
    side_specs.check(sides, len(cores))
    with started(sides, cores, given.seconds) as workers:
        turns = [turn(workers, given, number) for number in range(given.windows)]
    about = {"benchmark": "speedup_loss", **workers[2].about, "windows": given.windows, "seconds": given.seconds}
    windows = [worker.column("others_percent") for worker in workers if worker.windows]
    others = max(map(statistics.median, [*windows, [turn["others_percent"] for turn in turns]]))
    return [{**about, "turns": turns, "others_percent": round(others, 1), **report.machine()}]


def check_pipelined(name: str) -> str:
    """The method's full name. Raises BadInput unless its stages pipeline whole batches, one device per stage."""

    def pipelined(method: interface.Method) -> bool:
        return method.name != "bp" and not method.places and method.schedule(2).micro_batches == 1

    method = methods.find(name)
    if not pipelined(method):
        others = ", ".join(other for other in methods.names() if pipelined(methods.find(other)))
        raise BadInput(f"--method {method.name} is no pipeline of whole batches with one core per stage. Use {others}.")
    return method.name


def turn(workers: Sequence[Worker], given: report.Given, number: int) -> dict[str, float]:
    """Seconds per batch of BP, of the pipeline, of two independent BP processes (`lone`), and of each cause."""
    bp, one_core, pipeline, *lone = workers
    took, timed = dict[Worker, float](), dict[Worker, dict[str, Any]]()

    def window(worker: Worker) -> None:
        worker.window()
        took[worker] = worker.side.batch_size / worker.windows[-1]["images_per_second"]

    def operations(worker: Worker) -> None:
        timed[worker] = worker.time_operations(max(3, math.ceil(worker.batches / 2)))

    steps = [(window, bp), (operations, one_core), (operations, pipeline), (window, pipeline)]
    steps += [(window, worker) for worker in lone]
    for step, worker in steps if number % 2 == 0 else reversed(steps):
        step(worker)
    causes = terms(took[bp], timed[one_core], timed[pipeline], took[pipeline], given.K)
    found = {"bp": took[bp], "pipeline": took[pipeline], **causes}
    found["others_percent"] = max(each["others_percent"] for each in timed.values())  # while operations were timed
    if lone:
        found["lone"] = took[lone[0]]  # the time per batch of both cores: each core takes twice as long for one
    over, words = took[bp] / took[pipeline], [f"{cause} {1e6 * value:,.0f} µs" for cause, value in causes.items()]
    say(f"turn {number + 1} of {given.windows}: {over:.3f} times BP; {', '.join(words)}")
    return {name: round(value, 6) for name, value in found.items()}


def table(rows: report.Rows, given: report.Given) -> str:
    [one], K = rows, rows[0]["K"]
    turns = one["turns"]
    share = statistics.fmean(turn["bp"] for turn in turns) / K
    lines = {f"BP/{K}": [turn["bp"] / K for turn in turns], **{each: [turn[each] for turn in turns] for each in CAUSES}}
    lines[f"`{one['method']}`, K={K}"] = [turn["pipeline"] for turn in turns]
    if "lone" in turns[0]:
        lines["for comparison: independent BP processes, one per core"] = [turn["lone"] for turn in turns]
    body = []
    for name, values in lines.items():
        mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
        body.append([name, f"{1e6 * mean:,.0f}", f"± {1e6 * error:,.0f}", f"{100 * mean / share:+.1f}%"])
    ratios = [turn["bp"] / turn["pipeline"] for turn in turns]
    about = (
        f"{given.method} over BP: {report.spread(ratios, 3)}. Means of {len(turns)} turns with windows of about "
        f"{given.seconds:g} s and their standard errors. {given.model}, batch {given.batch_size}, later stages begin "
        f"at {report.cuts(one)}. {one['cpu']}, {one['machine_cores']} cores, "
        f"{report.versions(one)}. {report.disturbed(rows)}"
    )
    return f"{report.markdown(['', 'µs a batch', 'standard error', 'of BP/K'], body)}\n\n{about}"


def parser() -> report.Parser:
    usual = {"model": "resnet20", "method": "fdg", "K": 2, "split": "balanced", "batch_size": 128, "windows": 20}
    return report.parser("speedup_loss", __doc__, **usual, seconds=2.0)


main = report.run(__name__, parser, results, table)

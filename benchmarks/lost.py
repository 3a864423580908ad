"""What K cores do not give: a pipeline's time for a batch against a K-th of BP's, in microseconds, by cause.

    .venv/bin/python -m benchmarks.lost --model resnet20 --batch-size 128 --K 2

K stages on K cores would train a batch in a K-th of the time that BP takes on one core. What they take longer is told
apart by measuring, turn by turn, BP, the pipeline, and what each of the pipeline's operations takes by itself: with
all stages on one core, and on K cores while the other stages compute. From one line to the next one thing changes:

    BP/K            BP on one core
    cut             the sum of all operations on one core and device: the network cut into stages, messages sent,
                    each operation waited for
    cores together  the sum of all operations beside those of the other stages: cores share caches, memory and clock
    uneven stages   the slowest stage's sum instead of the mean of all
    the rest        the pipeline as it trains: the host's thread, gaps between operations

For K=2 two BPs that know nothing of each other, a core each, are measured beside them: what "cores together" costs
whoever uses both.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks import _report, _sides
from benchmarks._sides import Side
from benchmarks._turns import Worker, WorkerDied, same_network, say
from fdg_jax import methods
from fdg_jax.errors import BadInput

CAUSES = ("cut", "cores together", "uneven stages", "the rest")


def by_stage(operations: Mapping[str, float], K: int) -> list[float]:
    """Seconds of all operations of a batch, by stage; what is sent counts for who receives it."""
    sums = [0.0] * K
    for name, seconds in operations.items():
        sums[int(name.rpartition("/")[2]) - 1] += seconds
    return sums


def terms(bp: float, one_core: Mapping[str, Any], pipeline: Mapping[str, Any], took: float, K: int) -> dict[str, float]:
    """By cause, seconds a batch; their sum is took - bp / K. bp, took: of a batch. one_core, pipeline: what
    benchmarks._operations tells of all stages on one core, and on K."""
    # On one core the host's dispatches take their time from the same core as what they dispatch.
    alone = sum(sum(by_stage(one_core["alone"][what], K)) for what in ("host", "device"))
    beside = by_stage(pipeline["crowded"], K)
    together, slowest = sum(beside), max(beside)
    steps = (bp / K, alone / K, together / K, slowest, took)
    return {cause: after - before for cause, before, after in zip(CAUSES, steps, steps[1:], strict=False)}


def results(given: argparse.Namespace) -> list[dict[str, Any]]:
    if given.K < 2:
        raise BadInput("--K 1: a pipeline of one stage is BP. Use --K 2 or more.")
    if not given.seconds > 0:
        raise BadInput(f"--seconds {given.seconds}: use a positive number.")
    cores = _sides.cores_available()
    common = {"K": given.K, "model": given.model, "batch_size": given.batch_size}
    method = methods.find(given.method).name
    names = ["bp", f"{method}:cores=1", method, *(["bp-on-each-core"] if given.K == 2 else [])]
    sides = [_sides.parse(name, common, "", given.split) for name in names]
    _sides.check(sides, len(cores))
    with ExitStack() as stack:
        workers = [started(stack, side, cores, given.seconds) for side in sides]
        same_network(workers)
        turns = [turn(workers, given, number) for number in range(given.windows)]
    about = {"benchmark": "lost", **workers[2].about, "windows": given.windows, "seconds": given.seconds}
    others = max(statistics.median(worker.column("others_percent")) for worker in workers if worker.windows)
    return [{**about, "turns": turns, "others_percent": round(others, 1), **_report.machine()}]


def started(stack: ExitStack, side: Side, cores: Sequence[int], seconds: float) -> Worker:
    say(f"{side.name}: compiling, on {side.cores} core{'s' * (side.cores > 1)}")
    worker = stack.enter_context(Worker(side, cores))
    worker.start(seconds)
    return worker


def turn(workers: Sequence[Worker], given: argparse.Namespace, number: int) -> dict[str, float]:
    """Seconds a batch: of BP, of the pipeline, of lone BPs, and of each cause."""
    bp, one_core, pipeline, *lone = workers
    told = {}

    def window(worker: Worker) -> None:
        worker.window()
        told[worker] = worker.side.batch_size / worker.windows[-1]["images_per_second"]

    def operations(worker: Worker) -> None:
        told[worker, "operations"] = worker.ask({"operations": max(3, math.ceil(worker.batches / 2))})

    steps = [(window, bp), (operations, one_core), (operations, pipeline), (window, pipeline)]
    steps += [(window, worker) for worker in lone]
    for step, worker in steps if number % 2 == 0 else reversed(steps):
        step(worker)
    causes = terms(told[bp], told[one_core, "operations"], told[pipeline, "operations"], told[pipeline], given.K)
    found = {"bp": told[bp], "pipeline": told[pipeline], **causes}
    if lone:
        found["lone"] = told[lone[0]]  # a batch in that time: every core has one in twice as much
    over = told[bp] / told[pipeline]
    say(f"turn {number + 1} of {given.windows}: {over:.3f} times BP; " + microseconds(causes))
    return {name: round(value, 6) for name, value in found.items()}


def microseconds(causes: Mapping[str, float]) -> str:
    return ", ".join(f"{cause} {1e6 * value:,.0f} µs" for cause, value in causes.items())


def table(rows: Sequence[dict[str, Any]], given: argparse.Namespace) -> str:
    [one], K = rows, rows[0]["K"]
    turns = one["turns"]
    share = statistics.fmean(turn["bp"] for turn in turns) / K

    def line(name: str, values: Sequence[float]) -> list[str]:
        mean = statistics.fmean(values)
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        return [name, f"{1e6 * mean:,.0f}", f"± {1e6 * error:,.0f}", f"{100 * mean / share:+.1f}%"]

    body = [line(f"BP/{K}", [turn["bp"] / K for turn in turns])]
    body += [line(cause, [turn[cause] for turn in turns]) for cause in CAUSES]
    body.append(line(f"`{one['method']}`, K={K}", [turn["pipeline"] for turn in turns]))
    if "lone" in turns[0]:
        body.append(line("for comparison: lone BPs, a core each", [turn["lone"] for turn in turns]))
    ratios = [turn["bp"] / turn["pipeline"] for turn in turns]
    about = (
        f"{given.method} over BP: {_report.spread(ratios, 3)}. Means of {len(turns)} turns with windows of about "
        f"{given.seconds:g} s and their standard errors. {given.model}, batch {given.batch_size}, later stages begin "
        f"at {','.join(map(str, one['cuts']))} of {one['blocks']}. {one['cpu']}, {one['machine_cores']} cores, "
        f"{_report.versions(one)}. " + _report.disturbed(rows)
    )
    return f"{_report.markdown(['', 'µs a batch', 'standard error', 'of BP/K'], body)}\n\n{about}"


def parser() -> argparse.ArgumentParser:
    made = _report.parser("lost", __doc__)
    add = made.add_argument
    add("--model", default="resnet20")
    add("--method", default="fdg", help="a pipelined method (default fdg)")
    add("--K", type=_report.positive, default=2, help="stages, each a core (default 2)")
    add("--split", default="balanced", help="paper, even, balanced (default), measured or block numbers")
    add("--batch-size", type=_report.positive, default=128)
    add("--windows", type=_report.positive, default=20, help="turns (default 20)")
    add("--seconds", type=float, default=2.0, help="of a window, about (default 2)")
    return made


def main(arguments: list[str] | None = None) -> int:
    try:
        return _report.run(parser(), results, table, arguments)
    except WorkerDied as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

"""Tests the simulator on this machine: the times of a process's operations predict how fast that process trains.

Each method is a process pinned to its cores. In every turn, its operations are timed first, and then it trains for a
window, so that the machine is about as fast for both. The ratio of a turn is predicted over measured.
"""

import argparse
import dataclasses
import math
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.harness import machines, report, side_specs
from benchmarks.harness.side_specs import Side
from benchmarks.harness.turns import Worker, say, started
from fdg_jax.errors import BadInput
from fdg_jax.schedule.simulator import Prediction, predict

BOUND_PERCENT = 5.0  # the prediction is to be within this of what is measured


def on_cores(side: Side, cores: int) -> Side:
    return dataclasses.replace(side, cores=cores)


def sides(given: argparse.Namespace) -> list[Side]:
    if len(given.K) > 1:
        raise BadInput("--validate takes one --K.")
    common = {"K": given.K[0], "model": given.model, "batch_size": given.batch_size}
    made = [side_specs.parse(text, common, "", given.split) for text in given.method]
    if given.cores:
        made = [on_cores(side, given.cores) for side in made]
    for side in made:
        check(side)
    return made


def check(side: Side) -> None:
    if side.engine != "pipeline" or side.update != "separate" or side.dispatch != "up":
        fact = f"method {side.name}: only the training command's own pipelines can be predicted"
        raise BadInput(f"{fact}. Leave engine, update and dispatch out.")


def predicted(side: Side, timed: dict[str, Any]) -> Prediction:
    """The prediction for a process whose stages share its cores."""
    machine = machines.of_operations(timed, side.method, side.K, side.cores, **machines.copies(timed))
    return predict(side_specs.schedule_of(side), machine)


def rows(given: argparse.Namespace) -> list[dict[str, Any]]:
    wanted = sides(given)
    cores = side_specs.cores_available()
    side_specs.check(wanted, len(cores))
    with ExitStack() as stack:
        workers = [started(stack, side, cores, given.seconds) for side in wanted]
        timed: dict[str, list[Any]] = {worker.side.name: [] for worker in workers}
        found: dict[str, list[Prediction]] = {name: [] for name in timed}
        for turn in range(given.windows):
            for worker in workers if turn % 2 == 0 else reversed(workers):
                name = worker.side.name
                # A third of a window, so that a slow moment is in both; each of them is waited for, some of them twice.
                timed[name].append(worker.time_operations(max(4, math.ceil(worker.batches / 3))))
                found[name].append(predicted(worker.side, timed[name][-1]))
                worker.window()
            pairs = "  ".join(f"{w.side.name} {ratio(w, found[w.side.name], turn):.3f}" for w in workers)
            say(f"turn {turn + 1} of {given.windows}, predicted/measured: {pairs}")
        return [row(worker, found[worker.side.name], timed[worker.side.name], given) for worker in workers]


def ratio(worker: Worker, found: Sequence[Prediction], turn: int) -> float:
    return worker.side.batch_size / found[turn].seconds / worker.windows[turn]["images_per_second"]


def row(worker: Worker, found: Sequence[Prediction], timed: Sequence[Any], given: argparse.Namespace) -> dict[str, Any]:
    ratios = [ratio(worker, found, turn) for turn in range(len(found))]
    others = worker.column("others_percent"), [each["others_percent"] for each in timed]
    last = found[-1]
    return {
        "benchmark": "simulate --validate",
        **worker.about,
        "windows": given.windows,
        "seconds": given.seconds,
        "predicted_images_per_second": [round(worker.side.batch_size / each.seconds, 2) for each in found],
        "measured_images_per_second": [round(speed, 2) for speed in worker.column("images_per_second")],
        "ratio": round(statistics.median(ratios), 4),
        "ratio_windows": [round(value, 4) for value in ratios],
        "within_bound": abs(statistics.median(ratios) - 1) <= BOUND_PERCENT / 100,
        "utilisation_percent": [round(100 * share, 1) for share in last.utilisation],
        "limiting": last.limiting,
        "busy_percent": round(statistics.median(worker.column("busy_percent")), 1),
        "others_percent": round(max(map(statistics.median, others)), 1),
        "operations": timed[-1],
        "core_numbers": worker.cores,
        **report.machine(),
    }


def table(rows: Sequence[dict[str, Any]], given: argparse.Namespace) -> str:
    one = rows[0]
    head = ["method", "K", "cores", "predicted images/s", "measured images/s", "predicted/measured", "within 5%"]
    body = [
        [
            f"`{r['side']}`", str(r["K"]), str(r["cores"]), report.spread(r["predicted_images_per_second"], 1),
            report.spread(r["measured_images_per_second"], 1), report.spread(r["ratio_windows"], 3),
            "yes" if r["within_bound"] else "**no**",
        ]
        for r in rows
    ]  # fmt: skip
    about = (
        f"{given.model}, batch {given.batch_size}, {given.windows} turns of about {given.seconds:g} s of training a "
        f"method, its operations timed before each: median (least to most), the ratio within a turn. {one['cpu']}, "
        f"{one['machine_cores']} cores, {report.versions(one)}. " + report.disturbed(rows)
    )
    return f"{report.markdown(head, body)}\n\n{about}"

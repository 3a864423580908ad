"""Tests the simulator on this machine: it predicts a process's speed of training from the times of its operations.

Each method is a process pinned to its cores. In every turn, its operations are timed first, and then it trains for a
window. So the machine is about equally fast during both. The ratio of a turn is the predicted speed divided by the
measured speed.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import machines, report, side_specs, turns
from benchmarks.harness.report import median, over, rounded
from fdg_jax.errors import BadInput
from fdg_jax.schedule.simulator import Link, Prediction, predict

BOUND_PERCENT = 5.0  # the goal for the prediction's error


def parse(text: str, given: report.Given, K: int, cores: int | None = None) -> side_specs.Side:
    """The side of a method, on so many cores. Raises BadInput if the side cannot be predicted."""
    common = {"K": K, "model": given.model, "batch_size": given.batch_size}
    side = side_specs.parse(text, common, "", given.split)
    if side.engine != "pipeline":
        raise BadInput(f"method {side.name}: only pipelines can be predicted. Leave engine out.")
    return dataclasses.replace(side, cores=cores or side.cores)


def predicted(side: side_specs.Side, timed: dict[str, Any]) -> Prediction:
    """The prediction for a process whose stages share its cores."""
    alone = timed["alone"]["device"]  # a message takes as long as it took alone
    copies = {"size": lambda address, op: alone.get(f"send {address.what}/{address.k}", 0.0), "link": Link(0, 1)}
    machine = machines.of_operations(timed, side.method, side.cores, **copies)
    return predict(side_specs.schedule_of(side), machine)


def rows(given: report.Given) -> list[dict[str, Any]]:
    if len(given.K) > 1:
        raise BadInput("--validate takes one --K.")
    sides = [parse(text, given, given.K[0]) for text in given.method]
    cores = side_specs.cores_available()
    side_specs.check(sides, len(cores))
    timed: dict[str, list[Any]] = {side.name: [] for side in sides}
    with turns.started(sides, cores, given.seconds) as workers:
        for turn, worker in turns.back_and_forth(given.windows, workers):
            # A third of a window, so that a slow phase affects both. The host waits for each operation, for some twice.
            timed[worker.side.name].append(worker.time_operations(max(4, math.ceil(worker.batches / 3))))
            worker.window()
            report.say(f"turn {turn + 1} of {given.windows}, {worker.side.name}: measured")
        return [row(worker, timed[worker.side.name], given) for worker in workers]


def row(worker: turns.Worker, timed: Sequence[Any], given: report.Given) -> dict[str, Any]:
    """The row of a method. timed: the time of each operation, before each window."""
    found = [predicted(worker.side, each) for each in timed]
    speeds = [worker.side.batch_size / each.seconds for each in found]
    measured, last = worker.column("images_per_second"), found[-1]
    ratios = over(speeds, measured)
    others = worker.column("others_percent"), [each["others_percent"] for each in timed]
    return {
        "benchmark": "simulate --validate", **worker.about, "windows": given.windows, "seconds": given.seconds,
        "predicted_images_per_second": rounded(speeds, 2), "measured_images_per_second": rounded(measured, 2),
        "ratio": median(ratios, 4), "ratio_windows": rounded(ratios, 4),
        "within_bound": abs(median(ratios, 9) - 1) <= BOUND_PERCENT / 100,
        "utilisation_percent": rounded([100 * share for share in last.utilisation], 1), "limiting": last.limiting,
        "busy_percent": median(worker.column("busy_percent"), 1),
        "others_percent": max(median(each, 1) for each in others), "operations": timed[-1],
    }  # fmt: skip


COLUMNS: dict[str, report.Cell] = {
    "method": "`{side}`", "K": "{K}", "cores": "{cores}",
    "predicted images/s": report.spread_of("predicted_images_per_second", 1),
    "measured images/s": report.spread_of("measured_images_per_second", 1),
    "predicted/measured": report.spread_of("ratio_windows", 3),
    "within 5%": lambda row: "yes" if row["within_bound"] else "**no**",
}  # fmt: skip


def table(rows: report.Rows, given: report.Given) -> str:
    one = rows[0]
    about = f"{given.model}, batch {given.batch_size}, each method {given.windows} turns of about {given.seconds:g} s. "
    about += "Operations are timed before each turn. Cells: median (least to most) of turns; ratios are within a turn. "
    about += f"{report.place(one)}, {report.versions(one)}. {report.disturbed(rows)}"
    return report.table(COLUMNS, rows, about)

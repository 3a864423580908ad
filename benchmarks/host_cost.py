"""Microseconds of Python that a stage call and a tick cost the host, and their share of a GPU's step.

    .venv/bin/python -m benchmarks.host_cost --model resnet20 --K 1 2 3 4 --packing on off

The stages are the model's own, with all their arrays, but the batch is tiny (one image of 8x8). The cost of a dispatch
depends on how many arrays go in and out of a program, not on their size, and so the device has next to nothing to do.
There are two clocks. Both give medians over many ticks in the steady state:

- calls: each dispatch alone (F forward, B backward, U update, send to the neighbour, entry of a batch). Its results are
  waited for outside the measured time, so that nothing competes with the next call.
- tick while computing: a whole tick as in training. It is waited for outside the measured time, so that the CPU's queue
  of 32 dispatches never fills. On a CPU, the computing threads compete with the host for the cores.

The bare calls of a stage's three programs, without what the stage does around them, are also compared with one program
that does the same. This shows what one dispatch per tick would save. `--packing off` shows the cost when every small
array goes in and out by itself (fdg_jax.stage.packing).

The loop's own part (schedule, mailboxes, losses) is measured with stages that do nothing; `tick` is the sum of the
parts. On a GPU, launching a program's kernels costs extra; the same command measures that on a GPU.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.harness import report
from benchmarks.harness.timed import Small
from fdg_jax.engine.host_loop import HostLoop
from fdg_jax.errors import BadInput
from fdg_jax.machine import compile_cache
from fdg_jax.methods import fdg
from fdg_jax.transport import devices

GPU_STAGE_MICROSECONDS = 1000.0  # the GPU in question runs a stage (F, B and U of one tick) in 1 ms


class Nothing:
    """A stage that does nothing, to measure the loop itself."""

    def run(self, kind, batch, messages):
        return {"x": 0, "dy": 0, "loss": 0}


def loop_microseconds(K: int, ticks: int) -> float:
    """Median microseconds of a tick of the host loop without anything to dispatch."""
    stages = {k: Nothing() for k in range(1, K + 1)}
    taken, loop = [], HostLoop(fdg.fdg(K), stages, lambda box, message, giver: message, lambda batch, loss: None)
    for _ in range(ticks):
        start = time.perf_counter()
        loop.step([{"x": 0, "labels": 0}])
        taken.append(1e6 * (time.perf_counter() - start))
    return statistics.median(taken)


def measure(model: str, K: int, packing: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per stage, then a row for the tick."""
    small = Small(model, K, given.split, given.batch_size, given.image_size, packing == "on")
    whole, entry = small.ticks(given.ticks)
    calls, programs = small.calls(given.ticks), small.programs(given.ticks)
    about = {"benchmark": "host_cost", "model": model, "K": K, "packing": packing}
    rows = []
    for k in range(1, K + 1):
        costs = {f"{what}_microseconds": round(calls[what, k], 1) for what in "FBU"}
        leaves = {f"{what}_leaves": value for what, value in small.leaves[k]._asdict().items()}
        bare = zip(("three_programs_microseconds", "one_program_microseconds"), programs[k], strict=True)
        costs |= {name: round(value, 1) for name, value in bare}
        rows.append({**about, "row": "stage", "k": k, **leaves, **costs})
    stages = sum(calls[what, k] for k in range(1, K + 1) for what in "FBU")
    send, loop = calls.get(("send", 0), 0.0), loop_microseconds(K, given.ticks)
    entry += calls["fill x", 0] + calls["fill labels", 0]
    loop += calls["loss", 0]
    alone = stages + (2 * K - 2) * send + entry + loop  # x to K-1 stages and dy to K-1 stages
    tick = {
        "stage_calls_microseconds": stages / K,
        "send_microseconds": send,
        "entry_microseconds": entry,
        "loop_microseconds": loop,
        "tick_microseconds": alone,
        "tick_while_computing_microseconds": whole,
        "share_percent": 100 * alone / GPU_STAGE_MICROSECONDS,
        "share_while_computing_percent": 100 * whole / GPU_STAGE_MICROSECONDS,
    }
    return [*rows, {**about, "row": "tick", **{name: round(value, 1) for name, value in tick.items()}}]


def fits(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Least squares for F, B and U: microseconds of a call = fixed + each * number of arrays."""
    stages, found = [row for row in rows if row["row"] == "stage"], []
    for what in "FBU":
        leaves, costs = np.array([(row[f"{what}_leaves"], row[f"{what}_microseconds"]) for row in stages]).T
        if len(set(leaves)) > 1:  # else there is no line through them
            each, fixed = np.polyfit(leaves, costs, 1)
            about = {"benchmark": "host_cost", "row": "fit", "what": what, "calls": len(stages)}
            costs = {"fixed_microseconds": round(float(fixed), 1), "leaf_microseconds": round(float(each), 2)}
            found.append({**about, **costs})
    return found


def table(rows: Sequence[dict[str, Any]], given: argparse.Namespace) -> str:
    stage_head = ["model", "K", "packing", "k", "arrays in and out of F, B, U", "F µs", "B µs", "U µs", "bare µs: 3, 1"]
    stages = [
        [r["model"], f"{r['K']}", r["packing"], f"{r['k']}", ", ".join(str(r[f"{what}_leaves"]) for what in "FBU")]
        + [f"{r[f'{what}_microseconds']:.0f}" for what in "FBU"]
        + [f"{r['three_programs_microseconds']:.0f}, {r['one_program_microseconds']:.0f}"]
        for r in rows
        if r["row"] == "stage"
    ]
    tick_head = ["model", "K", "packing", "a stage's F+B+U µs", "a send µs", "entry µs", "loop µs"]
    tick_head += ["tick µs", "tick while computing µs", f"shares of {GPU_STAGE_MICROSECONDS / 1000:g} ms"]
    names = ("stage_calls", "send", "entry", "loop", "tick", "tick_while_computing")
    ticks = [
        [r["model"], f"{r['K']}", r["packing"]]
        + [f"{r[f'{name}_microseconds']:.0f}" for name in names]
        + [f"{r['share_percent']:.0f}%, {r['share_while_computing_percent']:.0f}%"]
        for r in rows
        if r["row"] == "tick"
    ]
    one = rows[0]
    lines = "; ".join(
        f"{r['what']} {r['fixed_microseconds']:.0f} + {r['leaf_microseconds']:.2f}" for r in rows if r["row"] == "fit"
    )
    about = (
        f"The shares are of a tick on GPUs that take 1 ms for a stage's F, B and U. "
        f"Lines through the calls, µs + µs an array in and out: {lines or 'none'}. "
        f"Medians over {given.ticks} ticks, batch {given.batch_size}, images {given.image_size}x{given.image_size}, "
        f"split {given.split}. Devices {one['device']}; {one['cpu']}, {one['machine_cores']} cores, "
        f"{report.versions(one)}."
    )
    return f"{report.markdown(stage_head, stages)}\n\n{report.markdown(tick_head, ticks)}\n\n{about}"


def parser() -> argparse.ArgumentParser:
    made = report.parser("host_cost", __doc__)
    add = made.add_argument
    add("--model", nargs="+", default=["resnet20"])
    add("--K", type=report.positive, nargs="+", default=[1, 2, 3, 4])
    add(
        "--packing",
        choices=["on", "off"],
        nargs="+",
        default=["on"],
        help="whether small arrays are packed into one (default on)",
    )
    add("--split", default="balanced", help="paper, even, balanced (default) or block numbers as 3,7")
    add("--ticks", type=report.positive, default=300, help="(default 300)")
    add("--batch-size", type=report.positive, default=1)
    add("--image-size", type=report.positive, default=8, help="pixels a side, at most 32 (default 8)")
    return made


def results(given: argparse.Namespace) -> list[dict[str, Any]]:
    if not 8 <= given.image_size <= 32:
        raise BadInput(f"--image-size {given.image_size}: images are cut out of images of 32 pixels. Use 8 to 32.")
    devices.emulate_cpu(max(given.K))
    compile_cache.enable()
    rows = [
        row
        for model in given.model
        for K in given.K
        for packing in given.packing
        for row in measure(model, K, packing, given)
    ]
    where = {"ticks": given.ticks, "batch_size": given.batch_size, "image_size": given.image_size, **report.here()}
    return [{**row, **where} for row in [*rows, *fits(rows)]]


def main(arguments: list[str] | None = None) -> int:
    return report.run(parser(), results, table, arguments)


if __name__ == "__main__":
    sys.exit(main())

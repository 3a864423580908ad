"""Images per second of FDG with K workers on K cores, against BP on one core.

    .venv/bin/python -m benchmarks.images_per_second --model resnet20 --batch-size 128 --K 2 --split balanced
    .venv/bin/python -m benchmarks.images_per_second --sides bp fdg delay-line bp-two-cores fdg:split=5
    .venv/bin/python -m benchmarks.images_per_second --sides bp fdg torch torch-ddp --python peers/bin/python

A CPU core stands in for a device: one worker is one core. Every side is a process of its own, pinned before it starts
to as many cores as it has workers. All sides have the same fast paths (huge pages, separate programs, the same layers)
and are compiled and warm before the clock starts. Then they take turns, one window each, while the others sleep. The
ratio is a side's speed over the first side's in the same turn; the table has the median over the turns.

On a GPU (`--device gpu`, the default if there is one) the sides are the engines on it: BP, the delay line and the
pipeline, whose K stages share the GPUs. A second table then has the time that each operation of a stage takes alone.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import report, side_specs
from benchmarks.harness.turns import Worker, WorkerDied, measure
from benchmarks.peers import sides as peers
from fdg_jax import methods
from fdg_jax.errors import BadInput
from fdg_jax.machine import huge_pages
from fdg_jax.schedule.ideal import COMPARED, free_time, tick_time

DEFAULT = {"cpu": ["bp", "fdg"], "gpu": ["bp", "delay-line", "fdg"]}
OPERATIONS = 20  # batches over which they are timed


def over(speeds: Sequence[float], base: Sequence[float]) -> list[float]:
    """The ratios of images/s to those of another side, one per turn."""
    return [a / b for a, b in zip(speeds, base, strict=True)]


def row(worker: Worker, first: Worker, given: argparse.Namespace) -> dict[str, Any]:
    speeds = worker.column("images_per_second")
    ratios = over(speeds, first.column("images_per_second"))
    return {
        "benchmark": "images_per_second",
        **worker.about,
        "windows": given.windows,
        "seconds": given.seconds,
        "batches_per_window": worker.batches,
        "images_per_second": round(statistics.median(speeds), 2),
        "images_per_second_windows": [round(speed, 6) for speed in speeds],
        "baseline": first.side.name,
        "ratio": round(statistics.median(ratios), 4),
        "ratio_windows": [round(ratio, 4) for ratio in ratios],
        "busy_percent": round(statistics.median(worker.column("busy_percent")), 1),
        "core_percent": [
            round(statistics.median(each), 1) for each in zip(*worker.column("core_percent"), strict=True)
        ],
        "others_percent": round(statistics.median(worker.column("others_percent")), 1),
        "page_faults_per_batch": round(statistics.median(worker.column("page_faults")) / worker.batches, 1),
        "core_numbers": worker.cores,
        "operations": worker.operations,
        "held": worker.held,
        **report.machine(),
    }


def ideal(row: dict[str, Any]) -> str:
    """The speed-up over BP on one device that the schedule allows on K devices.

    Returns it with a barrier between ticks, as in the paper's Table 2, and without one, as the host loop runs. Tb = 2
    Tf, auxiliary networks cost nothing.
    """
    K = row["K"]
    if row["engine"] != "pipeline" or row["cores"] != K or row["device"] != "cpu":  # a peer's engine is another
        return ""
    method = methods.find(row["method"])
    own = {name: value for name, value in row.get("options", {}).items() if name in method.schedule_options}
    schedule, alone = method.schedule(K, **own), COMPARED.Tf + COMPARED.Tb
    times = (time(schedule, method.costs(K), COMPARED).at(COMPARED) for time in (tick_time, free_time))
    return " and ".join(f"{float(alone / time):.2f}" for time in times)


def versions(rows: Sequence[dict[str, Any]]) -> str:
    """Python 3.11.7, JAX 0.10.2, ...: each from the first side that has it."""
    names = {"python": "Python", "jax": "JAX", "torch": "PyTorch"}
    found = {name: next((r[key] for r in rows if key in r), None) for key, name in names.items()}
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


def table(rows: Sequence[dict[str, Any]], given: argparse.Namespace, missing: Sequence[str] = ()) -> str:
    one = rows[0]
    windows = "images_per_second_windows"
    also = [r for r in rows if r["side"] == given.also_over]
    head = ["side", "K", "cores", "later stages begin at", "images/s"]
    head += [*(f"over {r['side']}" for r in (one, *also)), "ideal", "each core busy"]
    held = any(r["held"] for r in rows)
    head += ["MB of arrays", f"bytes more than {one['side']}: predicted", "measured"] if held else []
    body = [
        [
            f"`{r['side']}`",
            str(r["K"]),
            str(r["cores"]),
            ",".join(map(str, r["cuts"])) + (f" of {r['blocks']}" if r["cuts"] else "none"),
            report.spread(r["images_per_second_windows"], 1),
            *(report.spread(over(r[windows], base[windows]), 3) for base in (one, *also)),
            ideal(r),
            # On a GPU the host's cores are not what is compared.
            ", ".join(f"{s:.0f}%" for s in (r["core_percent"] if r["device"] == "cpu" else [r["busy_percent"]])),
            *(more_held(r, one) if held else ()),
        ]
        for r in rows
    ]
    where = "" if one["device"] == "cpu" else f"{one['device_kind']}; host "
    about = (
        f"{given.model}, batch {given.batch_size}, {given.windows} windows of about {given.seconds:g} s a "
        f"side in turns: median (least to most). {where}{one['cpu']}, {one['machine_cores']} cores, "
        f"{versions(rows)}, huge pages {'on' if one['huge_pages'] else 'off'}, "
        f"commit {one['commit']}. " + report.disturbed(rows)
    )
    return "\n\n".join([report.markdown(head, body), *stage_times(rows), about, *missing])


def more_held(row: dict[str, Any], first: dict[str, Any]) -> list[str]:
    """The MB of a side's arrays at their most, and the bytes that these are more than the first side's."""
    names = ("predicted_bytes", "measured_bytes")
    if not row["held"] or not first["held"]:
        return ["–"] * 3
    return [f"{row['held'][names[1]] / 1e6:.2f}", *(f"{row['held'][name] - first['held'][name]:+,}" for name in names)]


def stage_times(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A table of the time that each operation of a stage takes alone, from dispatch to end; [] if not asked for."""
    timed = [row for row in rows if row["operations"]]
    kinds = sorted({key.partition("/")[0] for row in timed for key in row["operations"]["alone"]["device"]})
    body = []
    for row in timed:
        host, device = row["operations"]["alone"]["host"], row["operations"]["alone"]["device"]
        for k in range(1, row["K"] + 1):
            taken = [1e3 * (host[key] + device[key]) if (key := f"{kind}/{k}") in device else None for kind in kinds]
            cells = ["" if ms is None else f"{ms:.3f}" for ms in taken]
            body.append([f"`{row['side']}`", str(k), *cells])
    return [report.markdown(["side", "k", *(f"{kind} ms" for kind in kinds)], body)] if timed else []


def parser() -> argparse.ArgumentParser:
    names, options = ", ".join(side_specs.PRESETS), side_specs.OPTIONS.items()
    epilog = f"A side is NAME[:option=value]...; NAME: {names} or a method (K workers on K cores); options:\n"
    lines = [f"  {name:10} {meaning}" for name, meaning in options]
    lines += [f"  {side_specs.METHODS_OWN}", f"  {side_specs.OF_TRAINING}", peers.help()]
    default, default_gpu = (" ".join(DEFAULT[device]) for device in ("cpu", "gpu"))
    made = report.parser("images_per_second", __doc__, epilog + "\n".join(lines))
    add = made.add_argument
    add("--model", default="resnet20", help="any of the training command's (default resnet20)")
    add("--batch-size", type=report.positive, default=128, help="(default 128)")
    add("--K", type=report.positive, default=2, help="number of stages, one worker each (default 2)")
    add("--split", default="balanced", help="paper, even, balanced (default), measured or block numbers")
    add("--windows", type=report.positive, default=6, help="turns a side (default 6)")
    add("--seconds", type=float, default=8.0, help="length of a window (default 8)")
    add(
        "--sides",
        nargs="+",
        metavar="SIDE",
        help=f"the first is the baseline (default {default}, on a GPU {default_gpu})",
    )
    add("--also-over", metavar="SIDE", help="another side to compare with, in a column of its own")
    add(
        "--memory",
        action="store_true",
        help="count also the bytes of each side's arrays between two operations, predicted and measured",
    )
    add(
        "--device",
        choices=["cpu", "gpu"],
        help="CPU cores, or the accelerators that JAX finds (default: a GPU, if any)",
    )
    add("--python", default="", metavar="PATH", help="interpreter of the peers' environment, if not this one")
    add("--xla-flags", default="", metavar="FLAGS", help="of every side without xla=... of its own")
    return made


def main(arguments: list[str] | None = None) -> int:
    try:
        given = parser().parse_args(arguments)
        if not given.seconds > 0:
            raise BadInput(f"--seconds {given.seconds}: use a positive number.")
        report.check_json(given.json)
        device = given.device or ("gpu" if huge_pages.gpu_visible(dict(os.environ)) else "cpu")
        common = {"K": given.K, "model": given.model, "batch_size": given.batch_size, "device": device}
        wanted = given.sides or DEFAULT[device]
        if given.also_over not in (None, *wanted[1:]):
            fact = f"--also-over {given.also_over} is none of the sides behind the first, {' '.join(wanted[1:])}"
            raise BadInput(f"{fact}. Name one of them.")
        sides = [peers.parse(text, common, given.xla_flags, given.split) for text in wanted]
        cores = side_specs.cores_available()
        side_specs.check(sides, len(cores))
        if given.memory and (other := next((side for side in sides if side.worker != side_specs.OUR_WORKER), None)):
            raise BadInput(f"--memory counts JAX's arrays of one process. Leave it or side {other.name} out.")
        sides, missing = peers.available(sides, given.python)
        for sentence in missing:
            print(sentence, file=sys.stderr)
        if given.also_over not in (None, *(side.name for side in sides)):
            raise BadInput(f"--also-over {given.also_over} is missing here. Leave it out.")
        operations = OPERATIONS if device == "gpu" else 0
        workers = measure(sides, cores, given.windows, given.seconds, operations, given.memory)
    except (BadInput, WorkerDied) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1
    except KeyboardInterrupt:
        return 130
    rows = [row(worker, workers[0], given) for worker in workers]
    report.emit(rows, table(rows, given, missing), given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

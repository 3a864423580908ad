"""Images per second of FDG with K workers on K cores, compared with BP on one core.

    .venv/bin/python -m benchmarks.images_per_second --model resnet20 --batch-size 128 --K 2 --split balanced
    .venv/bin/python -m benchmarks.images_per_second --sides bp fdg delay-line bp-two-cores fdg:split=5
    .venv/bin/python -m benchmarks.images_per_second --sides bp fdg torch torch-ddp --python peers/bin/python

A CPU core stands in for a device: one worker is one core. Every side is a separate process. Before it starts, it is
pinned to as many cores as it has workers. All sides have the same fast paths (huge pages, separate programs, the same
layers) and are compiled and warm before the clock starts. Then they take turns, one window each, while the others
sleep. The ratio is a side's speed divided by the first side's speed in the same turn. The table has the median of all
turns.

On a GPU (`--device gpu`, the default if there is one) the sides are engines on the GPU: BP, the delay line, and the
pipeline, whose K stages share the GPUs.
"""

import os
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import report, side_specs, turns
from benchmarks.peers import sides as peers
from fdg_jax import methods
from fdg_jax.errors import BadInput
from fdg_jax.machine import huge_pages
from fdg_jax.schedule.ideal import COMPARED, free_time, tick_time

DEFAULT = {"cpu": ["bp", "fdg"], "gpu": ["bp", "delay-line", "fdg"]}
SPEEDS = "images_per_second_windows"


def speed_row(worker: turns.Worker, speeds: Sequence[float], first: Sequence[float]) -> dict[str, Any]:
    """The entries of a row on a side's windows and on the use of the cores. speeds, first: images/s of each window of
    this side and of the first side."""
    by_core = [report.median(each, 1) for each in zip(*worker.column("core_percent"), strict=True)]
    others = {"others_percent": report.median(worker.column("others_percent"), 1), "core_numbers": worker.cores}
    found = report.speeds(speeds, first)
    return {**worker.about, "batches_per_window": worker.batches, **found, "core_percent": by_core, **others}


def row(worker: turns.Worker, first: turns.Worker, given: report.Given) -> dict[str, Any]:
    faults = round(report.median(worker.column("page_faults"), 1) / worker.batches, 1)
    busy = {"busy_percent": report.median(worker.column("busy_percent"), 1), "page_faults_per_batch": faults}
    about = {"windows": given.windows, "seconds": given.seconds, "baseline": first.side.name, "held": worker.held}
    speeds = speed_row(worker, worker.column("images_per_second"), first.column("images_per_second"))
    return {**speeds, **about, **busy}


def ideal(row: dict[str, Any]) -> str:
    """The largest speed-up over BP on one device that the schedule allows on K devices.

    Returns two numbers: with a barrier between ticks, as in the paper's Table 2, and without one, as in the host loop.
    Tb = 2 Tf; auxiliary networks cost nothing.
    """
    K = row["K"]
    if row["engine"] != "pipeline" or row["cores"] != K or row["device"] != "cpu":  # a peer has another engine
        return ""
    method = methods.find(row["method"])
    own = {name: value for name, value in row.get("options", {}).items() if name in method.schedule_options}
    schedule, alone = method.schedule(K, **own), COMPARED.Tf + COMPARED.Tb
    times = (time(schedule, method.costs(K), COMPARED).at(COMPARED) for time in (tick_time, free_time))
    return " and ".join(f"{float(alone / time):.2f}" for time in times)


def versions(rows: report.Rows) -> str:
    """The versions, such as Python 3.11.7, JAX 0.10.2, each from the first side that has it."""
    names = {"python": "Python", "jax": "JAX", "torch": "PyTorch"}
    found = {name: next((r[key] for r in rows if key in r), None) for key, name in names.items()}
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


def side_columns(bases: dict[str, Sequence[float]]) -> dict[str, report.Cell]:
    """The columns of a table of speeds. bases: images/s of the sides with which all are compared."""
    ratios: dict[str, report.Cell] = {
        f"over {name}": lambda r, base=base: report.spread(report.over(r[SPEEDS], base), 3)
        for name, base in bases.items()
    }
    columns: dict[str, report.Cell] = {"side": "`{side}`", "K": "{K}", "cores": "{cores}"}
    columns |= {"later stages begin at": report.cuts, "images/s": report.spread_of(SPEEDS, 1)}
    return columns | ratios


def about_machine(rows: report.Rows) -> str:
    """The last sentences below a table of speeds."""
    one = rows[0]
    pages = "on" if one["huge_pages"] else "off"
    where = f"{report.place(one)}, {versions(rows)}, huge pages {pages}, commit {one['commit']}."
    return f"{where} {report.disturbed(rows)}"


def table(rows: report.Rows, given: report.Given) -> str:
    one = rows[0]
    columns = side_columns({r["side"]: r[SPEEDS] for r in rows if r is one or r["side"] == given.also_over})
    # On a GPU the host's cores are not compared.
    columns |= {"ideal": ideal, "each core busy": lambda r: report.percents(
        r["core_percent"] if r["device"] == "cpu" else [r["busy_percent"]])}  # fmt: skip
    if any(r["held"] for r in rows):
        heads = ("MB of arrays", f"bytes more than {one['side']}: predicted", "measured")
        columns |= {head: lambda r, i=i: more_held(r, one)[i] for i, head in enumerate(heads)}
    where = "" if one["device"] == "cpu" else f"{one['device_kind']}; host "
    about = f"{given.model}, batch {given.batch_size}, sides in turns. Cells: median (least to most) of "
    about += f"{given.windows} windows of about {given.seconds:g} s. {where}{about_machine(rows)}"
    return "\n\n".join([report.table(columns, rows, about), *given.missing])


def more_held(row: dict[str, Any], first: dict[str, Any]) -> list[str]:
    """The most MB that a side's arrays take, and how many bytes more than the first side's arrays this is."""
    names = ("predicted_bytes", "measured_bytes")
    if not row["held"] or not first["held"]:
        return ["–"] * 3
    more = [f"{row['held'][name] - first['held'][name]:+,}" for name in names]
    return [report.megabytes(row["held"]["measured_bytes"]), *more]


def parser() -> report.Parser:
    names, options = ", ".join(side_specs.PRESETS), side_specs.OPTIONS.items()
    epilog = f"A side is NAME[:option=value]...; NAME: {names} or a method (K workers on K cores); options:\n"
    lines = [f"  {name:10} {meaning}" for name, (_, meaning) in options]
    lines += [f"  {side_specs.METHODS_OWN}", f"  {side_specs.OF_TRAINING}", peers.help()]
    default, default_gpu = (" ".join(DEFAULT[device]) for device in ("cpu", "gpu"))
    usual = {"model": "resnet20", "batch_size": 128, "K": 2, "split": "balanced", "windows": 6, "seconds": 8.0}
    made = report.parser("images_per_second", __doc__, epilog + "\n".join(lines), **usual)
    add = made.add_argument
    add("--sides", nargs="+", metavar="SIDE", help=f"first the baseline (default {default}, on a GPU {default_gpu})")
    add("--also-over", metavar="SIDE", help="another side to compare with, in a column of its own")
    add("--memory", action="store_true", help="count the bytes of each side's arrays, too, predicted and measured")
    add("--device", choices=["cpu", "gpu"], help="CPU cores, or JAX's accelerators (default: a GPU, if any)")
    add("--dtype", choices=side_specs.OPTIONS["dtype"][0], help="dtype of sides without dtype=...")
    add("--precision", choices=side_specs.OPTIONS["precision"][0], help="as --dtype, for sides without their own")
    add("--skip-failed", action="store_true", help="leave out sides that fail, except the first")
    add("--python", default="", metavar="PATH", help="interpreter of the peers' environment, if not this one")
    add("--xla-flags", default="", metavar="FLAGS", help="xla of sides without xla=...")
    return made


def asked_for(given: report.Given, device: str) -> list[side_specs.Side]:
    """The requested sides that can run here; `given.missing` gets a sentence on each side that cannot. Raises
    BadInput."""
    common = {"K": given.K, "model": given.model, "batch_size": given.batch_size, "device": device}
    common |= {name: value for name in ("dtype", "precision") if (value := getattr(given, name))}
    wanted = given.sides or DEFAULT[device]
    if given.also_over not in (None, *wanted[1:]):
        raise BadInput(f"--also-over {given.also_over} is not a side after the first. Use {' or '.join(wanted[1:])}.")
    sides = [peers.parse(text, common, given.xla_flags, given.split) for text in wanted]
    side_specs.check(sides, len(side_specs.cores_available()))
    if given.memory and (other := next((side for side in sides if side.worker != side_specs.Side.worker), None)):
        raise BadInput(f"--memory counts JAX's arrays of one process. Leave --memory or side {other.name} out.")
    sides, given.missing = peers.available(sides, given.python)
    for sentence in given.missing:
        report.say(sentence)
    return sides


def results(given: report.Given) -> list[dict[str, Any]]:
    device = given.device or ("gpu" if huge_pages.gpu_visible(dict(os.environ)) else "cpu")
    sides, left_out = asked_for(given, device), dict[str, str]() if given.skip_failed else None
    with turns.started(sides, side_specs.cores_available(), given.seconds, left_out) as workers:
        workers = turns.take_turns(workers, given.windows, left_out)
        for worker in workers if given.memory else []:
            worker.held = worker.ask({"held": 2})
    given.missing += [f"Side {name} is left out: {why}." for name, why in (left_out or {}).items()]
    return [row(worker, workers[0], given) for worker in workers]


main = report.run(__name__, parser, results, table)

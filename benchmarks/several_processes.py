"""FDG with a process for each stage, beside FDG in one process and independent BP processes, and what is exchanged.

    .venv/bin/python -m benchmarks.several_processes
    .venv/bin/python -m benchmarks.several_processes --models resnet20:128 --rounds 3 --starts 1
    .venv/bin/python -m benchmarks.several_processes --out runs/several_processes

The last form draws a picture of each model as well. The sides, each pinned to as many cores as it has workers:

    fdg:processes=each  every stage in a process of its own on a core of its own, joined by fdg_jax.join_processes
    fdg                 all stages in one process, on K emulated CPU devices and K cores
    bp-on-each-core     K independent BP processes, a core each: the sum of their images/s
    bp                  one BP process on one core
    torch-pipeline      PyTorch's 1F1B, K processes, a core each (where PyTorch is installed, or named by --python)
    torch-ddp           PyTorch's DistributedDataParallel, K processes, a core each

All processes of a model are started, compiled and warm before the clock starts. Then the sides take turns, one window
in each round, while the others sleep. A window is a fixed number of batches. It lasts from the request to all of its
processes until the last of them has computed everything. A side's ratio to another is taken within a round, and the
table has the median over the rounds. --starts repeats all of this with new processes, because processes of one side
differ, too.

Stages that are apart are as fast as the slower one, so first each block's time is measured on one core (by
benchmarks.split), and the network is cut by these times, the same for all sides. PyTorch's blocks take other times:
--also torch-pipeline:split=balanced is its pipeline cut by FLOPs.

A process on one core splits no operation over threads, as the training command has it there. A program of your own that
is started by fdg_jax.launch says so by XLA_FLAGS=--xla_cpu_multi_thread_eigen=false. What it does without is the side
fdg:processes=each:xla=--xla_cpu_multi_thread_eigen=true, which --also adds.

The other tables are of fdg:processes=each alone, from one more window in which everything is noted. Messages are
counted where a process hands them to its transport and where they come out of it, and compared with what their shapes
predict. The times come from threads: one for each stage or link in a process, asleep until the next result is there.
So nothing is dispatched otherwise than in the other windows, and no stage waits for a thread. What it costs: the
threads wake up on the core that computes. The line below the tables has the speed of this window over that of the
others, and how late a thread sees an end. While a stage waits its core is free, so the end of waiting is seen at once;
it is the border between two operations of a busy stage that may be drawn late. All processes read the same clock.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from benchmarks.harness import block_shares, gantt, report, several_processes_page, side_specs
from benchmarks.harness.message_counts import Key, Message, together
from benchmarks.harness.recording import events
from benchmarks.harness.turns import Worker, command, same_network, say, take_turns
from benchmarks.harness.waiting import AWAY, on_the_way, read, seconds_by_kind, waits
from benchmarks.images_per_second import over
from benchmarks.peers import sides as peers
from benchmarks.split import shares
from benchmarks.timeline import window
from fdg_jax import models
from fdg_jax.data.sets import synthetic
from fdg_jax.errors import BadInput

MODELS = ("resnet20:128", "wrn16_4:64")
JOINED, TOGETHER, ALONE = "fdg:processes=each", "fdg", "bp"
MEASURED = "measured"
PEERS = ("torch-pipeline", "torch-ddp")
LATE_TRIES = 10


class Compared(NamedTuple):
    """What was measured of a model.

    workers: one of each side, with the windows of all starts.
    recorded: what the processes of JOINED noted in one more window.
    late: by how many seconds each of their threads saw ends late.
    missing: a sentence for each side that cannot run here.
    """

    workers: list[Worker]
    recorded: dict[str, Any]
    late: list[float]
    missing: list[str]


def wanted(text: str) -> dict[str, Any]:
    """Reads MODEL:BATCH."""
    model, _, batch = text.partition(":")
    if not (batch.isdecimal() and int(batch)):
        raise BadInput(f"--models {text}: write MODEL:BATCH, e.g. resnet20:128.")
    models.blocks(model, synthetic.CLASSES)  # refuses what is no model
    return {"model": model, "batch_size": int(batch)}


def independent(K: int) -> str:
    """The side of K independent BP processes."""
    return "bp-on-each-core" if K == 2 else f"bp-on-each-core:cores={K}"


def sides_of(text: str, given: argparse.Namespace, split: str) -> list[side_specs.Side]:
    """The sides that are compared for a model, whether they can run here or not. split: where they are cut."""
    common = {**wanted(text), "K": given.K}
    names = (JOINED, TOGETHER, independent(given.K), ALONE, *PEERS, *given.also)
    return [peers.parse(name, common, "", split) for name in names]


def started(stack: ExitStack, side: side_specs.Side, cores: Sequence[int], steps: int) -> Worker:
    """Starts a side's process and lets it train for a window that does not count; the stack ends it."""
    say(f"{side.name}: compiling, on {side.cores} core{'s' * (side.cores > 1)}")
    worker = stack.enter_context(Worker(side, cores))
    worker.about = worker.answer()
    worker.batches = steps * (side.cores if side.method == "bp" else 1)  # independent processes share them out
    worker.run()
    return worker


def compare(sides: Sequence[side_specs.Side], cores: Sequence[int], given: argparse.Namespace) -> Compared:
    """Measures the sides of a model, as often with new processes as --starts says."""
    sides, missing = peers.available(sides, given.python)
    for sentence in missing:
        say(sentence)
    first: list[Worker] = []
    for start in range(given.starts):
        say(f"{sides[0].model}, start {start + 1} of {given.starts}")
        with ExitStack() as stack:
            workers = [started(stack, side, cores, given.steps) for side in sides]
            same_network(workers)
            take_turns(workers, given.rounds)
            for earlier, now in zip(first, workers, strict=False):
                earlier.windows += now.windows
            first = first or workers
            if start == given.starts - 1:
                joined = workers[0]
                recorded = joined.ask({"recorded": ahead(given.K) + given.steps + 2})
                late = joined.ask({"lateness": LATE_TRIES})["processes"]
                return Compared(first, recorded, [seconds for each in late for seconds in each], missing)
    raise AssertionError("--starts is at least 1")


def ahead(K: int) -> int:
    """Batches at the beginning of the recorded window that do not count: only then has the host run ahead."""
    return 2 * K + 2


def speed(of: Mapping[str, Any], worker: Worker) -> float:
    """Images/s of a window; of independent processes the sum, each over its own time."""
    if "each_seconds" in of:
        images = of["batches"] * worker.side.batch_size / len(of["each_seconds"])
        return sum(images / seconds for seconds in of["each_seconds"])
    return of["images_per_second"]


def speeds(worker: Worker) -> list[float]:
    """Images/s of a side's windows."""
    return [speed(each, worker) for each in worker.windows]


def side_row(worker: Worker, bases: Mapping[str, Worker], given: argparse.Namespace) -> dict[str, Any]:
    """The row of a side. bases: the sides with which all are compared."""
    found = speeds(worker)
    return {
        "benchmark": "several_processes",
        **worker.about,
        "rounds": given.rounds,
        "starts": given.starts,
        "batches_per_window": worker.batches,
        "images_per_second": round(statistics.median(found), 2),
        "images_per_second_windows": [round(each, 6) for each in found],
        "over": {name: [round(each, 4) for each in over(found, speeds(base))] for name, base in bases.items()},
        "core_percent": [
            round(statistics.median(each), 1) for each in zip(*worker.column("core_percent"), strict=True)
        ],
        "others_percent": round(statistics.median(worker.column("others_percent")), 1),
        "core_numbers": worker.cores,
        **report.machine(),
    }


def exchange_row(found: Compared, given: argparse.Namespace, drawn: str) -> dict[str, Any]:
    """The row of what the processes exchanged, and of what each stage did and waited for. drawn: a picture's path."""
    joined, processes = found.workers[0], found.recorded["processes"]
    side, ticks = joined.side, found.recorded["batches"]
    ended = [each for process in processes for each in read(process["ended"])]
    everything = [*events(ended), *waits(ended)]
    first = min(event.batch for event in everything if event.what == "enter") + ahead(side.K)
    inside, length = window(everything, first, first + given.steps - 1)
    if drawn:
        shown, _ = window(everything, first, first + min(given.ticks, given.steps) - 1)
        title = (
            f"{side.name}, {side.model}, K={side.K}, batch {side.batch_size}: stage k is in process k-1, on one core"
        )
        gantt.draw({"measured": shown}, report.folder(given.out) / drawn, title)
    in_flight = {link: statistics.median(each) for link, each in on_the_way(everything).items()}
    stages = [seconds_by_kind(inside, k) for k in range(1, side.K + 1)]
    away = sum(each.get(AWAY, 0.0) for each in stages) / given.steps
    per_tick = sum(in_flight.values())
    plain = statistics.median(speeds(joined))
    return {
        "benchmark": "several_processes exchange",
        "side": side.name,
        "model": side.model,
        "batch_size": side.batch_size,
        "K": side.K,
        "ticks": ticks,
        "messages": messages(processes, ticks),
        "loopback_bytes_per_tick": found.recorded["loopback_bytes"] and found.recorded["loopback_bytes"] / ticks,
        "stage_ms_per_tick": [{what: 1e3 * each / given.steps for what, each in stage.items()} for stage in stages],
        "user_ms_per_tick": [1e3 * each["user_seconds"] / ticks for each in processes],
        "system_ms_per_tick": [1e3 * each["system_seconds"] / ticks for each in processes],
        "tick_ms": 1e3 * length / given.steps,
        "on_the_way_ms": {f"{k} to {to}": 1e3 * seconds for (k, to), seconds in sorted(in_flight.items())},
        "waited_for_ms": 1e3 * away,
        "hidden_percent": 100 * max(0.0, 1 - away / per_tick) if per_tick else None,
        "over_plain_windows": side.batch_size * given.steps / length / plain,
        "late_microseconds": 1e6 * statistics.median(found.late),
        "late_microseconds_most": 1e6 * max(found.late),
        "picture": drawn,
        "missing": found.missing,
        **report.machine(),
    }


def bound(block_seconds: Sequence[float], joined: Worker) -> dict[str, Any]:
    """What each stage's share of a batch's time is, and how much faster than BP separate stages can be with it.

    block_seconds: of each block alone, on one core.
    """
    share = shares(block_seconds, joined.about["cuts"])
    return {"block_seconds": list(block_seconds), "share_percent": share, "bound_over_bp": 100 / max(share)}


def messages(processes: Sequence[Mapping[str, Any]], ticks: int) -> list[dict[str, Any]]:
    """Per tick, what was counted of each kind of message, and what its shapes predict.

    A kind that was only predicted, or only counted, has zeros.
    """
    counted: dict[Key, Message] = {}
    for process in processes:
        for each in process["counted"]:
            more = Message(**each)
            counted[more[:3]] = together(counted, more)
    predicted: dict[Key, Message] = {}
    for each in processes[0]["predicted"]:
        message = Message(**each)
        predicted[message[:3]] = message
    found = []
    for key in sorted(counted.keys() | predicted.keys()):
        real, expected = counted.get(key, Message(*key)), predicted.get(key, Message(*key))
        per_tick = {name: value / ticks for name, value in real._asdict().items() if name not in ("what", "k", "to")}
        of_shapes = {"predicted": expected.sent, "predicted_bytes": expected.sent_bytes}
        found.append({"what": key[0], "k": key[1], "to": key[2], **per_tick, **of_shapes})
    return found


def rows(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures all models."""
    cores = side_specs.cores_available()
    if len(cores) < given.K:
        usable = f"there {'is' if len(cores) == 1 else 'are'} {len(cores)}"
        fact = f"each of {given.K} processes wants a core of its own, and {usable}"
        raise BadInput(f"--K {given.K}: {fact}. Use a machine with more cores, or a --K from 2 on that fits.")
    for text in given.models:  # before the first is measured
        side_specs.check(sides_of(text, given, "balanced" if given.split == MEASURED else given.split), len(cores))
    if given.out:
        report.folder(given.out)
    made = []
    for text in given.models:
        say(f"{text}: measuring blocks")
        blocks = block_shares.measured(**wanted(text), K=given.K, core=cores[0])
        cut = ",".join(map(str, blocks["cuts"])) if given.split == MEASURED else given.split
        sides = sides_of(text, given, cut)
        found = compare(sides, cores, given)
        bases = {w.side.name: w for w in found.workers if w.side.name in (independent(given.K), ALONE)}
        made += [side_row(worker, bases, given) for worker in found.workers]
        drawn = f"several_processes_{sides[0].model}.png" if given.out else ""
        made.append({**exchange_row(found, given, drawn), **bound(blocks["block_seconds"], found.workers[0])})
    return made


def parser() -> argparse.ArgumentParser:
    made = report.parser("several_processes", __doc__)
    add = made.add_argument
    default = " ".join(MODELS)
    add("--models", nargs="+", default=list(MODELS), metavar="MODEL:BATCH", help=f"(default {default})")
    add("--K", type=report.positive, default=2, help="number of stages, and of cores that are used (default 2)")
    add("--split", default=MEASURED, help="measured (default), balanced, paper, even or block numbers")
    add("--rounds", type=report.positive, default=5, help="windows a side for each start (default 5)")
    add("--starts", type=report.positive, default=2, help="how often all processes are started anew (default 2)")
    add("--steps", type=report.positive, default=16, help="batches of a window (default 16)")
    add("--also", nargs="+", default=[], metavar="SIDE", help="more sides, as benchmarks.images_per_second has them")
    add("--python", default="", metavar="PATH", help="interpreter of PyTorch's environment, if not this one")
    add("--out", default="", metavar="DIR", help="folder for a picture of each model, several_processes_MODEL.png")
    add("--ticks", type=report.positive, default=4, help="ticks in the picture (default 4)")
    return made


def main(arguments: list[str] | None = None) -> int:
    return command(parser(), rows, several_processes_page.table, arguments)


if __name__ == "__main__":
    sys.exit(main())

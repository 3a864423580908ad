"""Compares FDG with a process per stage to FDG in one process and to independent BP processes, and counts its messages.

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
in each round, while the others sleep. A window is a fixed number of batches. It lasts from the request until the last
of the side's processes has computed everything. Ratios of two sides are taken within a round, and the table has the
median over the rounds. --starts repeats all of this with new processes, because processes of one side differ, too.

Separate stages are as fast as the slowest stage. So each block's time is first measured on one core (by
benchmarks.split), and all sides are cut by these times. PyTorch's blocks take other times. --also
torch-pipeline:split=balanced adds PyTorch's pipeline cut by FLOPs.

A process on one core splits no operation over threads, as in the training command. Your own program under
fdg_jax.launch gets the same with XLA_FLAGS=--xla_cpu_multi_thread_eigen=false. The side
fdg:processes=each:xla=--xla_cpu_multi_thread_eigen=true, which --also adds, shows the speed without this flag.

The other tables describe fdg:processes=each alone. They come from one more window, which is recorded. Messages are
counted where a process hands them to its transport and where it gets them. The counts are compared with the prediction
from the messages' shapes. The times come from threads that sleep until the next result is ready; each process has one
for each stage or link. So dispatches are the same as in the other windows, and no stage waits for a thread. The only
cost is that the threads wake up on the core that computes. The line below the tables has the ratio of this window's
speed to the other windows' speed, and the delay with which a thread sees an end. While a stage waits, its core is free,
so the end of waiting is seen at once. Only the border between two operations of a busy stage may be drawn late. All
processes read the same clock.
"""

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import children, gantt, message_counts, report, side_specs
from benchmarks.harness.turns import Worker, started, take_turns
from benchmarks.harness.waiting import AWAY, WAITING, events, on_the_way, read, seconds_by_kind, window
from benchmarks.images_per_second import about_machine, side_columns, speed_row
from benchmarks.peers import sides as peers
from benchmarks.split import shares

GOAL = 0.97  # of the images/s of independent BP processes
MODELS = ("resnet20:128", "wrn16_4:64")
JOINED, TOGETHER, ALONE = "fdg:processes=each", "fdg", "bp"
MEASURED = "measured"
PEERS = ("torch-pipeline", "torch-ddp")
BLOCK_ROUNDS = 5  # rounds of measuring each block


def wanted(text: str) -> dict[str, Any]:
    """Reads MODEL:BATCH."""
    model, (batch,) = report.sized("--models", text, MODELS[0])
    return {"model": model, "batch_size": batch}


def measured_blocks(model: str, batch_size: int, K: int, core: int) -> dict[str, Any]:
    """Measures every block of a network in a process of its own, pinned to a core. The slowest stage of a cut bounds
    the speed of separate stages. Raises as `children.run`.

    Returns: the row of benchmarks.split for the split `measured`, with `cuts` and `block_seconds`.
    """
    env = side_specs.environment(side_specs.Side("bp", "bp", 1, 1, model, batch_size, xla=side_specs.ONE_THREAD))
    words = ["--model", model, "--K", str(K), "--batch-size", str(batch_size), "--rounds", str(BLOCK_ROUNDS), "--json"]
    said = children.run("-m", "benchmarks.split", *words, env=env, cores=[core])
    return next(row for row in map(json.loads, said.splitlines()) if row["split"] == MEASURED)


def independent(K: int) -> str:
    """The side of K independent BP processes."""
    return "bp-on-each-core" if K == 2 else f"bp-on-each-core:cores={K}"


def sides_of(text: str, given: report.Given, split: str) -> list[side_specs.Side]:
    """The sides that are compared for a model, including sides that cannot run here. split: their cut."""
    common = {**wanted(text), "K": given.K}
    names = (JOINED, TOGETHER, independent(given.K), ALONE, *PEERS, *given.also)
    return [peers.parse(name, common, "", split) for name in names]


def compare(
    sides: Sequence[side_specs.Side], cores: Sequence[int], given: report.Given
) -> tuple[list[Worker], dict[str, Any]]:
    """Measures the sides of a model, with new processes for each of --starts.

    Returns: (for each side a worker with the windows of all starts, what each process of the side JOINED recorded in
        one more window).
    """
    first, recorded = list[Worker](), dict[str, Any]()
    for start in range(given.starts):
        report.say(f"{sides[0].model}, start {start + 1} of {given.starts}")
        with started(sides, cores) as workers:
            for worker in workers:  # a window that does not count
                # Independent processes divide the batches among them.
                worker.batches = given.steps * (worker.side.cores if worker.side.method == "bp" else 1)
                worker.run()
            take_turns(workers, given.rounds)
            for earlier, now in zip(first, workers, strict=False):
                earlier.windows += now.windows
            first = first or workers
            if start == given.starts - 1:
                recorded = workers[0].ask({"recorded": ahead(given.K) + given.steps + 2})
    return first, recorded


def ahead(K: int) -> int:
    """Batches at the beginning of the recorded window that do not count, because the host has not yet run ahead."""
    return 2 * K + 2


def speed(of: Mapping[str, Any], worker: Worker) -> float:
    """Images/s of a window. For independent processes it is the sum of each process's images divided by its own
    time."""
    if "each_seconds" in of:
        images = of["batches"] * worker.side.batch_size / len(of["each_seconds"])
        return sum(images / seconds for seconds in of["each_seconds"])
    return of["images_per_second"]


def speeds(worker: Worker) -> list[float]:
    """Images/s of a side's windows."""
    return [speed(each, worker) for each in worker.windows]


def side_row(worker: Worker, bases: Mapping[str, Worker], given: report.Given) -> dict[str, Any]:
    """The row of a side. bases: the sides with which all are compared."""
    found = speeds(worker)
    over = {name: report.over(found, speeds(base), 4) for name, base in bases.items()}
    first = speeds(next(iter(bases.values())))
    return {**speed_row(worker, found, first), "rounds": given.rounds, "starts": given.starts, "over": over}


def exchange_row(joined: Worker, recorded: Mapping[str, Any], given: report.Given, drawn: str) -> dict[str, Any]:
    """The row of the messages between processes, and of the work and waiting of each stage.

    Arguments:
        recorded: the recordings of the processes of JOINED in one more window.
        drawn: the path of a picture; "": none.
    """
    side, ticks, processes = joined.side, recorded["processes"][0]["batches"], recorded["processes"]
    ended = [each for process in processes for each in read(process["ended"])]
    late = [seconds for process in processes for seconds in process["late"]]
    everything = events(ended)
    first = min(event.batch for event in everything if event.what == "enter") + ahead(side.K)
    inside, length = window(everything, first, first + given.steps - 1)
    if drawn:
        shown, _ = window(everything, first, first + min(given.ticks, given.steps) - 1)
        title = f"{side.name}, {side.model}, K={side.K}, batch {side.batch_size}: stage k in process k-1, on one core"
        gantt.draw({"measured": shown}, report.folder(given.out) / drawn, title)
    in_flight = {link: statistics.median(each) for link, each in on_the_way(everything).items()}
    stages = [seconds_by_kind(inside, k) for k in range(1, side.K + 1)]
    away, per_tick = sum(each.get(AWAY, 0.0) for each in stages) / given.steps, sum(in_flight.values())
    return {
        "benchmark": "several_processes exchange", "side": side.name,
        **{name: getattr(side, name) for name in ("model", "batch_size", "K")},
        "ticks": ticks, "messages": messages(processes, ticks),
        "loopback_bytes_per_tick": recorded["loopback_bytes"] and recorded["loopback_bytes"] / ticks,
        "stage_ms_per_tick": [{what: 1e3 * each / given.steps for what, each in stage.items()} for stage in stages],
        **{f"{name}_ms_per_tick": [1e3 * each[f"{name}_seconds"] / ticks for each in processes]
           for name in ("user", "system")},
        "tick_ms": 1e3 * length / given.steps,
        "on_the_way_ms": {f"{k} to {to}": 1e3 * seconds for (k, to), seconds in sorted(in_flight.items())},
        "waited_for_ms": 1e3 * away, "hidden_percent": 100 * max(0.0, 1 - away / per_tick) if per_tick else None,
        "over_plain_windows": side.batch_size * given.steps / length / statistics.median(speeds(joined)),
        "late_microseconds": 1e6 * statistics.median(late), "late_microseconds_most": 1e6 * max(late), "picture": drawn,
    }  # fmt: skip


def bound(block_seconds: Sequence[float], joined: Worker) -> dict[str, Any]:
    """Each stage's share of a batch's time, and the bound that the shares set on the speed-up of separate stages over
    BP.

    block_seconds: the seconds of each block alone, on one core.
    """
    share = shares(block_seconds, joined.about["cuts"])
    return {"block_seconds": list(block_seconds), "share_percent": share, "bound_over_bp": 100 / max(share)}


def messages(processes: Sequence[Mapping[str, Any]], ticks: int) -> list[dict[str, Any]]:
    """The counted and the predicted messages per tick, for each kind.

    A kind that was only predicted, or only counted, has zeros for the other.
    """
    found = defaultdict[Any, Counter[str]](Counter)
    numbers = [f"{seen}{of}" for seen in message_counts.SEEN for of in ("", "_bytes")]
    counted = [each for process in processes for each in process["counted"]]
    for what, k, to, seen, size in [*processes[0]["predicted"] * ticks, *counted]:
        found[what, k, to].update({seen: 1, f"{seen}_bytes": size})
    return [{"what": what, "k": k, "to": to, **{name: each[name] / ticks for name in numbers}}
            for (what, k, to), each in sorted(found.items())]  # fmt: skip


def rows(given: report.Given) -> list[dict[str, Any]]:
    """Measures all models."""
    cores = side_specs.cores_available()
    for text in given.models:  # before the first is measured
        cut = "balanced" if given.split == MEASURED else given.split
        side_specs.check([peers.parse(JOINED, {**wanted(text), "K": given.K}, "", cut)], len(cores))
        side_specs.check(sides_of(text, given, cut), len(cores))
    if given.out:
        report.folder(given.out)
    made = []
    for text in given.models:
        report.say(f"{text}: measuring blocks")
        blocks = measured_blocks(**wanted(text), K=given.K, core=cores[0])
        cut = ",".join(map(str, blocks["cuts"])) if given.split == MEASURED else given.split
        sides, missing = peers.available(sides_of(text, given, cut), given.python)
        for sentence in missing:
            report.say(sentence)
        workers, recorded = compare(sides, cores, given)
        bases = {w.side.name: w for w in workers if w.side.name in (independent(given.K), ALONE)}
        made += [side_row(worker, bases, given) for worker in workers]
        drawn = f"several_processes_{sides[0].model}.png" if given.out else ""
        exchanged = exchange_row(workers[0], recorded, given, drawn)
        made.append({**exchanged, **bound(blocks["block_seconds"], workers[0]), "missing": missing})
    return made


def number(value: float) -> str:
    """A count or a number of bytes as text; whole numbers have no decimal point."""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"


def speed_table(found: report.Rows, given: report.Given) -> str:
    """The table of the sides' speeds. The first side has several processes; it is compared with the first of `over`."""
    joined, columns = found[0], side_columns({})
    for name in joined["over"]:
        columns[f"over {name}"] = lambda row, name=name: report.spread(row["over"][name], 3)
    columns["each core busy"] = lambda row: report.percents(row["core_percent"])
    ratio, n = statistics.median(next(iter(joined["over"].values()))), given.rounds * given.starts
    about = f"{joined['model']}, batch {joined['batch_size']}, sides in turns. Cells: median (least to most) of {n} "
    about += f"windows of {given.steps} batches ({given.rounds} rounds, starts: {given.starts}). "
    about += f"`{joined['side']}` makes {ratio:.3f} of the images/s of {given.K} independent BP processes (goal "
    about += f"{GOAL}: {'reached' if ratio >= GOAL else 'not reached'}). {about_machine(found)}"
    return report.table(columns, found, about)


def message_table(row: Mapping[str, Any]) -> str:
    """The messages of a tick."""
    columns: dict[str, report.Cell] = {"message": "`{what}`", "from stage k": "{k}", "to process": "{to}"}
    for head, name in {"a tick: predicted": "predicted", "sent": "sent", "arrived": "arrived"}.items():
        columns[head] = lambda each, name=name: f"{number(each[name])} of {number(each[f'{name}_bytes'])} B"
    content = sum(each["sent_bytes"] for each in row["messages"])
    carried = row["loopback_bytes_per_tick"]
    network = "" if carried is None else f" The loopback interface carried {carried:,.0f} B a tick, headers included."
    text = f"{row['model']}: bytes of each kind of message in one tick; all kinds: {number(content)} B.{network}"
    return report.table(columns, row['messages'], text)


def stage_table(row: Mapping[str, Any], given: report.Given) -> str:
    """The table of each stage's work and waiting in a tick."""
    stages = row["stage_ms_per_tick"]
    kinds = [kind for kind in dict.fromkeys(kind for stage in stages for kind in sorted(stage)) if kind not in WAITING]
    columns: dict[str, report.Cell] = {"stage k": "{k}"}
    for kind in kinds:
        columns[f"{kind} ms"] = lambda s, kind=kind: f"{s[kind]:.2f}" if kind in s else ""
    for kind, words in WAITING.items():
        columns[f"{words} ms"] = lambda s, kind=kind: f"{s.get(kind, 0.0):.2f}"
    columns["processor ms: user and system"] = "{user:.1f} and {system:.1f}"
    times = zip(stages, row["user_ms_per_tick"], row["system_ms_per_tick"], strict=True)
    body = [{**stage, "k": k, "user": user, "system": system} for k, (stage, user, system) in enumerate(times, 1)]
    travel = ", ".join(f"from stage {link} {ms:.2f} ms" for link, ms in row["on_the_way_ms"].items())
    parts = " and ".join(f"{share:.1f}%" for share in row["share_percent"])
    hidden = "" if row["hidden_percent"] is None else f" Computation hid {row['hidden_percent']:.0f}% of that."
    text = (
        f"{row['model']}: a tick took {row['tick_ms']:.1f} ms (mean of {given.steps}). A message was on its way "
        f"(median): {travel}. Stages waited for messages on their way {row['waited_for_ms']:.2f} ms a tick.{hidden} "
        f"Processor time is that of the whole process. This window made {row['over_plain_windows']:.3f} of the "
        f"images/s of the others (median). Ends are recorded {row['late_microseconds']:.0f} us late (median; most "
        f"{row['late_microseconds_most']:.0f}). Alone on one core the stages' blocks take {parts} of a batch's time: "
        f"separate stages can be at most {row['bound_over_bp']:.2f} times as fast as BP."
    )
    return report.table(columns, body, text)


def table(found: report.Rows, given: report.Given) -> str:
    """The tables of all models, each model's sides before the rest."""
    parts, exchanges = list[str](), [row for row in found if "messages" in row]
    for exchange in exchanges:
        sides = [row for row in found if "over" in row and row["model"] == exchange["model"]
                 and row["batch_size"] == exchange["batch_size"]]  # fmt: skip
        parts += [speed_table(sides, given), message_table(exchange), stage_table(exchange, given)]
    parts += dict.fromkeys(sentence for row in exchanges for sentence in row["missing"])
    if drawn := [row["picture"] for row in exchanges if row["picture"]]:
        parts.append(f"In {given.out}: {', '.join(drawn)}.")
    return "\n\n".join(parts)


def parser() -> report.Parser:
    made = report.parser("several_processes", __doc__, K=2, rounds=5, starts=2, steps=16)
    add = made.add_argument
    add("--models", nargs="+", default=list(MODELS), metavar="MODEL:BATCH", help=f"(default {' '.join(MODELS)})")
    add("--split", default=MEASURED, help="measured (default), balanced, paper, even or block numbers")
    add("--also", nargs="+", default=[], metavar="SIDE", help="more sides, as benchmarks.images_per_second has them")
    add("--python", default="", metavar="PATH", help="interpreter of PyTorch's environment, if not this one")
    add("--out", default="", metavar="DIR", help="folder for a picture of each model, several_processes_MODEL.png")
    add("--ticks", type=report.positive, default=4, help="ticks in the picture (default 4)")
    return made


main = report.run(__name__, parser, rows, table)

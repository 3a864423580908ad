"""Ten thousand ticks: does memory grow, and does training slow down?

    .venv/bin/python -m benchmarks.endurance --model resnet8 --batch-size 8 --K 2
    .venv/bin/python -m benchmarks.endurance --model resnet8 --batch-size 8 --K 3 --processes 3

A process trains the training command's own pipeline on synthetic images, on the CPU, after a warm-up. After every
thousand ticks it reports how many arrays are alive and how much memory the process has (Linux only). The speed of the
machine varies more than a process might slow down. So the old process takes turns with a new process, a hundred ticks
each. If the ratio of their speeds falls, the process has become slower.

With --processes K each stage has its own process. After every part, each process reports its memory, file descriptors
and threads. There is no comparison with new processes, since they would take the old processes' cores.
"""

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.harness import report, side_specs
from benchmarks.harness.turns import Worker
from fdg_jax import methods
from fdg_jax.errors import BadInput

WARM_UP = 200  # ticks
TURNS = 10  # of the old and the new process in each part
# Quantities that must not grow -> (heading, digits, unit).
OF_A_PROCESS = {"resident_bytes": ("MB", 1, 1e6), "files": ("files", 0, 1), "threads": ("threads", 0, 1)}
OF_A_PROCESS |= {"arrays": ("arrays", 0, 1)}


def warm_up(worker: Worker) -> Worker:
    worker.ready().ask({"run": WARM_UP})
    return worker


def side_of(given: report.Given, cores: int) -> side_specs.Side:
    """The side that is trained. Raises BadInput if flags make the measurement impossible."""
    if given.ticks < 2 * given.every:
        raise BadInput(f"--ticks {given.ticks} with --every {given.every} gives less than two rows. Use more ticks.")
    if given.every % TURNS:
        raise BadInput(f"--every {given.every} does not make {TURNS} turns. Use a multiple of {TURNS}.")
    if given.processes not in (1, given.K):
        raise BadInput(f"--processes {given.processes}: stages share one process, or each has one. Use 1 or {given.K}.")
    common = {"K": given.K, "model": given.model, "batch_size": given.batch_size}
    name = methods.find(given.method).name + ":processes=each" * (given.processes > 1)
    side = side_specs.parse(name, common, "", given.split)
    return dataclasses.replace(side, cores=min(side.cores, cores))


def results(given: report.Given) -> list[dict[str, Any]]:
    cores = side_specs.cores_available()
    side, rows = side_of(given, len(cores)), list[dict[str, Any]]()
    measure = beside_new_ones if given.processes == 1 else of_processes
    with Worker(side, cores) as worker:
        parts = measure(warm_up(worker), cores, given)
        for ticks in range(given.every, given.ticks + 1, given.every):
            found = next(parts)
            rows.append({**worker.about, "ticks": ticks, **found})
            report.say(f"{ticks} of {given.ticks} ticks: {found['images_per_second']:.1f} images/s")
    return rows


def beside_new_ones(old: Worker, cores: Sequence[int], given: report.Given) -> Iterator[dict[str, Any]]:
    """The report of a process for each part, with its speed relative to a new process."""
    while True:
        with ExitStack() as stack:
            new = warm_up(stack.enter_context(Worker(old.side, cores)))
            answers, fresh = zip(*(turn(old, new, i, given.every // TURNS) for i in range(TURNS)), strict=True)
        seconds, fresh_seconds = sum(one["seconds"] for one in answers), sum(one["seconds"] for one in fresh)
        images = given.every * given.batch_size
        yield {"images_per_second": round(images / seconds, 2), "over_new": round(fresh_seconds / seconds, 4),
               "new_images_per_second": round(images / fresh_seconds, 2),
               **{name: answers[-1][name] for name in ("arrays", "array_bytes", "resident_bytes")}}  # fmt: skip


def of_processes(worker: Worker, cores: Sequence[int], given: report.Given) -> Iterator[dict[str, Any]]:
    """The reports of several processes of one pipeline for each part."""
    while True:
        answer = worker.ask({"memory": given.every})
        each = {name: [one[name] for one in answer["processes"]] for name in OF_A_PROCESS}
        yield {"images_per_second": round(given.every * given.batch_size / answer["seconds"], 2), **each}


def turn(old: Worker, new: Worker, number: int, ticks: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The reports of both processes for so many ticks. Each of the two goes first in every second part."""
    answers = {worker: worker.ask({"memory": ticks}) for worker in ((new, old) if number % 2 else (old, new))}
    return answers[old], answers[new]


def change(rows: report.Rows) -> float:
    """How much the speed relative to a new process has changed from the first rows to the last rows.

    Medians of up to three rows are compared, because single processes differ.
    """
    ratios = [row["over_new"] for row in rows]
    n = min(3, len(rows) // 2)
    return statistics.median(ratios[-n:]) / statistics.median(ratios[:n])


def quarters(rows: report.Rows, name: str, process: int) -> tuple[float, float]:
    """The medians of a process's number over the first and over the last quarter of the rows."""
    n = max(1, len(rows) // 4)
    found = [row[name][process] for row in rows]
    return statistics.median(found[:n]), statistics.median(found[-n:])


def table_of_processes(rows: report.Rows, given: report.Given) -> str:
    columns: dict[str, report.Cell] = {"process": "{}".format}
    for name, (heading, digits, unit) in OF_A_PROCESS.items():
        for i, part in enumerate((f"{heading}, first quarter", f"{heading}, last")):
            columns[part] = lambda process, name=name, digits=digits, unit=unit, i=i: (
                "–" if rows[0][name][process] is None else f"{quarters(rows, name, process)[i] / unit:.{digits}f}"
            )
    one, speeds = rows[0], [row["images_per_second"] for row in rows]
    about = f"A cell: the median of a quarter of {len(rows)} rows, one every {given.every:,} of {given.ticks:,} ticks. "
    about += f"{report.spread(speeds, 1)} images/s. {given.model}, {given.method}, K={one['K']} in {given.processes} "
    about += f"processes, batch {given.batch_size}, after {WARM_UP} ticks of warm-up. {report.place(one)}, "
    about += f"{report.versions(one)}."
    return report.table(columns, range(given.processes), about)


COLUMNS: dict[str, report.Cell] = {
    "ticks": "{ticks:,}", "images/s": "{images_per_second:.1f}", "a new process": "{new_images_per_second:.1f}",
    "over the new one": "{over_new:.3f}", "arrays": "{arrays}",
    "MB in them": lambda r: report.megabytes(r["array_bytes"], 3),
    "MB of the process": lambda r: report.megabytes(r["resident_bytes"], 1),
}  # fmt: skip


def table(rows: report.Rows, given: report.Given) -> str:
    if given.processes > 1:
        return table_of_processes(rows, given)
    one = rows[0]
    about = f"Compared with a new process, the last rows are {change(rows):.3f} times as fast as the first (medians of "
    about += f"up to three). {given.model}, {given.method}, K={one['K']}, batch {given.batch_size}, after {WARM_UP} "
    about += f"ticks of warm-up, {TURNS} turns a row. {report.place(one)}, {report.versions(one)}."
    return report.table(COLUMNS, rows, about)


def parser() -> report.Parser:
    usual = {"model": "resnet8", "method": "fdg", "K": 2, "split": "balanced", "batch_size": 8, "ticks": 10_000}
    made = report.parser("endurance", __doc__, **usual)
    made.add_argument("--processes", type=report.positive, default=1, help="1 (default), or K: one for each stage")
    made.add_argument("--every", type=report.positive, default=1000, help="ticks a row (default 1000)")
    return made


main = report.run(__name__, parser, results, table)

"""Ten thousand ticks: does memory grow, does training slow down?

    .venv/bin/python -m benchmarks.endurance --model resnet8 --batch-size 8 --K 2
    .venv/bin/python -m benchmarks.endurance --model resnet8 --batch-size 8 --K 3 --processes 3

A process trains the training command's own pipeline on synthetic images, on the CPU, after a warm-up. After every
thousand ticks it reports how many arrays are alive and how much memory the process has (Linux only). The speed of a
machine changes by more than an aging process would, so every thousand ticks are measured in turns with a new process,
a tenth of a thousand each. If the ratio of the two falls, the process has become slower.

With --processes K every stage is in a process of its own, and each process reports its memory, file descriptors and
threads after every part. There are no new processes to compare with: they would take the cores of the old ones.
"""

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import report, side_specs
from benchmarks.harness.turns import Worker, command, say
from fdg_jax import methods
from fdg_jax.errors import BadInput

WARM_UP = 200  # ticks
TURNS = 10  # of the old and the new process in each part
OF_A_PROCESS = ("resident_bytes", "files", "threads", "arrays")  # what must not grow


def warm_up(worker: Worker) -> None:
    worker.about = worker.answer()
    worker.ask({"run": WARM_UP})


def results(given: argparse.Namespace) -> list[dict[str, Any]]:
    if given.ticks < 2 * given.every:
        fact = f"--ticks {given.ticks} with --every {given.every} is less than two parts to compare"
        raise BadInput(f"{fact}. Use more ticks.")
    if given.every % TURNS:
        raise BadInput(f"--every {given.every} does not make {TURNS} turns. Use a multiple of {TURNS}.")
    if given.processes not in (1, given.K):
        fact = f"--processes {given.processes} with --K {given.K}: all stages are in one process, or each in its own"
        raise BadInput(f"{fact}. Use 1 or {given.K}.")
    common = {"K": given.K, "model": given.model, "batch_size": given.batch_size}
    name = methods.find(given.method).name + ":processes=each" * (given.processes > 1)
    side = side_specs.parse(name, common, "", given.split)
    cores = side_specs.cores_available()
    side = dataclasses.replace(side, cores=min(side.cores, len(cores)))
    if given.processes > 1:
        return rows_of_processes(side, cores, given)
    rows: list[dict[str, Any]] = []
    with Worker(side, cores) as old:
        warm_up(old)
        for ticks in range(given.every, given.ticks + 1, given.every):
            with Worker(side, cores) as new:
                warm_up(new)
                answers, fresh = zip(*(turn(old, new, i, given.every // TURNS) for i in range(TURNS)), strict=True)
            seconds, fresh_seconds = sum(one["seconds"] for one in answers), sum(one["seconds"] for one in fresh)
            rows.append(
                {
                    "benchmark": "endurance",
                    **old.about,
                    "ticks": ticks,
                    "images_per_second": round(given.every * given.batch_size / seconds, 2),
                    "new_images_per_second": round(given.every * given.batch_size / fresh_seconds, 2),
                    "over_new": round(fresh_seconds / seconds, 4),
                    **{name: answers[-1][name] for name in ("arrays", "array_bytes", "resident_bytes")},
                    **report.machine(),
                }
            )
            say(f"{ticks} of {given.ticks} ticks, {rows[-1]['over_new']:.3f} times as fast as a new process")
    return rows


def rows_of_processes(side: side_specs.Side, cores: Sequence[int], given: argparse.Namespace) -> list[dict[str, Any]]:
    """What several processes of one pipeline report after each part."""
    rows: list[dict[str, Any]] = []
    with Worker(side, cores) as worker:
        warm_up(worker)
        for ticks in range(given.every, given.ticks + 1, given.every):
            answer = worker.ask({"memory": given.every})
            each = answer["processes"]
            rows.append(
                {
                    "benchmark": "endurance",
                    **worker.about,
                    "ticks": ticks,
                    "images_per_second": round(given.every * given.batch_size / answer["seconds"], 2),
                    **{name: [one[name] for one in each] for name in OF_A_PROCESS},
                    **report.machine(),
                }
            )
            say(f"{ticks} of {given.ticks} ticks, {rows[-1]['images_per_second']:.1f} images/s")
    return rows


def turn(old: Worker, new: Worker, number: int, ticks: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What both processes report of so many ticks. They take turns in going first."""
    answers = {worker: worker.ask({"memory": ticks}) for worker in ((new, old) if number % 2 else (old, new))}
    return answers[old], answers[new]


def change(rows: Sequence[dict[str, Any]]) -> float:
    """How much faster, relative to a new process, the last rows are than the first.

    It compares medians of up to three rows, because single processes differ.
    """
    ratios = [row["over_new"] for row in rows]
    n = min(3, len(rows) // 2)
    return statistics.median(ratios[-n:]) / statistics.median(ratios[:n])


def quarters(rows: Sequence[dict[str, Any]], name: str, process: int) -> tuple[float, float]:
    """The medians of a process's number over the first and over the last quarter of the rows."""
    n = max(1, len(rows) // 4)
    found = [row[name][process] for row in rows]
    return statistics.median(found[:n]), statistics.median(found[-n:])


def table_of_processes(rows: Sequence[dict[str, Any]], given: argparse.Namespace) -> str:
    head = ["process", "MB, first quarter", "MB, last", "files, first quarter", "files, last"]
    head += ["threads, first quarter", "threads, last", "arrays, first quarter", "arrays, last"]
    body = []
    for process in range(given.processes):
        cells = [str(process)]
        for name in OF_A_PROCESS:
            if rows[0][name][process] is None:
                cells += ["–", "–"]
            else:
                digits, unit = (1, 1e6) if name == "resident_bytes" else (0, 1)
                cells += [f"{value / unit:.{digits}f}" for value in quarters(rows, name, process)]
        body.append(cells)
    one, speeds = rows[0], [row["images_per_second"] for row in rows]
    about = (
        f"Medians over a quarter of {len(rows)} rows, one after every {given.every:,} of {given.ticks:,} ticks; "
        f"{report.spread(speeds, 1)} images/s. {given.model}, {given.method}, K={one['K']} in {given.processes} "
        f"processes, batch {given.batch_size}, after {WARM_UP} ticks of warm-up. {one['cpu']}, "
        f"{one['machine_cores']} cores, {report.versions(one)}."
    )
    return f"{report.markdown(head, body)}\n\n{about}"


def table(rows: Sequence[dict[str, Any]], given: argparse.Namespace) -> str:
    if given.processes > 1:
        return table_of_processes(rows, given)
    head = ["ticks", "images/s", "a new process", "over the new one", "arrays", "MB in them", "MB of the process"]
    body = [
        [
            f"{r['ticks']:,}", f"{r['images_per_second']:.1f}", f"{r['new_images_per_second']:.1f}",
            f"{r['over_new']:.3f}", str(r["arrays"]), f"{r['array_bytes'] / 1e6:.3f}",
            "–" if r["resident_bytes"] is None else f"{r['resident_bytes'] / 1e6:.1f}",
        ]
        for r in rows
    ]  # fmt: skip
    one = rows[0]
    about = (
        f"The last rows are {change(rows):.3f} times as fast as the first (medians of up to three), each beside a new "
        f"process. {given.model}, {given.method}, K={one['K']}, batch {given.batch_size}, after {WARM_UP} "
        f"ticks of warm-up, {TURNS} turns a row. {one['cpu']}, {one['machine_cores']} cores, {report.versions(one)}."
    )
    return f"{report.markdown(head, body)}\n\n{about}"


def parser() -> argparse.ArgumentParser:
    made = report.parser("endurance", __doc__)
    add = made.add_argument
    add("--model", default="resnet8")
    add("--method", default="fdg", help="a method (default fdg)")
    add("--K", type=report.positive, default=2)
    add("--processes", type=report.positive, default=1, help="1 (default), or K: one for each stage")
    add("--split", default="balanced", help="paper, even, balanced (default), measured or block numbers")
    add("--batch-size", type=report.positive, default=8)
    add("--ticks", type=report.positive, default=10_000, help="(default 10000)")
    add("--every", type=report.positive, default=1000, help="ticks a row (default 1000)")
    return made


def main(arguments: list[str] | None = None) -> int:
    return command(parser(), results, table, arguments)


if __name__ == "__main__":
    sys.exit(main())

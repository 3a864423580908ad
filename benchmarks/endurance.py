"""Ten thousand ticks: does memory grow, does training slow down?

    .venv/bin/python -m benchmarks.endurance --model resnet8 --batch-size 8 --K 2

A process trains the training command's own pipeline on synthetic images, on the CPU, after a warm-up. After every
thousand ticks it reports how many arrays are alive and how much memory the process has (Linux only). The speed of a
machine changes by more than an aging process would, so every thousand ticks are measured in turns with a new process,
a tenth of a thousand each. If the ratio of the two falls, the process has become slower.
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


def warm_up(worker: Worker) -> None:
    worker.about = worker.answer()
    worker.ask({"run": WARM_UP})


def results(given: argparse.Namespace) -> list[dict[str, Any]]:
    if given.ticks < 2 * given.every:
        fact = f"--ticks {given.ticks} with --every {given.every} is less than two parts to compare"
        raise BadInput(f"{fact}. Use more ticks.")
    if given.every % TURNS:
        raise BadInput(f"--every {given.every} does not make {TURNS} turns. Use a multiple of {TURNS}.")
    common = {"K": given.K, "model": given.model, "batch_size": given.batch_size}
    side = side_specs.parse(methods.find(given.method).name, common, "", given.split)
    cores = side_specs.cores_available()
    side = dataclasses.replace(side, cores=min(side.cores, len(cores)))
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


def table(rows: Sequence[dict[str, Any]], given: argparse.Namespace) -> str:
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
    add("--split", default="balanced", help="paper, even, balanced (default), measured or block numbers")
    add("--batch-size", type=report.positive, default=8)
    add("--ticks", type=report.positive, default=10_000, help="(default 10000)")
    add("--every", type=report.positive, default=1000, help="ticks a row (default 1000)")
    return made


def main(arguments: list[str] | None = None) -> int:
    return command(parser(), results, table, arguments)


if __name__ == "__main__":
    sys.exit(main())

"""Ten thousand ticks: does memory grow, does training slow down?

    .venv/bin/python -m benchmarks.endurance --model resnet8 --batch-size 8 --K 2

One process trains the training command's own pipeline on made-up images. After every thousand ticks it waits until
all is computed and notes how fast they were, how many arrays are alive, and how much memory the process has (Linux
only). The first thousand comes after a warm-up.
"""

import argparse
import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

if __name__ == "__main__":
    from fdg_jax.experiments.huge_pages import restart_once

    restart_once()  # as the training command does

from benchmarks import _report, _sides
from benchmarks._turns import say
from benchmarks._worker import Trainer
from fdg_jax import methods
from fdg_jax.errors import BadInput

WARM_UP = 200  # ticks


def resident_bytes() -> int | None:
    """Of this process; None where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def alive() -> tuple[int, int]:
    """How many arrays are, and their bytes. Keeps none of them."""
    gc.collect()
    arrays = jax.live_arrays()
    return len(arrays), sum(array.nbytes for array in arrays)


def results(given: argparse.Namespace) -> list[dict[str, Any]]:
    if given.ticks < 2 * given.every:
        fact = f"--ticks {given.ticks} with --every {given.every} is less than two parts to compare"
        raise BadInput(f"{fact}. Use more ticks.")
    common = {"K": given.K, "model": given.model, "batch_size": given.batch_size}
    side = _sides.parse(methods.find(given.method).name, common, "", given.split)
    trainer = Trainer(side)
    trainer.run(WARM_UP)
    rows: list[dict[str, Any]] = []
    for ticks in range(given.every, given.ticks + 1, given.every):
        speed = given.every * given.batch_size / trainer.run(given.every)["seconds"]
        arrays, array_bytes = alive()
        rows.append(
            {
                "benchmark": "endurance",
                "method": given.method,
                **common,
                "K": side.K,
                "ticks": ticks,
                "images_per_second": round(speed, 2),
                "over_first": round(speed / rows[0]["images_per_second"], 4) if rows else 1.0,
                "arrays": arrays,
                "array_bytes": array_bytes,
                "resident_bytes": resident_bytes(),
                **_report.here(),
            }
        )
        say(f"{ticks} of {given.ticks} ticks, {speed:.1f} images/s")
    return rows


def table(rows: Sequence[dict[str, Any]], given: argparse.Namespace) -> str:
    head = ["ticks", "images/s", "over the first", "arrays", "MB in them", "MB of the process"]
    body = [
        [
            f"{r['ticks']:,}", f"{r['images_per_second']:.1f}", f"{r['over_first']:.3f}", str(r["arrays"]),
            f"{r['array_bytes'] / 1e6:.3f}",
            "–" if r["resident_bytes"] is None else f"{r['resident_bytes'] / 1e6:.1f}",
        ]
        for r in rows
    ]  # fmt: skip
    one = rows[0]
    about = (
        f"{given.model}, {given.method}, K={one['K']}, batch {given.batch_size}, after {WARM_UP} ticks of warm-up. "
        f"Device {one['device']}; {one['cpu']}, {one['machine_cores']} cores, {_report.versions(one)}."
    )
    return f"{_report.markdown(head, body)}\n\n{about}"


def parser() -> argparse.ArgumentParser:
    made = _report.parser("endurance", __doc__)
    add = made.add_argument
    add("--model", default="resnet8")
    add("--method", default="fdg", help="a method (default fdg)")
    add("--K", type=_report.positive, default=2)
    add("--split", default="balanced", help="paper, even, balanced (default), measured or block numbers")
    add("--batch-size", type=_report.positive, default=8)
    add("--ticks", type=_report.positive, default=10_000, help="(default 10000)")
    add("--every", type=_report.positive, default=1000, help="ticks a row (default 1000)")
    return made


def main(arguments: list[str] | None = None) -> int:
    return _report.run(parser(), results, table, arguments)


if __name__ == "__main__":
    sys.exit(main())

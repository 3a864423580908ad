"""Several seeds of a small network in one process: one batched program for all, against one after another.

    taskset -c 1 .venv/bin/python -m benchmarks.seeds --model resnet8 --batch-size 32 --seeds 2 4
    .venv/bin/python -m benchmarks.seeds --model resnet20 --batch-size 128 --seeds 3

FDG on one device (fdg_jax.stage.delay_line), each seed with its own weights and batches, a dispatch a step, no
augmentation. The two sides take turns in one process; the numbers they compute are compared first.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

if __name__ == "__main__":
    from fdg_jax.machine.huge_pages import restart_once

    restart_once()  # as the training command does, before imports that would be done twice

import jax
import jax.numpy as jnp
import numpy as np

import fdg_jax
from benchmarks.harness import report
from fdg_jax import models, split
from fdg_jax.api import ENGINES
from fdg_jax.engine.scan_engine import ScanEngine
from fdg_jax.recipe import paper_sgd
from fdg_jax.training.setup import cross_entropy

ENGINES["scan"] = ScanEngine  # what delay-line is on an accelerator
IMAGE, CLASSES = (32, 32, 3), 10
Batch = tuple[jax.Array, jax.Array]


def engine(given: argparse.Namespace, seed: int) -> ScanEngine:
    """FDG with K stages on one device, weights by the seed."""
    device, blocks = jax.devices()[0], models.blocks(given.model, CLASSES)
    cuts = split.parse("balanced", given.model, given.K, len(blocks))
    pipeline = fdg_jax.Pipeline(
        stages=split.stages(blocks, cuts), loss=cross_entropy, optimizer=paper_sgd(lambda updates: 0.01, 0.9, 5e-4),
        method="fdg" if given.K > 1 else "bp", devices=[device] * given.K, engine="scan",
    )  # fmt: skip
    x, y = np.zeros((given.batch_size, *IMAGE), np.float32), np.zeros(given.batch_size, np.int32)
    whole = split.init_whole(blocks, jax.random.key(seed), jnp.asarray(x[:1]))
    pipeline.init(jax.random.key(seed), (x, y), variables=split.split_variables(whole, cuts))
    assert isinstance(pipeline.engine, ScanEngine)
    return pipeline.engine


def batch(given: argparse.Namespace, seed: int) -> Batch:
    random = np.random.default_rng(seed)
    x = random.normal(size=(given.batch_size, *IMAGE)).astype(np.float32)
    return jax.device_put((x, random.integers(0, CLASSES, given.batch_size, dtype=np.int32)))


class Apart:
    """One program, once a seed."""

    def __init__(self, made: ScanEngine, runs: Sequence[Any], batches: Sequence[Batch]):
        self.program, self.batches = jax.jit(made.one, donate_argnums=0), batches
        self.runs = [jax.tree.map(jnp.copy, run) for run in runs]

    def steps(self, n: int) -> list[Any]:
        """n steps of every seed, computed on return; the states."""
        for _ in range(n):
            self.runs = [self.program(run, *each)[0] for run, each in zip(self.runs, self.batches, strict=True)]
        return jax.block_until_ready(self.runs)


class Together:
    """One program for all seeds, which are a leading axis of every array."""

    def __init__(self, made: ScanEngine, runs: Sequence[Any], batches: Sequence[Batch]):
        self.program = jax.jit(jax.vmap(made.one), donate_argnums=0)
        self.run, self.batch = (jax.tree.map(lambda *leaves: jnp.stack(leaves), *each) for each in (runs, batches))
        self.count = len(runs)

    def steps(self, n: int) -> list[Any]:
        for _ in range(n):
            self.run = self.program(self.run, *self.batch)[0]
        jax.block_until_ready(self.run)
        return [jax.tree.map(lambda leaf, i=i: leaf[i], self.run) for i in range(self.count)]


def difference(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The largest between weights of the same seed."""
    pairs = [(a.stages, b.stages) for a, b in zip(one, other, strict=True)]
    return max(
        float(jnp.max(jnp.abs(x - y)))
        for a, b in pairs
        for s, t in zip(a, b, strict=True)
        for x, y in zip(jax.tree.leaves(s.params), jax.tree.leaves(t.params), strict=True)
    )


def measured(seeds: int, given: argparse.Namespace) -> dict[str, Any]:
    made = [engine(given, seed) for seed in range(seeds)]
    runs, batches = [each.run for each in made], [batch(given, seed) for seed in range(seeds)]
    sides = [Apart(made[0], runs, batches), Together(made[0], runs, batches)]
    print(f"{seeds} seeds: compiling", file=sys.stderr, flush=True)
    apart = difference(sides[0].steps(3), sides[1].steps(3))
    speeds: list[list[float]] = [[], []]
    for turn in range(given.windows):
        for i in (0, 1) if turn % 2 == 0 else (1, 0):
            start = time.perf_counter()
            sides[i].steps(given.steps)
            speeds[i].append(seeds * given.steps * given.batch_size / (time.perf_counter() - start))
    ratios = [together / alone for alone, together in zip(*speeds, strict=True)]
    return {
        "benchmark": "seeds",
        "seeds": seeds,
        **{name: getattr(given, name) for name in ("model", "K", "batch_size", "windows", "steps")},
        "apart_images_per_second": [round(value, 2) for value in speeds[0]],
        "together_images_per_second": [round(value, 2) for value in speeds[1]],
        "ratio": round(statistics.median(ratios), 4),
        "ratio_windows": [round(value, 4) for value in ratios],
        "largest_difference": apart,
        **report.here(),
    }


def results(given: argparse.Namespace) -> list[dict[str, Any]]:
    return [measured(seeds, given) for seeds in given.seeds]


def table(rows: Sequence[dict[str, Any]], given: argparse.Namespace) -> str:
    head = ["seeds", "one by one images/s", "together images/s", "together/one by one", "largest difference"]
    body = [
        [
            str(r["seeds"]), report.spread(r["apart_images_per_second"], 1),
            report.spread(r["together_images_per_second"], 1), report.spread(r["ratio_windows"], 3),
            f"{r['largest_difference']:.0e}",
        ]
        for r in rows
    ]  # fmt: skip
    one = rows[0]
    about = (
        f"{given.model}, FDG with K={given.K}, batch {given.batch_size} a seed, {given.windows} windows of "
        f"{given.steps} steps in turns: median (least to most), images of all seeds. The difference is between weights "
        f"after 3 steps. Device {one['device']}; {one['cpu']}, {report.versions(one)}."
    )
    return f"{report.markdown(head, body)}\n\n{about}"


def parser() -> argparse.ArgumentParser:
    made = report.parser("seeds", __doc__)
    add = made.add_argument
    add("--model", default="resnet8")
    add("--batch-size", type=report.positive, default=32)
    add("--K", type=report.positive, default=2, help="stages that the one device stands in for (default 2)")
    add("--seeds", type=report.positive, nargs="+", default=[2, 4], help="how many (default 2 4)")
    add("--windows", type=report.positive, default=5, help="turns a side (default 5)")
    add("--steps", type=report.positive, default=10, help="of a window (default 10)")
    return made


def main(arguments: list[str] | None = None) -> int:
    return report.run(parser(), results, table, arguments)


if __name__ == "__main__":
    sys.exit(main())

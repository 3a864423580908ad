"""How evenly each split divides a network's time: the slowest stage's share, from measured block times.

    .venv/bin/python -m benchmarks.split --model resnet56 wrn16_4 --K 2 4 --batch-size 128

K decoupled stages take as long for a batch as the slowest of them. So the speed-up of K stages over one is at most 100
/ (the slowest stage's share in percent). The forward pass, the backward pass and the update of every block are measured
(fdg_jax.block_times). All splits of a model are judged by the same times. Another benchmark measures the images/s that
splits reach:

    .venv/bin/python -m benchmarks.images_per_second --model resnet56 --sides fdg:split=even fdg:split=measured
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

if __name__ == "__main__":
    from fdg_jax.machine.huge_pages import restart_once

    restart_once()  # as in the training command, before the slow imports

import jax
import numpy as np

from benchmarks.harness import report
from fdg_jax import block_times, models, split
from fdg_jax.errors import BadInput
from fdg_jax.machine import compile_cache, facts

CLASSES, IMAGE = 10, (32, 32, 3)


def shares(costs: Sequence[float], cuts: Sequence[int]) -> list[float]:
    """Each stage's percentage of the whole."""
    return [100 * sum(costs[a:b]) / sum(costs) for a, b in pairwise((0, *cuts, len(costs)))]


def ways(model: str, K: int, seconds: Sequence[float], flops: Sequence[float]) -> dict[str, tuple[int, ...]]:
    """The cuts of every split that exists for this model and K."""
    costs = {"even": None, "paper": None, "balanced": flops, "measured": seconds}
    if models.paper_split(model, K) is None:
        del costs["paper"]
    return {name: split.parse(name, model, K, len(seconds), cost) for name, cost in costs.items()}


def measured(model: str, given: report.Given) -> list[dict[str, Any]]:
    """A row for every K and split."""
    blocks = models.blocks(model, CLASSES)
    if max(given.K) > len(blocks):
        raise BadInput(f"--K {max(given.K)}: {model} has {len(blocks)} blocks. Use --K 2 to {len(blocks)}.")
    x = jax.ShapeDtypeStruct((given.batch_size, *IMAGE), np.float32)
    seconds = block_times.measure(blocks, x, jax.devices()[0], given.rounds)
    flops = split.block_costs(model, CLASSES, (1, *IMAGE))
    about = {"model": model, "blocks": len(blocks), "seconds": round(sum(seconds), 6)}
    about |= {"block_seconds": report.rounded(seconds, 6), "batch_size": given.batch_size, "rounds": given.rounds}
    rows = []
    for K in given.K:
        for way, cuts in ways(model, K, seconds, flops).items():
            times, operations = (report.rounded(shares(each, cuts), 2) for each in (seconds, flops))
            slowest = {"slowest_percent": max(times), "slowest_k": 1 + int(np.argmax(times))}
            found = {"share_percent": times, "flops_percent": operations, "cores": facts.usable_cores()}
            rows.append({**about, "K": K, "split": way, "cuts": list(cuts), **slowest, **found})
    return rows


COLUMNS: dict[str, report.Cell] = {
    "model": "{model}", "K": "{K}", "split": "{split}",
    "later stages begin at": lambda r: f"{','.join(map(str, r['cuts'])) or 'none'} of {r['blocks']}",
    "slowest stage": "{slowest_percent:.1f}% (k={slowest_k})",
    "shares of time": lambda r: report.percents(r["share_percent"], 1),
    "shares of FLOPs": lambda r: report.percents(r["flops_percent"], 1),
}  # fmt: skip


def table(rows: report.Rows, given: report.Given) -> str:
    one = rows[0]
    about = f"Batch {given.batch_size}, median of {given.rounds} rounds. Device {one['device']}; "
    return report.table(COLUMNS, rows, f"{about}{report.place(one, one['cores'])}, {report.versions(one)}.")


def parser() -> report.Parser:
    return report.parser("split", __doc__, model=["resnet56", "wrn16_4"], K=[2, 4], batch_size=128, rounds=9)


def results(given: report.Given) -> list[dict[str, Any]]:
    compile_cache.enable()
    return [row for model in given.model for row in measured(model, given)]


main = report.run(__name__, parser, results, table, report.here)

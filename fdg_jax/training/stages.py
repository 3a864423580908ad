"""Facts about every stage before training starts, for the opening lines and for config.json."""

from itertools import pairwise
from typing import Any

from fdg_jax.engine import memory
from fdg_jax.runs.progress import count
from fdg_jax.stage import shapes
from fdg_jax.training.setup import Job

PARTS = ("weights", "optimizer", "statistics", "auxiliary", "memos", "old_weights", "gradients", "in_flight")


def facts(job: Job) -> list[dict[str, Any]]:
    """Collects the facts about the stages.

    Returns: for k = 1..K the blocks, cost, parameters, what is sent upwards, and the predicted memory
    (fdg_jax.engine.memory; None if it is not predicted).
    """
    engine, found, names = job.pipeline.engine, [], ("k", "total", *PARTS, "kept", "memo")
    here = [{name: getattr(each, name) for name in names} for each in memory.predict(engine)]
    predicted = {each["k"]: each for of_process in job.peers.share(here) for each in of_process}
    bounds, costs, unit = job.partition.bounds, job.partition.costs, job.partition.unit
    for k, ((a, b), size) in enumerate(zip(pairwise(bounds), job.pipeline.parameter_counts, strict=True), 1):
        sent = engine.problem.specs[k - 1].y if k < len(bounds) - 1 else None
        of = predicted.get(k)
        found.append(
            {
                "k": k,
                "first_block": a,
                "last_block": b - 1,
                "share_percent": round(100 * sum(costs[a:b]) / sum(costs), 1),
                "share_of": unit,
                "seconds": round(sum(costs[a:b]), 6) if unit == "time" else None,
                "parameters": size,
                "sends": shapes.describe(sent),
                "sends_bytes": memory.tree_bytes(sent),
                "memory_bytes": of and {name: of[name] for name in names[1:]},
            }
        )
    return found


def lines(job: Job, known: list[dict[str, Any]]) -> list[str]:
    """Two lines per stage: what it consists of, and its memory. known: the facts."""
    text = []
    for stage, device in zip(known, job.devices, strict=True):
        k = stage["k"]
        seconds = f"{1e3 * stage['seconds']:,.0f} ms a batch, " if stage["seconds"] else ""
        text.append(
            f"stage k={k}  {blocks(stage['first_block'], stage['last_block'])}, {seconds}{stage['share_percent']:.0f}% "
            f"of the {stage['share_of']}, {stage['parameters']:,} parameters, staleness "
            f"{count(job.pipeline.schedule.staleness[k - 1], 'update')}, on {device}"
        )
        if stage["memory_bytes"]:
            sends = f"; sends {stage['sends']}, {megabytes(stage['sends_bytes'])} MB" if stage["sends_bytes"] else ""
            text.append(f"  memory   {memory_words(stage['memory_bytes'])}{sends}")
    return text


def memory_words(stage: dict[str, int]) -> str:
    """27.5 MB + XLA's buffers: weights 1.0, optimizer 1.0, 2 memos of 12.1, ... Leaves out parts below 1%."""
    words = []
    for name in PARTS:
        if stage[name] < stage["total"] / 100 and name not in ("weights", "optimizer"):
            continue
        several = name == "memos" and stage["kept"] > 1 and stage["kept"] * stage["memo"] == stage["memos"]
        each = f"{stage['kept']} memos of {megabytes(stage['memo'])}"
        words.append(each if several else f"{name.replace('_', ' ')} {megabytes(stage[name])}")
    return f"{megabytes(stage['total'])} MB + XLA's buffers: {', '.join(words)}"


def megabytes(n: int) -> str:
    """Bytes in megabytes."""
    return f"{n / 1e6:,.1f}" if n >= 1e5 else f"{n / 1e6:.2f}"


def blocks(first: int, last: int) -> str:
    """Block numbers in words."""
    return f"block {first}" if first == last else f"blocks {first} to {last}"

"""How long the tables of experiments/ take, computed from the recorded seconds of finished runs."""

import json
from collections.abc import Mapping
from typing import Any

import experiments
from experiments.harness import estimate, markdown, result_files, run_table

KIND = ("model", "dataset", "method", "K", "batch_size")  # runs with equal values take equally long


def table() -> str:
    """The page's table in Markdown: finished runs, their hours, and the expected hours of the others on a CPU core."""
    known = seconds_per_step()
    lines = ["| table | runs finished | hours they took on CPU cores | on a shared GPU | hours of the others on a CPU "
             "core, at least | others not measured |", "|---|---|---|---|---|---|"]  # fmt: skip
    for name in experiments.names():
        found = experiments.find(name)
        if not found.runs or found.measure:
            continue
        found = result_files.complete(found, run_table.RESULTS)
        done = result_files.read(found, run_table.RESULTS)
        cpu, gpu = (
            sum(line.get("seconds") or 0 for line in done.values() if markdown.on_gpu(line) == here) / 3600
            for here in (False, True)
        )
        open_runs = [run for run in found.runs if run.name not in done]
        estimates = [seconds_of(run, known) for run in open_runs]
        rest = sum(each for each in estimates if each) / 3600
        unknown = sum(each is None for each in estimates)
        numbers = map(hours, (cpu, gpu, rest))
        cells = [f"`{name}`", f"{len(done)} of {len(found.runs)}", *numbers, str(unknown or "")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def hours(number: float) -> str:
    """Hours for a table; "" for 0."""
    return "" if number == 0 else f"{number:.1f}" if number < 10 else f"{number:,.0f}"


def seconds_per_step() -> dict[tuple[Any, ...], float]:
    """For every kind of run with results on a CPU: the fewest seconds per step, since other work can only slow a
    run."""
    found: dict[tuple[Any, ...], float] = {}
    for file in sorted(run_table.RESULTS.glob("*.jsonl")):
        for line in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            if line.get("seconds") and line.get("steps") and not markdown.on_gpu(line):
                seconds = line["seconds"] / line["steps"]
                found[kind(line)] = min(seconds, found.get(kind(line), seconds))
    return found


def kind(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """The options that decide how long a step takes."""
    given = {**line.get("options", {}), **line}
    return tuple(given.get(name) for name in KIND)


def seconds_of(run: run_table.Run, known: Mapping[tuple[Any, ...], float]) -> float | None:
    """The expected seconds of a run; None if no run of its kind is finished."""
    step = known.get(kind(run.flags))
    return None if step is None else step * estimate.steps_left(run, run_table.State(run_table.MISSING))

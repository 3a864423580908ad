"""Writes and reads `results/<table>.jsonl`: one line per finished run, with everything that a table shows.

Tables that share their runs share the file: each table reads its own lines and leaves the other lines as they are. A
line, including its command, has no paths of data and runs, since paths differ between machines. A file is written
completely or not at all.
"""

import json
import math
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness.run_table import CUT_OFF, DONE, Run, Table, differences, state
from fdg_jax import sweep
from fdg_jax.config import FIELDS
from fdg_jax.errors import BadInput
from fdg_jax.machine import facts
from fdg_jax.runs import reading
from fdg_jax.runs.run_files import CONFIG, LIBRARIES, SUMMARY, git_commit, read_json, version

PLACES = ("data_dir", "run_dir")
HARDWARE = ("backend", "processor", "devices", "cpus", "usable_cores", "cpu_devices", "matmul_precision", "xla_flags")
NEEDED = {
    "versions": dict, "backend": str, "devices": list, "cpus": int | None, "platform": str,
    "git_commit": str | None, "started": str,
}  # fmt: skip
CURVE_POINTS = 100
EVALUATION = ("step", "epoch", "test_loss", "test_error_percent")


def collect(table: Table, runs_dir: Path, results: Path) -> tuple[list[str], list[str]]:
    """Writes the lines of all finished runs in runs_dir. A run that is missing there keeps its line.

    Returns: (names collected, names kept).

    Raises:
        BadInput: a directory holds another run.
    """
    kept = read(table, results)
    new = {
        run.name: line(table, run, runs_dir / run.name)
        for run in table.runs
        if is_done(run, runs_dir) or (table.diverging and has_diverged(run, runs_dir))
    }
    if not new:
        raise BadInput(f"{runs_dir} holds no finished run of {table.name}. `list` shows the state of each run.")
    write(table, results, entries(table, results) | new)
    return list(new), [name for name in kept if name not in new]


def complete(table: Table, results: Path) -> Table:
    """The table with the further runs that follow from its results (`Table.then`). Raises BadInput as `entries`
    does."""
    if not table.then:
        return table
    return table._replace(runs=(*table.runs, *table.then(entries(table, results))), then=None)


def measure(table: Table, results: Path) -> Iterator[str]:
    """Measures the runs that have no line yet. Writes each result at once and yields the run's name."""
    assert table.measure is not None
    lines = read(table, results)
    for run in table.runs:
        if run.name not in lines:
            lines[run.name] = {"name": run.name, "table": table.name, **table.measure(run), **where(run)}
            write(table, results, lines)
            yield run.name


def where(run: Run) -> dict[str, Any]:
    """Options, versions and hardware of a line that was measured in this process."""
    import jax

    found = facts.describe()
    return {
        "options": dict(run.flags),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        "hardware": {
            **{name: found[name] for name in HARDWARE if name in found},
            "devices": [f"{device.platform}:{device.id}" for device in jax.devices("cpu")[:1]],
            "platform": plain_platform(found["platform"]),
        },
        "git_commits": [git_commit()],
    }


def write(table: Table, results: Path, lines: Mapping[str, Any]) -> None:
    """Writes the table's file, completely or not at all, in the order of its runs. A file of several tables is in the
    order of the runs' names."""
    order = sorted(lines) if table.shares else [run.name for run in table.runs if run.name in lines]
    results.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(lines[name], allow_nan=False, ensure_ascii=False) + "\n" for name in order)
    beside = file(table, results).with_suffix(".tmp")
    beside.write_text(text, encoding="utf-8")
    beside.replace(file(table, results))


def is_done(run: Run, runs_dir: Path) -> bool:
    return state(run, runs_dir).kind == DONE


def has_diverged(run: Run, runs_dir: Path) -> bool:
    """Whether the run ended because its numbers were not finite. Such a run has no summary, and its output names the
    reason."""
    output = runs_dir / f"{run.name}.log"
    if state(run, runs_dir).kind != CUT_OFF or not output.is_file():
        return False
    said = sweep.last_line(output)
    return said.startswith("error: ") and " has diverged; its report shows where." in said


def ended_lost(summary: Mapping[str, Any]) -> bool:
    """Whether a finished run has diverged: its training loss is not finite (null in the file), or huge."""
    from fdg_jax.training import lifecycle  # imports much for drawing, which `list` does not need

    loss = summary.get("train_loss")
    return lifecycle.has_diverged({"updates": [], **summary, "train_loss": math.nan if loss is None else loss})


def file(table: Table, results: Path) -> Path:
    return results / f"{table.home}.jsonl"


def entries(table: Table, results: Path) -> dict[str, dict[str, Any]]:
    """Every line of the table's file, including those of other tables; empty without a file. Raises BadInput."""
    path = file(table, results)
    if not path.is_file():
        return {}
    try:
        return {entry["name"]: entry for entry in map(json.loads, path.read_text(encoding="utf-8").splitlines())}
    except (ValueError, TypeError, KeyError) as error:
        raise BadInput(f"{path} cannot be read ({error!r}). Delete it and collect again.") from None


def read(table: Table, results: Path) -> dict[str, dict[str, Any]]:
    """The table's results by the names of their runs, in the table's order; empty if there are none.

    Raises:
        BadInput: a line is not of a run of the table, whose options may have changed.
    """
    path, lines = file(table, results), entries(table, results)
    unknown = [name for name in lines if name not in [run.name for run in table.runs]]
    if unknown and not table.shares:
        raise BadInput(f"{path} has a line of {unknown[0]}, which is not a run of {table.name}. Remove that line.")
    for run in table.runs:
        if run.name in lines:
            differing = differences(run.flags, lines[run.name]["options"])
            if differing:
                raise BadInput(
                    f"{path}: the line of {run.name} has other options than the table: {differing}. "
                    "Remove that line, then run and collect again."
                )
    return {run.name: lines[run.name] for run in table.runs if run.name in lines}


def line(table: Table, run: Run, path: Path) -> dict[str, Any]:
    """The line of a finished run. For a diverged run it has `diverged` instead of the final results."""
    config, events = read_json(path / CONFIG), reading.events(path)
    summary = reading.summary(path) if (path / SUMMARY).is_file() else None
    if summary is None or (table.diverging and ended_lost(summary)):
        summary = {"diverged": True}
    reading.check(path / CONFIG, config, NEEDED, "Run this row again in another --runs-dir.")
    reading.check(path / CONFIG, config, {"resumed": list}, "Run it again in another --runs-dir.", absent=[])
    options = {name: config[name] for name in FIELDS if name in config and name not in PLACES}
    sessions = [config, *config.get("resumed", [])]
    return {
        "name": run.name,
        "table": table.home,
        "command": run.cell().strip("`"),
        **summary,
        "options": options,
        "versions": config["versions"],
        "hardware": {
            **{name: config[name] for name in HARDWARE if name in config},
            "platform": plain_platform(config["platform"]),
        },
        "git_commits": list(dict.fromkeys(session.get("git_commit") for session in sessions)),
        "started": config["started"],
        "evaluations": [
            {name: event[name] for name in EVALUATION} for event in events if "test_error_percent" in event
        ],
        "training_curve": thinned([event for event in events if "train_loss" in event]),
    }


def plain_platform(text: str) -> str:
    """Linux-6.1.2-somebodys-build-x86_64-with-glibc2.36 -> Linux-6.1.2-x86_64-with-glibc2.36."""
    return re.sub(r"^(\w+-[\d.]+)\S*?-(x86_64|aarch64|arm64|AMD64)", r"\1-\2", text)


def thinned(events: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """At most CURVE_POINTS points. Each point is the mean loss of equally many logged lines, at the epoch of the last
    of these lines."""
    size = math.ceil(len(events) / CURVE_POINTS) or 1
    groups = [events[at : at + size] for at in range(0, len(events), size)]
    return {
        "epoch": [group[-1]["epoch"] for group in groups],
        "train_loss": [mean([event["train_loss"] for event in group]) for group in groups],
        "learning_rate": [group[-1]["learning_rate"] for group in groups],
    }


def mean(values: Sequence[float | None]) -> float | None:
    """The mean to five places; None if one of the values is missing."""
    numbers = [value for value in values if value is not None]
    return round(math.fsum(numbers) / len(numbers), 5) if len(numbers) == len(values) else None

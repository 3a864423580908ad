"""Common parts of pages: Markdown tables, the progress of runs, and the machines they ran on.

A page is the file `experiments/pages/<table>.md.in` with its `{names}` filled in from results.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

PAGES = Path(__file__).resolve().parents[1] / "pages"
LIBRARIES = {"python": "Python", "jax": "JAX", "flax": "Flax", "optax": "Optax"}
ENVIRONMENT = {"XLA_FLAGS": "xla_flags", "JAX_DEFAULT_MATMUL_PRECISION": "matmul_precision"}
WHERE = ("mark", "runs", "machine", "versions", "before a command", "commits")
Line = Mapping[str, Any]


class Blocks(dict[str, str]):
    """The texts that replace the names of a page. A name that is missing here is a file in the pages' folder, which
    several pages share."""

    def __missing__(self, name: str) -> str:
        return (PAGES / f"{name}.md.in").read_text(encoding="utf-8")


def title(page: str) -> str:
    """The first line of a page."""
    return Blocks()[page].splitlines()[0].removeprefix("# ").format(scaled="")


def filled(page: str, blocks: Mapping[str, str]) -> str:
    """The text of a page. A paragraph with an empty block is left out."""
    text = Blocks()[page].format_map(Blocks(blocks))
    return "\n\n".join(part for part in (each.strip("\n") for each in text.split("\n\n")) if part) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table. Columns are not padded, so that a new row changes one line only."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|" for cells in lines)


def hours(lines: Iterable[Line]) -> str:
    """`1.5 core-hours, 0.2 h on a shared GPU`: the time of runs, with evaluations. On a CPU each run had a core; on a
    GPU several runs shared the device. Diverged runs are not counted."""
    took = {False: 0.0, True: 0.0}
    for line in lines:
        took[on_gpu(line)] += (line.get("seconds") or 0.0) / 3600
    return ", ".join(
        f"{took[gpu]:.1f} {unit}" for gpu, unit in ((False, "core-hours"), (True, "h on a shared GPU")) if took[gpu]
    )


def progress(lines: Mapping[str, Line], total: int) -> str:
    """`65 of 74 runs are finished (12.3 core-hours).`"""
    took = hours(lines.values())
    return f"{len(lines)} of {total} runs {'is' if len(lines) == 1 else 'are'} finished{f' ({took})' if took else ''}."


def on_gpu(line: Line) -> bool:
    return line.get("hardware", {}).get("backend") == "gpu"


def by_place(lines: Mapping[str, Line]) -> dict[tuple[str, ...], list[str]]:
    """{(machine, versions, environment): the names of the runs made there}, the most frequent place first."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name, line in lines.items():
        found.setdefault(place(line), []).append(name)
    return dict(sorted(found.items(), key=lambda each: -len(each[1])))


def place(line: Line) -> tuple[str, ...]:
    """The recorded machine, the versions, and the environment variables that a run needs."""
    hardware, versions = line["hardware"], line["versions"]
    cores, gpus = hardware["cpus"], dict.fromkeys(hardware["devices"]) if on_gpu(line) else ()
    used = f", {hardware['usable_cores']} used" if hardware.get("usable_cores", cores) != cores else ""
    known = (*gpus, hardware.get("processor"), f"{cores} cores{used}", hardware.get("platform"))
    return (
        ", ".join(filter(None, known)),
        ", ".join(f"{name} {versions.get(key)}" for key, name in LIBRARIES.items()),
        " ".join(f"{name}={hardware[key]}" for name, key in ENVIRONMENT.items() if on_gpu(line) and hardware.get(key)),
    )


def marks(lines: Mapping[str, Line]) -> dict[str, str]:
    """{run: " [b]"} for runs that were not made in the most frequent place; `origin` explains b."""
    return {name: f" [{chr(98 + nth)}]" for nth, names in enumerate([*by_place(lines).values()][1:]) for name in names}


def origin(lines: Mapping[str, Line]) -> str:
    """A table of the places where the runs were made."""
    rows = []
    for nth, ((machine, versions, environment), names) in enumerate(by_place(lines).items()):
        commits = dict.fromkeys(commit for name in names for commit in lines[name]["git_commits"])
        before = f"`{environment}`" if environment else ""
        rows.append([chr(97 + nth), str(len(names)), machine, versions, before, ", ".join(map(short, commits))])
    return table(WHERE, rows) if rows else ""


def short(commit: str | None) -> str:
    """The first characters of a commit, with -dirty if it has this ending; `unknown` without git."""
    if not commit:
        return "unknown"
    return f"`{commit[:10]}{'-dirty' if commit.endswith('-dirty') else ''}`"


def either(values: Iterable[Any]) -> str:
    return " or ".join(dict.fromkeys(map(str, values)))

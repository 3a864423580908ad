"""The frame of every benchmark: flags in, a Markdown table or JSON lines out, and the exit code.

Exit codes: 0 measured; 1 a process that was measured has died; 2 bad input; 130 Ctrl-C.
"""

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.children import ChildFailed
from fdg_jax import models
from fdg_jax.errors import BadInput
from fdg_jax.machine import output
from fdg_jax.machine.facts import processor_name
from fdg_jax.options.parser import Parser
from fdg_jax.runs.run_files import git_commit

say = output.say
DISTURBED_PERCENT = 5.0  # of the cores' time; a result reports other processes that take more
Given = argparse.Namespace  # the parsed flags of a benchmark
Row = Mapping[str, Any]
Rows = Sequence[dict[str, Any]]
Cell = str | Callable[[Any], str]


def above_zero(kind: Callable[[str], Any], what: str) -> Callable[[str], Any]:
    """For argparse: reads a number above 0."""

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"{text!r} is no {what} above 0")
        return value

    return read


positive, duration = above_zero(int, "whole number"), above_zero(float, "number of seconds")


def sized(flag: str, text: str, example: str) -> tuple[str, list[int]]:
    """Reads MODEL:NUMBER..., with as many numbers as the example has. Raises BadInput."""
    model, *numbers = text.split(":")
    if len(numbers) != example.count(":") or not all(each.isdecimal() and int(each) for each in numbers):
        raise BadInput(f"{flag} {text}: write a model and its sizes, e.g. {example}.")
    models.blocks(model, 10)  # refuses an unknown model
    return model, list(map(int, numbers))


# The common flags of several benchmarks: the type of a value, and its meaning.
FLAGS: dict[str, tuple[Callable[[str], Any], str]] = {
    "model": (str, "any model of the training command"),
    "batch_size": (positive, "examples per batch"),
    "K": (positive, "number of stages, one worker each"),
    "method": (str, "any method, NAME or NAME:option=value"),
    "split": (str, "where to cut: paper, even, balanced, measured or block numbers"),
    "windows": (positive, "turns of each side"),
    "seconds": (duration, "approximate length of a window"),
    "rounds": (positive, "number of repetitions of every measurement"),
    "starts": (positive, "number of times that all processes are started"),
    "steps": (positive, "batches of a window"),
    "batches": (positive, "batches that are measured"),
    "ticks": (positive, "ticks that are measured"),
}


def parser(name: str, doc: str | None, epilog: str | None = None, **defaults: Any) -> Parser:
    """The argument parser of a benchmark. The docstring is the help; every benchmark has --json.

    Arguments:
        defaults: of flags in FLAGS. A flag with a list as default takes several values.
    """
    raw = argparse.RawDescriptionHelpFormatter
    made = Parser(prog=f"python -m benchmarks.{name}", description=doc, epilog=epilog, formatter_class=raw)
    told = "one JSON object per row: instead of the table, or added to FILE beside the table"
    made.add_argument("--json", nargs="?", const="-", metavar="FILE", help=told)
    for flag, default in defaults.items():
        kind, what = FLAGS[flag]
        shown = " ".join(map(str, default)) if isinstance(default, list) else default
        several = "+" if isinstance(default, list) else None
        about = f"{what} (default {shown})"
        made.add_argument(f"--{flag.replace('_', '-')}", type=kind, nargs=several, default=default, help=about)
    return made


def folder(path: str) -> Path:
    """The folder of `--out`, created if it is missing."""
    found = Path(path)
    try:
        found.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {path} cannot be made ({error.strerror}). Name another folder.") from error
    return found


def check_json(path: str | None) -> None:
    """Raises BadInput, before a long measurement, if its result could not be written."""
    if path not in (None, "-"):
        try:
            Path(path).open("a", encoding="utf-8").close()
        except OSError as error:
            raise BadInput(f"--json {path} cannot be written ({error.strerror}). Name another file.") from error


@output.forgiving()
def emit(text: str) -> None:
    print(text, flush=True)


def append(row: Row, path: str | None) -> None:
    """Adds a row to the file of --json, if there is one."""
    if path not in (None, "-"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def run(
    module: str, made: Callable[[], Parser], measure: Callable[[Given], Iterable[Row]],
    table: Callable[[Any, Given], str], facts: Callable[[], Row] | None = None,
) -> Callable[..., int]:  # fmt: skip
    """The `main` of a benchmark: it reads the flags, measures the rows, prints their table and returns the exit code.

    Arguments:
        module: its name; if it is "__main__", the benchmark runs at once and ends the process.
        measure: measures rows. Each row is added to the file of --json before the next row is measured.
        facts: added to every row, besides the benchmark's name; None: `machine`.
    """

    def main(arguments: Sequence[str] | None = None) -> int:
        rows = list[Row]()
        try:
            flags = made()
            given = flags.parse_args(arguments)
            check_json(given.json)
            for row in measure(given):
                about = (facts or machine)()
                rows.append({"benchmark": flags.prog.rpartition(".")[2], **row, **about})
                append(rows[-1], given.json)
            emit("\n".join(map(json.dumps, rows)) if given.json == "-" else table(rows, given))
        except (BadInput, ChildFailed) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2 if isinstance(error, BadInput) else 1
        except KeyboardInterrupt:
            return 130
        return 0

    if module == "__main__":
        sys.exit(main())
    return main


def disturbed(rows: Sequence[Row]) -> str:
    """The sentence about other processes that ends every table of speeds."""
    others = max(row["others_percent"] for row in rows)
    fact = f"Other processes took {others:.0f}% of the cores' time"
    return f"{fact}: the machine was not quiet, so this is not valid." if others > DISTURBED_PERCENT else f"{fact}."


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def table(columns: Mapping[str, Cell] | Sequence[tuple[str, Cell]], rows: Sequence[Any], below: str = "") -> str:
    """A Markdown table with a line for each row, and a text below it.

    columns: {head: cell}, where a cell is a format string of the row's names ("{K}", "{seconds:.1f} s") or a function
        of the row. If two heads are the same, pairs (head, cell) are given.
    """
    heads, cells = zip(*(columns.items() if isinstance(columns, Mapping) else columns), strict=True)
    body = [[cell.format_map(row) if isinstance(cell, str) else cell(row) for cell in cells] for row in rows]
    return "\n\n".join([markdown(heads, body), *([below] if below else [])])


def spread(values: Sequence[float], digits: int) -> str:
    """The text `median (least to most)`."""
    middle = statistics.median(values)
    return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def spread_of(name: str, digits: int) -> Cell:
    """A cell with the spread of a row's values."""
    return lambda row: spread(row[name], digits)


def median(values: Sequence[float], digits: int) -> float:
    return round(statistics.median(values), digits)


def rounded(values: Sequence[float], digits: int) -> list[float]:
    return [round(value, digits) for value in values]


def over(values: Sequence[float], base: Sequence[float], digits: int = 9) -> list[float]:
    """The ratios of one side's values to another side's, one per turn."""
    return [round(a / b, digits) for a, b in zip(values, base, strict=True)]


def speeds(found: Sequence[float], first: Sequence[float], digits: int = 4) -> dict[str, Any]:
    """The entries of a row: the images/s of each turn, and their ratios to the first side's images/s."""
    ratios = over(found, first)
    of_turns = {"images_per_second": median(found, 2), "images_per_second_windows": rounded(found, 6)}
    return {**of_turns, "ratio": median(ratios, digits), "ratio_windows": rounded(ratios, digits)}


def percents(values: Sequence[float], digits: int = 0) -> str:
    return ", ".join(f"{value:.{digits}f}%" for value in values)


def megabytes(size: float | None, digits: int = 2) -> str:
    """Bytes in MB of 10^6; a dash if they are not known."""
    return "–" if size is None else f"{size / 1e6:.{digits}f}"


def cuts(row: Row) -> str:
    """The blocks at which later stages begin, and the number of all blocks."""
    return ",".join(map(str, row["cuts"])) + f" of {row['blocks']}" if row["cuts"] else "none"


def place(row: Row, used: int | None = None) -> str:
    """The processor and its cores. used: how many cores were used."""
    return f"{row['cpu']}, {f'{used} of ' if used else ''}{row['machine_cores']} cores"


def versions(row: Row) -> str:
    """The versions with which a row of `here` was measured."""
    pages = "on" if row["huge_pages"] else "off"
    return f"Python {row['python']}, JAX {row['jax']}, huge pages {pages}, commit {row['commit']}"


def here() -> dict[str, Any]:
    """`machine`, and the device, versions and huge pages of this process. It imports JAX."""
    import jax

    from fdg_jax.machine import huge_pages

    found = {"device": jax.devices()[0].device_kind, "huge_pages": huge_pages.on(), "jax": jax.__version__}
    return {**found, "python": sys.version.split()[0], **machine()}


def machine() -> dict[str, Any]:
    """The processor, the number of cores and the commit."""
    return {"cpu": processor_name(), "machine_cores": os.cpu_count(), "commit": git_commit()}

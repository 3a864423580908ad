"""What every benchmark reports besides its numbers, and in what form: a Markdown table, or JSON lines."""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fdg_jax.errors import BadInput
from fdg_jax.machine import output
from fdg_jax.machine.facts import processor_name
from fdg_jax.options.parser import Parser
from fdg_jax.runs.run_files import git_commit

DISTURBED_PERCENT = 5.0  # of the cores' time taken by other processes: from here on a result says so


def parser(name: str, doc: str | None, epilog: str | None = None) -> Parser:
    """The argument parser of a benchmark: its docstring is the help, and --json is a flag of all."""
    made = Parser(
        prog=f"python -m benchmarks.{name}",
        description=doc,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="one JSON object per row: instead of the table, or added to FILE beside the table",
    )
    return made


def positive(text: str) -> int:
    """For argparse: a whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return value


def folder(path: str) -> Path:
    """The folder of `--out`, created if it is missing."""
    found = Path(path)
    try:
        found.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {path} cannot be made ({error.strerror}). Name another folder.") from error
    return found


def check_json(path: str | None) -> None:
    """Raises BadInput before a long measurement whose result could not be written."""
    if path not in (None, "-"):
        try:
            Path(path).open("a", encoding="utf-8").close()
        except OSError as error:
            raise BadInput(f"--json {path} cannot be written ({error.strerror}). Name another file.") from error


@output.forgiving()
def emit(rows: Sequence[Mapping[str, Any]], text: str, path: str | None) -> None:
    """Prints the text, or the rows as JSON lines. With a path it prints the text and appends the rows to the file.

    What was measured gets into the file also where nobody reads the output any more.
    """
    print(lines_of(rows) if path == "-" else text + "\n", end="", flush=True)
    append(rows, path)


def append(rows: Sequence[Mapping[str, Any]], path: str | None) -> None:
    """Adds rows to the file of --json, if there is one."""
    if path not in (None, "-"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(lines_of(rows))


def lines_of(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def run(
    made: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], Sequence[Mapping[str, Any]]],
    table: Callable[[Any, argparse.Namespace], str],
    arguments: Sequence[str] | None,
    appended: bool = False,
) -> int:
    """Runs a benchmark: parses the flags, measures the rows and prints their table. Returns the exit code.

    appended: `measure` itself adds each row to the file of --json.
    """
    try:
        given = made.parse_args(arguments)
        check_json(given.json)
        rows = measure(given)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    emit(rows, table(rows, given), None if appended and given.json != "-" else given.json)
    return 0


def disturbed(rows: Sequence[Mapping[str, Any]]) -> str:
    """The sentence about other processes that ends every table of speeds."""
    others = max(row["others_percent"] for row in rows)
    fact = f"Other processes took {others:.0f}% of the cores' time"
    return f"{fact}: the machine was not quiet, so none of this is valid." if others > DISTURBED_PERCENT else f"{fact}."


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def spread(values: Sequence[float], digits: int) -> str:
    """`median (least to most)`."""
    middle = statistics.median(values)
    return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def versions(row: Mapping[str, Any]) -> str:
    """The versions with which a row of `here` was measured."""
    pages = "on" if row["huge_pages"] else "off"
    return f"Python {row['python']}, JAX {row['jax']}, huge pages {pages}, commit {row['commit']}"


def here() -> dict[str, Any]:
    """`machine`, and the device, versions and huge pages of this process. It imports JAX."""
    import jax

    from fdg_jax.machine import huge_pages

    versions = {"python": sys.version.split()[0], "jax": jax.__version__}
    return {"device": jax.devices()[0].device_kind, "huge_pages": huge_pages.on(), **versions, **machine()}


def machine() -> dict[str, Any]:
    """The processor, the number of cores and the commit."""
    return {"cpu": processor_name(), "machine_cores": os.cpu_count(), "commit": git_commit()}

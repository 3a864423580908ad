"""The command `python -m fdg_jax.schedule`: shows the schedule of a method as text, a picture, a trace or a page."""

import argparse
import json
import sys
import tempfile
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fdg_jax import methods
from fdg_jax.errors import BadInput, ScheduleError
from fdg_jax.machine import output
from fdg_jax.methods.interface import Method
from fdg_jax.options.parser import Parser
from fdg_jax.schedule import Schedule, check_K
from fdg_jax.schedule.summary import describe

LARGEST = {"K": 100, "ticks": 10_000, "accumulate": 1_000, "micro_batches": 1_000}


def parser() -> Parser:
    """The parser of the command line."""
    made = Parser(
        prog="python -m fdg_jax.schedule",
        description="Shows a method's schedule: which stage runs forward (F) and backward (B) on which batch at each "
        "tick, and at which weights each gradient is computed. Prints text, unless a file is asked for.",
    )
    add = made.add_argument
    add("--K", type=int, default=3, help="number of stages (default 3)")
    add("--method", default="fdg", help="fdg, bp or any file of fdg_jax/methods (default fdg)")
    add("--ticks", type=int, help="ticks to draw (default: until the pipeline is full)")
    add("--order", help="fdg: backward-first (the paper's, default) or forward-first")
    add("--accumulate", type=int, metavar="M", help="fdg, ddg: backward passes per update (ADL, PACI; default 1)")
    add("--micro-batches", type=int, metavar="M", help="gpipe: micro-batches of a batch (default 4)")
    add("--html", type=output.file_named(".html", ".htm"), metavar="FILE",
        help="write the explorer, an offline page: every method, K up to 8, times, versions of the weights, and the "
        "learning rates at which late gradients become unstable")  # fmt: skip
    add("--open", action="store_true", help="open the explorer in the browser (without --html, from a temporary file)")
    add("--measured", type=Path, metavar="FILE", help="timeline.json of benchmarks.timeline, for the explorer")
    add("--svg", type=output.file_named(".svg"), metavar="FILE", help="write the schedule as a picture")
    add("--trace", type=output.file_named(".json"), metavar="FILE", help="write a trace for ui.perfetto.dev")
    return made


@output.command
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code: 0, or 2 for bad input."""
    given = parser().parse_args(arguments)
    if given.method.endswith(".py"):  # imported only here, because the package's own schedules need no JAX
        from fdg_jax import own_files

        own_files.load("method", given.method)
        given.method = own_files.by_name("method", given.method)
    check_K(given.K)
    if given.ticks is not None and given.ticks < 1:
        raise BadInput(f"--ticks {given.ticks}: there is nothing to draw. Use --ticks 1 or more.")
    check_size(given)
    try:
        answer(given)
    except ScheduleError as error:  # in a method file that a user wrote
        raise BadInput(f"method {given.method}, schedule {error}") from None
    return 0


def check_size(given: argparse.Namespace) -> None:
    """Raises BadInput for numbers whose drawing would take minutes and gigabytes."""
    for name, most in LARGEST.items():
        value = getattr(given, name)
        if value is not None and value > most:
            flag = f"--{name.replace('_', '-')}"
            raise BadInput(f"{flag} {value}: such a drawing would be unreadable. Use {flag} {most} or less.")


def answer(given: argparse.Namespace) -> None:
    """Prints the schedule, or writes the files that the flags name. Raises BadInput, ScheduleError."""
    method = methods.find(given.method)
    asked = {name: getattr(given, name) for name in ("order", "accumulate", "micro_batches")}
    options = {name: value for name, value in asked.items() if value is not None}
    schedule = method.schedule(given.K, **method.accepted(options)[0])
    wants_page = given.html is not None or given.open
    if given.measured is not None and not wants_page:
        raise BadInput("--measured belongs to the explorer. Add --html FILE or --open.")
    if given.ticks is not None and wants_page:
        raise BadInput(f"--ticks {given.ticks}: the explorer ignores it. Leave out --ticks, or --html and --open.")
    if wants_page:
        open_with(given, method, options)
    if given.svg is not None or given.trace is not None:
        draw(given, method, schedule, options)
    if not wants_page and given.svg is None and given.trace is None:
        print(describe(schedule, given.ticks, method.words))


def open_with(given: argparse.Namespace, method: Method, options: Mapping[str, Any]) -> None:
    """Writes the explorer's page, and with --open opens it. The explorer is imported here, because it needs NumPy and
    the printed text does not."""
    from fdg_jax.explorer import choices, page

    choices.check_start(method, given.K, options)
    run = None if given.measured is None else page.read(given.measured)
    content = page.page({"method": method.name, "K": given.K, **options}, run)
    file = given.html or Path(tempfile.mkdtemp(prefix="fdg_jax-")) / "explorer.html"
    output.write_file("--html", file, content)
    if given.open and not webbrowser.open(file.resolve().as_uri()):
        print(f"No browser was found. Open {file} yourself.")


def draw(given: argparse.Namespace, method: Method, schedule: Schedule, options: Mapping[str, Any]) -> None:
    """Writes the picture (--svg) and the trace (--trace)."""
    from fdg_jax.explorer import figure, timeline

    shown = timeline.timeline(schedule, method, ticks=given.ticks)
    title = ", ".join([f"{method.name}, K={given.K}", *(f"{name} {value}" for name, value in options.items())])
    if given.svg is not None:
        picture = figure.figure(shown, title, given.K, method.words, spread=method.places is not None)
        output.write_file("--svg", given.svg, picture)
    if given.trace is not None:
        output.write_file("--trace", given.trace, json.dumps(timeline.trace(shown, title, given.K)))


if __name__ == "__main__":
    sys.exit(main())

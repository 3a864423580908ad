"""The command `python -m fdg_jax.compare RUN RUN ...`: what differs between runs, and what came out."""

import sys
from collections.abc import Sequence
from pathlib import Path

from fdg_jax.machine import output
from fdg_jax.options.parser import Parser
from fdg_jax.report import comparison, results

EPILOG = """Runs that differ only in their seed share a row, which has the median, lowest and highest number. An
unfinished run is compared by its results so far."""


@output.command
def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code: 0, or 2 for bad input."""
    parser = Parser(
        prog="python -m fdg_jax.compare",
        description="Compares runs: final numbers, differences in options, speed and memory. --html writes a page with "
        "curves over batches, examples and time, too.",
        epilog=EPILOG,
    )
    runs = "A run directory, or a *.jsonl file with one result a line, as in experiments/results."
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=runs)
    page = output.file_named(".html", ".htm")
    parser.add_argument("--html", type=page, metavar="FILE", help="Write a page with curves, too.")
    given = parser.parse_args(arguments)
    made = comparison.compare([run for path in given.runs for run in results.read(path)])
    if given.html is not None:
        output.write_file("--html", given.html, comparison.page(made, given.html.parent))
    print(comparison.text(made))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

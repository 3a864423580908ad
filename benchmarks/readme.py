"""Runs the commands in the pages of benchmarks/results, and writes each command's output below it.

    .venv/bin/python -m benchmarks.readme              # every command: hours, on a machine that does nothing else
    .venv/bin/python -m benchmarks.readme memory K=4   # the commands that contain one of these words
    .venv/bin/python -m benchmarks.readme --render     # runs nothing: writes what was printed last

Rows and tables are added to benchmarks/results/<machine>.jsonl, and the pages are written from that file. If a command
fails, its old table stays.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from benchmarks.harness.report import append, machine, say
from fdg_jax.errors import BadInput
from fdg_jax.machine import output
from fdg_jax.options.parser import Parser

HERE = Path(__file__).parent
RESULTS = HERE / "results"
# A code block with one command, then its output between two comments.
SHOWN = re.compile(r"(```\n(?P<command>[^`]+)\n```\n\n<!-- it printed -->\n)(?P<text>.*?)(?=<!-- end -->\n)", re.S)


def pages() -> list[Path]:
    """The pages with measured tables."""
    return sorted(RESULTS.glob("*.md"))


def results() -> Path:
    """The file of this machine's rows and tables."""
    about = machine()
    name = f"{about['cpu']} {about['machine_cores']} cores".lower()
    return RESULTS / f"{re.sub('[^a-z0-9]+', '-', name).strip('-')}.jsonl"


def command(block: str) -> str:
    """The command of a code block, in one line."""
    return " ".join(shlex.split(block.replace("\\\n", " ")))


def run(line: str, file: Path) -> bool:
    """Runs a command, which adds its rows to the file, and adds the printed table. Returns whether it succeeded."""
    start = time.monotonic()
    say(f"$ {line}")
    words = ["env", *shlex.split(line), "--json", str(file)]  # env: for settings before the program
    done = subprocess.run(words, cwd=HERE.parent, stdout=subprocess.PIPE, text=True, check=False)
    took = time.monotonic() - start
    say(f"{took:.0f} s, exit code {done.returncode}")
    if done.returncode:
        return False
    record = {"benchmark": "readme", "printed_by": line, "text": done.stdout, "seconds": round(took, 1)}
    record |= {"date": datetime.now().astimezone().isoformat(timespec="seconds"), "commit": machine()["commit"]}
    append(record, str(file))
    return True


def printed(file: Path) -> dict[str, str]:
    """{command: its output when it was last run}."""
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines()) if file.exists() else ()
    return {line["printed_by"]: line["text"] for line in lines if "printed_by" in line}


def rendered(text: str, last: dict[str, str]) -> str:
    """A page with the latest output of its commands. A command that never ran keeps the text below it."""

    def fill(match: re.Match) -> str:
        found = last.get(command(match["command"]))
        return match[1] + (match["text"] if found is None else f"\n{found.strip()}\n\n")

    return SHOWN.sub(fill, text)


@output.command
def main(arguments: Sequence[str] | None = None) -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=f"python -m {__package__}.readme", description=__doc__, formatter_class=raw)
    parser.add_argument("words", nargs="*", help="run the commands that contain one of these words (default: all)")
    parser.add_argument("--render", action="store_true", help="run nothing")
    file = results()
    texts = (page.read_text(encoding="utf-8") for page in pages())
    lines = [command(match["command"]) for text in texts for match in SHOWN.finditer(text)]
    given = parser.parse_args(arguments)
    wanted = [line for line in lines if not given.words or any(word in line for word in given.words)]
    if not wanted:
        fact = f"no command in {RESULTS}/*.md contains {' or '.join(given.words)}. The commands are:"
        raise BadInput("\n  ".join([fact, *lines]))
    failed = [] if given.render else [line for line in wanted if not run(line, file)]
    last = printed(file)
    for page in pages():
        new = page.with_suffix(".tmp")  # so that a page is written completely or not at all
        new.write_text(rendered(page.read_text(encoding="utf-8"), last), encoding="utf-8")
        os.replace(new, page)
    print(f"{RESULTS}/*.md: {len(wanted) - len(failed)} of {len(lines)} tables from {file}")
    for line in failed:
        print(f"error: failed, and its old table stays: {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs the commands that benchmarks/README.md shows and writes beneath each what it printed.

    .venv/bin/python -m benchmarks.readme              # every command: hours, on a machine that does nothing else
    .venv/bin/python -m benchmarks.readme memory K=4   # those that have one of the words in them
    .venv/bin/python -m benchmarks.readme --render     # runs nothing: what was printed last

Rows and tables are added to benchmarks/results/<machine>.jsonl, from which the README is rendered. A command that fails
leaves what stood there.
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

from benchmarks.harness.report import machine
from fdg_jax.errors import BadInput
from fdg_jax.options.parser import Parser

HERE = Path(__file__).parent
README, RESULTS = HERE / "README.md", HERE / "results"
# A code block with one command, then what it printed between two comments.
SHOWN = re.compile(r"(```\n(?P<command>[^`]+)\n```\n\n<!-- it printed -->\n)(?P<text>.*?)(?=<!-- end -->\n)", re.S)


def results() -> Path:
    """The file of this machine."""
    about = machine()
    name = f"{about['cpu']} {about['machine_cores']} cores".lower()
    return RESULTS / f"{re.sub('[^a-z0-9]+', '-', name).strip('-')}.jsonl"


def command(block: str) -> str:
    """What a code block has to run, in one line."""
    return " ".join(shlex.split(block.replace("\\\n", " ")))


def run(line: str, file: Path) -> bool:
    """Runs a command, whose rows go into the file, and then its table. Whether that went well."""
    start = time.monotonic()
    print(f"$ {line}", file=sys.stderr, flush=True)
    words = ["env", *shlex.split(line), "--json", str(file)]  # env: for settings before the program
    done = subprocess.run(words, cwd=HERE.parent, stdout=subprocess.PIPE, text=True, check=False)
    took = time.monotonic() - start
    print(f"{took:.0f} s, exit code {done.returncode}", file=sys.stderr, flush=True)
    if done.returncode:
        return False
    told = {"benchmark": "readme", "printed_by": line, "text": done.stdout, "seconds": round(took, 1)}
    told |= {"date": datetime.now().astimezone().isoformat(timespec="seconds"), "commit": machine()["commit"]}
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(told) + "\n")
    return True


def printed(file: Path) -> dict[str, str]:
    """What each command printed when it was run last."""
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines()) if file.exists() else ()
    return {line["printed_by"]: line["text"] for line in lines if "printed_by" in line}


def rendered(text: str, last: dict[str, str]) -> str:
    """The README with what its commands printed last; what none of them has printed stays."""

    def fill(match: re.Match) -> str:
        found = last.get(command(match["command"]))
        return match[1] + (match["text"] if found is None else f"\n{found.strip()}\n\n")

    return SHOWN.sub(fill, text)


def main(arguments: Sequence[str] | None = None) -> int:
    made = Parser(
        prog=f"python -m {__package__}.readme",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("words", nargs="*", help="run the commands with one of these in them (default: all)")
    made.add_argument("--render", action="store_true", help="run nothing")
    try:
        given = made.parse_args(arguments)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    text, file = README.read_text(encoding="utf-8"), results()
    lines = [command(match["command"]) for match in SHOWN.finditer(text)]
    wanted = [line for line in lines if not given.words or any(word in line for word in given.words)]
    if not wanted:
        print(f"error: no command of {README} has {' or '.join(given.words)} in it; it has", *lines, sep="\n  ",
              file=sys.stderr)  # fmt: skip
        return 2
    failed = [] if given.render else [line for line in wanted if not run(line, file)]
    new = README.with_suffix(".tmp")
    new.write_text(rendered(README.read_text(encoding="utf-8"), printed(file)), encoding="utf-8")
    os.replace(new, README)
    print(f"{README}: {len(wanted) - len(failed)} of {len(lines)} tables from {file}")
    for line in failed:
        print(f"error: failed, and what stood there stays: {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

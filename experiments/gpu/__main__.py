"""`python -m experiments.gpu --minutes M`: checks, speeds and rows of Table 3 on a machine with a GPU, in chunks.

    python -m experiments.gpu --minutes 9 --folder runs/gpu                  any number of times, until all is finished
    python -m experiments.gpu pack --data-dir path/to/tfds --into data       CIFAR-10 as one file, to be carried
    python -m experiments.gpu show --folder runs/gpu                         all results so far, one line each
    python -m experiments.gpu collect --folder runs/gpu                      keep them in experiments/results/gpu.md

Exit codes: 0 the time is over or all is finished; 1 a check failed or something could not be measured or trained; 2 bad
input; 130, 143, 129 and 138 stopped by a signal, after checkpoints.
"""

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.gpu import loop, pages, steps
from experiments.gpu.loop import Choices, Clock, Folder, Step, TimeIsUp, Workplace
from experiments.gpu.settings import FULL, SMALL
from experiments.harness.run_table import RESULTS, ROOT
from fdg_jax import durable
from fdg_jax.data import arrays
from fdg_jax.data.arrays import Arrays
from fdg_jax.data.sets import cifar10
from fdg_jax.errors import BadInput
from fdg_jax.machine import output
from fdg_jax.machine.signals import Stopped
from fdg_jax.options.parser import Parser

MOST_MIB = 64
GO_ON = "to go on, give the same command again"


def parser(verb: str, doc: str) -> Parser:
    raw = argparse.RawDescriptionHelpFormatter
    return Parser(prog=f"python -m experiments.gpu {verb}".strip(), description=doc, formatter_class=raw)


def parser_of_work() -> Parser:
    made = parser("", __doc__ or "")
    add = made.add_argument
    add("--minutes", type=float, required=True, metavar="M", help="time limit of this call")
    add("--folder", type=Path, metavar="DIR", help="results, runs and checkpoints (default: runs/gpu; runs/gpu-small)")
    add("--data-dir", type=Path, metavar="DIR", help="the data set, as for the training command")
    add("--rows", nargs="+", metavar="NAME", help="rows by name or pattern (default: 'resnet20-*')")
    add("--precision", choices=["float32", "tf32"], default="float32", help="of trainings (default: float32)")
    told = "leave out networks whose rows would take longer than this (default: 12)"
    add("--hours", type=float, default=12.0, metavar="H", help=told)
    add("--only", nargs="+", default=["*"], metavar="PART", help="only these parts, by name or pattern")
    add("--accept", nargs="+", default=[], metavar="CHECK", help="go on even if these checks have failed")
    add("--results", type=Path, metavar="DIR", help="where finished rows are collected (default: experiments/results)")
    add("--plan", action="store_true", help="print what would be done, and stop")
    add("--small", action="store_true", help="a short rehearsal on a CPU: tiny networks, a few steps, digits")
    return made


def pack(arguments: Sequence[str]) -> None:
    made = parser("pack", "Writes CIFAR-10 as one file, cifar10.npz, for --data-dir.")
    made.add_argument("--data-dir", metavar="DIR", help="where CIFAR-10 is, as for the training command")
    made.add_argument("--into", type=Path, required=True, metavar="DIR", help="the folder for the file")
    given = made.parse_args(arguments)
    dataset, file = cifar10.load(given.data_dir), given.into / "cifar10.npz"
    durable.make_folder(given.into)
    arrays.write(file, Arrays(*(getattr(dataset, name) for name in Arrays._fields)))
    print(f"{file}: {file.stat().st_size / 2**20:.1f} MiB")


def show(arguments: Sequence[str]) -> None:
    folder = Folder(of_folder("show", "Prints all results so far, one a line.").parse_args(arguments).folder)
    for file in sorted(folder.results.glob("*.jsonl"), key=lambda file: file.stat().st_mtime):
        for line in loop.lines_of(file):
            print(f"{line['part']}: {line['says']}")


def collect(arguments: Sequence[str]) -> None:
    made = of_folder("collect", f"Adds all finished parts to {pages.LINES}, and writes {pages.PAGE} from this file.")
    made.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="default: experiments/results")
    given = made.parse_args(arguments)
    print(*pages.collect(Folder(given.folder), given.results), sep="\n")


def of_folder(verb: str, doc: str) -> Parser:
    """The parser of a verb that reads a folder of results."""
    made = parser(verb, doc)
    made.add_argument("--folder", type=Path, default=ROOT / "runs" / "gpu", metavar="DIR", help="default: runs/gpu")
    return made


VERBS = {"pack": pack, "show": show, "collect": collect}


def main(arguments: Sequence[str]) -> int:
    with output.forgiving():
        try:
            if arguments and arguments[0] in VERBS:
                return VERBS[arguments[0]](arguments[1:]) or 0
            return do(parser_of_work().parse_args(arguments))
        except BadInput as error:
            print(f"error: {error}", file=sys.stderr)
            return 2


def do(given: argparse.Namespace) -> int:
    if not (given.minutes > 0 and math.isfinite(given.minutes)):
        raise BadInput(f"--minutes {given.minutes}: use a positive number.")
    settings = SMALL if given.small else FULL
    if given.small:
        os.environ["JAX_PLATFORMS"] = "cpu"
    else:  # the first of several GPUs, since the stages share one device
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    folder = Folder(given.folder or ROOT / "runs" / ("gpu-small" if given.small else "gpu"))
    data_dir = given.data_dir.expanduser().resolve() if given.data_dir else None
    choices = Choices(
        rows=tuple(given.rows or (["*"] if given.small else ["resnet20-*"])), precision=given.precision,
        hours=given.hours, accepted=tuple(given.accept), only=tuple(given.only), data_dir=data_dir,
        results=given.results or (folder.path / "collected" if given.small else RESULTS),
    )  # fmt: skip
    wanted = steps.steps(settings, choices)
    with folder.held({"settings": settings.name, "precision": choices.precision}), Clock(60 * given.minutes) as clock:
        return go(wanted, Workplace(settings, folder, clock, choices), given.plan)


def go(wanted: Sequence[Step], at: Workplace, only_plan: bool) -> int:
    """Prints the plan and works on it until the time is over. Returns the exit code."""
    print(loop.shown(wanted, at), flush=True)
    if only_plan:
        return 0
    try:
        failed = loop.work(wanted, at)
    except TimeIsUp:
        return ended(f"the time limit is reached; {GO_ON}", at, 0)
    except Stopped as stopped:
        return ended(f"stopped by {stopped}; {GO_ON}", at, 128 + stopped.number)
    left = [step.name for step in wanted if not loop.passed(step.name, at)]
    if not left:
        return ended("all parts are finished", at, 0)
    return ended(f"not finished: {', '.join(left)}; {GO_ON}", at, 1 if failed else 0)


def ended(text: str, at: Workplace, code: int) -> int:
    size = at.folder.bytes() / 2**20
    print(f"{text}\n{at.folder.path}: {size:.1f} MiB", flush=True)
    if size > MOST_MIB:
        print(f"warning: the folder has more than {MOST_MIB} MiB, maybe too much for one transfer", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

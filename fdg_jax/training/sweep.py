"""`--seeds 0,1,2` and `--sweep beta=0.2,0.5,1`: one run for each combination of values, and a table of their results.

Each run is this command in a process of its own, with --resume auto (fdg_jax.training.child_runs). So whatever stopped
the runs, the same command goes on with them. All combinations are checked before the first run starts.
"""

import dataclasses
import itertools
import math
import os
import re
import shlex
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fdg_jax import durable
from fdg_jax.checks import options as checks
from fdg_jax.cli import CommandLine, Program, settled
from fdg_jax.config import FIELDS, OF_MODELS, Config
from fdg_jax.config_file import Setting, converted
from fdg_jax.errors import BadInput, did_you_mean, reason
from fdg_jax.machine import output
from fdg_jax.machine.interpreter import python_command
from fdg_jax.machine.signals import Signals
from fdg_jax.options.common import Start, chosen
from fdg_jax.options.fields import spelled, words, written
from fdg_jax.runs import locking, reading, run_files
from fdg_jax.training import child_runs

TABLE, SEED, MOST = "sweep.md", "seed", 1000
ONCE = ("run_dir", "resume", "data_dir")  # cannot differ from run to run
# What checks.check_names looks at.
NAMES = ("model", "K", "dataset", "split", *OF_MODELS)


class Combination(NamedTuple):
    """One run of several. chosen: option -> value, of those that differ."""

    name: str
    chosen: Mapping[str, Any]
    options: Config
    given: frozenset[str]


def run(asked: CommandLine, program: Program, signals: Signals) -> int:
    """Makes all runs, or lists them with --dry-run; returns the exit code. Raises BadInput before the first one."""
    folder, found = Path(asked.options.run_dir or ""), list(combinations(asked, program))
    child_runs.cores_for(asked.start.jobs)
    locking.check_place(folder)
    if locking.holds_run(folder):
        raise BadInput(f"{folder} holds a run itself. Choose another --run-dir for the runs of a sweep.")
    for one in found:
        checks.check(one.options, one.given)
        still_to_do(folder / one.name, one)  # refuses a run with other options
    for options in {tuple(getattr(one.options, name) for name in NAMES): one.options for one in found}.values():
        checks.check_names(options, program.datasets)
    if asked.start.dry_run:
        for one in found:
            print(shlex.join([python_command(), *command(one, folder, program, asked.start)]), file=output.loud())
        print(f"dry run: {len(found)} runs, none was started. Add --dry-run to one of them for what it costs.")
        return 0
    try:
        durable.make_folder(folder)
    except OSError as error:
        raise BadInput(f"--run-dir {folder} cannot be made: {reason(error)}. Choose another one.") from None
    try:
        planned = [child(one, folder, program, asked.start) for one in found]
        code = child_runs.make_all(planned, asked.start.jobs, signals)
        tell(found, folder)
        return code
    except OSError as error:
        from fdg_jax.training import lifecycle  # its imports are slow

        print(lifecycle.not_written(folder, error), file=sys.stderr)
        return 1


def combinations(asked: CommandLine, program: Program) -> Iterator[Combination]:
    """The runs, seeds changing fastest. Raises BadInput for what cannot be swept."""
    swept: dict[str, list[Any]] = {}
    texts = [(f"--sweep {text}", text) for text in asked.start.sweep]
    texts += [] if asked.start.seeds is None else [(f"--seeds {asked.start.seeds}", f"{SEED}={asked.start.seeds}")]
    for said, text in texts:
        name, several = parsed(said, text)
        if name in swept:
            raise BadInput(f"{said}: the values of {name} are given twice. Leave one of them out.")
        if name in asked.given and name not in asked.places:  # the command line goes before a file
            raise BadInput(f"{said}: {name} is given by {spelled(name)}, too. Leave one of them out.")
        swept[name] = several
    if (runs := math.prod(map(len, swept.values()))) > MOST:
        raise BadInput(f"--sweep makes {runs:,} runs. Use at most {MOST:,}, and several directories for more.")
    names: dict[str, Any] = {}
    for swept_here in (dict(zip(swept, each, strict=True)) for each in itertools.product(*swept.values())):
        name = "-".join(f"{option}{plain(value)}" for option, value in swept_here.items())
        if len(name) > 150 or name in names:
            why = "as another one would" if name in names else "which is too long"
            fact = f"--sweep: the run with {swept_here} would have the directory {name[:60]!r}, {why}"
            raise BadInput(f"{fact}. Sweep less.")
        names[name] = swept_here
        options, given = settled({**asked.line, **swept_here}, asked.file, program)
        yield Combination(name, swept_here, dataclasses.replace(options, resume=False), given)


def parsed(said: str, text: str) -> tuple[str, list[Any]]:
    """(option, values) of NAME=VALUES. Raises BadInput if there is no such option, or a value is not of its type.

    said: the flag with its value, for messages.
    """
    name, sign, rest = text.partition("=")
    name = name.lstrip("-").replace("-", "_")
    if not sign or not rest:
        raise BadInput(f"{said}: write NAME=VALUES, e.g. beta=0.2,0.5,1.")
    if name not in FIELDS:
        raise BadInput(f"{said}: there is no option {name!r}.{did_you_mean(name, FIELDS)}")
    if name in ONCE:
        raise BadInput(f"{said}: {name} is the same for all runs. Give it as {spelled(name)}.")
    texts = [word.strip() for word in rest.split(";" if ";" in rest else ",")]
    several = [converted(Setting(name, word, None, word=True), FIELDS[name], said) for word in texts]
    if len(set(several)) < len(several):
        raise BadInput(f"{said}: a value is there twice. Leave one of them out.")
    return name, several


def plain(value: Any) -> str:
    """A value as a part of a directory's name."""
    return re.sub(r"[^\w.,+-]", "_", written(value))


def stored(path: Path, one: Combination) -> Config | None:
    """The options of the run that is in its directory; None if there is none yet. Raises BadInput for another run."""
    if not locking.resumes(path):
        return None
    return reading.resumed_options(path, one.options, one.given)[0]


def still_to_do(path: Path, one: Combination) -> tuple[Config | None, bool]:
    """(the options of the run that is in its directory or None, whether something is left to do). Raises BadInput."""
    options = stored(path, one) if path.exists() else None
    return options, options is None or reading.finished_steps(path, options) is None


def command(one: Combination, folder: Path, program: Program, start: Start) -> list[str]:
    """The words of the training command after the interpreter."""
    now = {name: getattr(one.options, name) for name in FIELDS}
    alone = Config(**chosen(program.defaults, {name: now[name] for name in one.given}))
    said = {name: value for name, value in now.items() if name in one.given or value != getattr(alone, name)}
    flags = [word for name, value in said.items() if name not in ("run_dir", "resume") for word in words(name, value)]
    flags += ["--track", start.track] if start.track else []
    flags += ["--profile", str(start.profile)] if start.profile else []
    return [*program.command.split()[1:], *flags, "--run-dir", str(folder / one.name), "--resume", "auto"]


def child(one: Combination, folder: Path, program: Program, start: Start) -> child_runs.Planned:
    """The run as child_runs takes it."""
    path = folder / one.name

    def start_words() -> tuple[list[str], str] | None:
        options, left = still_to_do(path, one)
        if not left:
            print(f"{one.name}: is finished", flush=True)
            return None
        return command(one, folder, program, start), "continued" if options else "started"

    return child_runs.Planned(one.name, folder / f"{one.name}.log", start_words)


def tell(found: Sequence[Combination], folder: Path) -> None:
    """Prints the results by combination, and writes them, and those of each run, into sweep.md."""
    errors = {one.name: test_error(folder / one.name) for one in found}
    swept = [name for name in found[0].chosen if name != SEED]
    rows, groups = [], dict[tuple[str, ...], list[str]]()
    for one in found:  # in the order of the runs; `--sweep seed=0,1 beta=0.5,1` has those of a beta apart
        groups.setdefault(tuple(written(one.chosen[name]) for name in swept), []).append(one.name)
    for key, names in groups.items():
        known = [error for name in names if (error := errors[name]) is not None]
        summary = [statistics.median(known), min(known), max(known)] if known else []
        numbers = [f"{number:.2f}" for number in summary] or [""] * 3
        rows.append([*key, f"{len(known)} of {len(names)}", *numbers])
    by_value = table([*swept, "finished", "test error %, median", "lowest", "highest"], rows)
    by_run = table(["run", "test error %"], [[name, "" if e is None else f"{e:.2f}"] for name, e in errors.items()])
    durable.write(folder / TABLE, f"{by_value}\n\n{by_run}\n".encode())
    print(f"\n{by_value}\n\nThe table is in {folder / TABLE}, and each run beside it.", file=output.loud(), flush=True)


def test_error(path: Path) -> float | None:
    """In percent, of a run that has finished; None if it has not."""
    try:
        return reading.summary(path)["test_error_percent"] if os.path.lexists(path / run_files.SUMMARY) else None
    except BadInput:
        return None


test_error.__test__ = False  # type: ignore[attr-defined]  # its name is not meant for pytest


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, with columns as wide as their widest entry."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(f"| {' | '.join(c.ljust(w) for c, w in zip(line, widths, strict=True))} |" for line in lines)

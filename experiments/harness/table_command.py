"""The command of a table: `python -m experiments.TABLE list|run|collect|render`."""

import argparse
import fnmatch
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness import estimate, result_files
from experiments.harness.run_table import (
    CUT_OFF,
    DONE,
    MISSING,
    RESULTS,
    ROOT,
    RUNNING,
    Run,
    Table,
    command,
    on_text,
    state,
)
from fdg_jax import sweep
from fdg_jax.data import arrays
from fdg_jax.errors import BadInput, did_you_mean
from fdg_jax.machine import output
from fdg_jax.machine.signals import Signals, Stopped
from fdg_jax.options.parser import Parser
from fdg_jax.sweep import Planned

COLLECTED, REFUSED = "collected", "refused"  # in addition to the states of a run's directory
ORDER = {DONE: 0, RUNNING: 0, CUT_OFF: 1, MISSING: 2}  # runs that are skipped, with a message, come first
FLAGS: dict[str, dict[str, Any]] = {
    "epochs": {"type": int, "metavar": "N", "help":
        "make the table with runs of N epochs; its run directories, results and page then have other names"},
    "runs_dir": {"type": Path, "metavar": "DIR", "help":
        "where the run directories are, each named after its run (default: runs/{home})"},
    "data_dir": {"metavar": "DIR", "help":
        "the data directory, as for the training command: for CIFAR a TensorFlow Datasets directory (default: "
        "$TFDS_DATA_DIR or ~/tensorflow_datasets)"},
    "only": {"nargs": "+", "metavar": "NAME", "help":
        "only these runs, by name or by a pattern in quotes: 'resnet20-*-seed0'"},
    "results": {"type": Path, "default": RESULTS, "metavar": "DIR", "help":
        "where the results and the page are (default: experiments/results)"},
    "jobs": {"type": int, "default": 1, "metavar": "N", "help":
        "number of runs at the same time; several are pinned to one core each (default: 1)"},
    "skip_collected": {"action": "store_true", "help":
        "leave out every run that has a line of results, even if its directory is on another machine"},
    "dry_run": {"action": "store_true", "help":
        "train nothing: list the runs with the time that each would take, estimated from a few steps"},
    "seconds_per_step": {"type": float, "metavar": "X", "help":
        "with --dry-run: use X seconds per step instead of measuring it"},
    "measure_again": {"action": "store_true", "help":
        "with --dry-run: measure all times, also those that an earlier --dry-run on this machine measured"},
}  # fmt: skip


def main(table: Table, arguments: Sequence[str] | None = None) -> int:
    """The command. Exit codes: 0 done, 2 bad input, 130 and 143 stopped, else the code of the first run that failed."""
    with output.forgiving():
        try:
            options = parser(table).parse_args(arguments)
            if options.epochs is not None:
                if options.epochs < 1 or not table.shortened:
                    raise BadInput(f"--epochs {options.epochs}: use 1 or more.")
                table = table.shortened(options.epochs)
            if "runs_dir" in options and options.runs_dir is None:
                options.runs_dir = ROOT / "runs" / table.home
            return options.does(result_files.complete(table, options.results), options) or 0
        except BadInput as error:
            print(f"error: {error}", file=sys.stderr)
            return 2


def parser(table: Table) -> Parser:
    """The parser of a table. A table without runs accepts verbs that --help does not list, only to explain why they are
    refused."""
    listed = ("run", "render") if table.measure else tuple(VERBS) if table.runs else ("render",)
    root = Parser(
        prog=f"python -m experiments.{table.name}",
        description=f"{table.title}. Usually: {', '.join(name for name in listed if name != 'list')}.",
        epilog="Exit codes: 0 done, 2 bad input, 130 and 143 stopped after checkpoints.",
    )
    verbs = root.add_subparsers(required=True, metavar="|".join(listed))
    for name in listed if table.measure else VERBS:
        does, text, flags = VERBS[name]
        helped: dict[str, Any] = {"help": text} if name in listed else {}  # without help=, --help leaves it out
        made = verbs.add_parser(name, description=text, **helped)
        made.set_defaults(does=does, epochs=None, results=RESULTS, data_dir=None)
        for flag in (flag for flag in flags if has(table, flag)):
            about = {**FLAGS[flag], "help": FLAGS[flag]["help"].format(home=table.home)}
            made.add_argument(f"--{flag.replace('_', '-')}", **about)
    return root


def has(table: Table, flag: str) -> bool:
    """Whether a flag makes sense for a table."""
    if table.measure:
        return flag == "results"
    return {"epochs": bool(table.shortened), "data_dir": not all_text(table.runs)}.get(flag, True)


def chosen(table: Table, options: argparse.Namespace) -> list[Run]:
    """The runs selected on the command line. Raises BadInput for a name or pattern that matches no run."""
    names = [run.name for run in table.runs]
    if not names:
        raise BadInput(f"{table.name} has no runs of its own. Use `render`: the page names the runs that it uses.")
    for pattern in options.only or ():
        if not fnmatch.filter(names, pattern):
            asked = f"{did_you_mean(pattern, names)} `list` shows all names."
            raise BadInput(f"--only {pattern}: no run of {table.name} has such a name.{asked}")
    wanted = options.only or ["*"]
    return [run for run in table.runs if any(fnmatch.fnmatchcase(run.name, pattern) for pattern in wanted)]


def list_runs(table: Table, options: argparse.Namespace) -> None:
    runs = chosen(table, options)
    data_dir = place(Path(options.data_dir).expanduser()) if options.data_dir else None  # the commands run in the root
    lines, wrong = {}, ""
    try:
        lines = result_files.read(table, options.results)
    except BadInput as error:
        wrong = f"\n{error}"
    kinds: Counter[str] = Counter()
    for run in runs:
        try:
            now = state(run, options.runs_dir)
            kind = now.kind
        except BadInput as error:
            now, kind = error, REFUSED
        if run.name in lines:
            now = collected(lines[run.name]) if kind == MISSING else now
        kinds[COLLECTED if run.name in lines else kind] += 1
        words = command(run, data_dir, place(options.runs_dir / run.name), kind == CUT_OFF)
        print(f"{run.name}: {now}\n  {shlex.join(words)}")
    counts = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
    print(f"\n{about_commands(runs, data_dir)}\n{len(runs)} runs: {counts}.{wrong}")


def collected(line: Mapping[str, Any]) -> str:
    """The text of `list` for a run with a line of results and no directory on this machine."""
    if line.get("diverged"):
        return "collected, the run has diverged"
    return f"collected, test error {line['test_error_percent']:.2f}%"


def all_text(runs: Sequence[Run]) -> bool:
    """Whether all runs train on text. The options of such runs name the text's files, so no data directory is
    needed."""
    return bool(runs) and all(on_text(run) for run in runs)


def about_commands(runs: Sequence[Run], data_dir: str | None) -> str:
    """A text on where the commands of `list` run, and where they find their data."""
    where = f"The commands run in {ROOT}"
    if data_dir or all_text(runs):
        return f"{where}."
    default = arrays.default_data_dir()
    download = all(run.module == Run("", {}).module for run in runs)  # other commands never download data
    missing = ", into which missing data are downloaded" if download else ""
    return f"{where} and look for the data in {default}{missing}. To change this, use `list --data-dir DIR`."


def place(path: Path) -> str:
    """A path inside the repository relative to its root, where the commands run; other paths stay absolute."""
    path = path.resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def run_runs(table: Table, options: argparse.Namespace) -> int:
    if table.measure:
        for name in result_files.measure(table, options.results):
            print(f"{result_files.file(table, options.results)}: measured {name}", flush=True)
        return 0
    given = options.seconds_per_step
    if given is not None and not options.dry_run:
        raise BadInput("--seconds-per-step works only with --dry-run: add --dry-run, or leave both out to train.")
    if options.measure_again and (not options.dry_run or given is not None):
        raise BadInput("--measure-again needs --dry-run, and no --seconds-per-step, which measures nothing.")
    runs = chosen(table, options)
    if table.diverging or options.skip_collected:
        lines = result_files.read(table, options.results)
        runs = [r for r in runs if not (r.name in lines and (options.skip_collected or lines[r.name].get("diverged")))]
    if table.prepare and runs:
        table.prepare()
    if not options.dry_run:
        return run_missing(runs, options.runs_dir, options.data_dir, options.jobs)
    try:
        with Signals() as signals, signals.at_once():
            return estimate.tell(runs, options.runs_dir, options.jobs, given, options.measure_again)
    except Stopped as stopped:
        print(f"stopped by {stopped}; the measured times are kept", file=sys.stderr)
        return 128 + stopped.number


def run_missing(runs: Sequence[Run], runs_dir: Path, data_dir: str | None, jobs: int) -> int:
    """Makes all runs except those that are done or that another process is making, `jobs` at a time, one process per
    core.

    Each run is the command that `list` shows; its output goes to <runs-dir>/<name>.log.

    Returns: the exit code of sweep.make_all.
    """
    sweep.cores_for(jobs)  # refuses impossible numbers before directories are read
    runs_dir = runs_dir.resolve()
    data_dir = str(Path(data_dir).expanduser().resolve()) if data_dir else None  # the runs start in another directory
    waiting = sorted(runs, key=lambda run: ORDER[state(run, runs_dir).kind])
    with Signals() as signals:
        return sweep.make_all([planned(run, runs_dir, data_dir) for run in waiting], jobs, signals, ROOT)


def planned(run: Run, runs_dir: Path, data_dir: str | None) -> Planned:
    """A run in the form that `sweep` takes. The run's state is read when the run would start, since another process may
    work on the table."""

    def words() -> tuple[list[str], str] | None:
        now = state(run, runs_dir)
        if now.kind in (DONE, RUNNING):
            print(f"{run.name}: {now}", flush=True)
            return None
        resume = now.kind == CUT_OFF
        made = command(run, data_dir, str(runs_dir / run.name), resume)[1:]
        return made, "continued" if resume else "started"

    return Planned(run.name, runs_dir / f"{run.name}.log", words)


def collect(table: Table, options: argparse.Namespace) -> None:
    new, kept = result_files.collect(table, options.runs_dir, options.results)
    print(f"{result_files.file(table, options.results)}: collected {', '.join(new)}")
    lacking = [run.name for run in table.runs if run.name not in [*new, *kept]]
    for what, names in (("unchanged", kept), ("not finished", lacking)):
        if names:  # more than ten names would hide the rest of the text
            print(f"{what}: {', '.join(names) if len(names) <= 10 else f'{len(names)} runs, see `list`'}")


def render(table: Table, options: argparse.Namespace) -> None:
    lines = result_files.read(table, options.results)
    options.results.mkdir(parents=True, exist_ok=True)
    page, made = options.results / f"{table.name}.md", []
    page.write_text(table.document(lines), encoding="utf-8")
    if table.picture:
        made = [options.results / f"{table.name}.png"]
        table.picture(lines, made[0])
    print(f"{' and '.join(map(str, [page, *made]))}: {len(lines)} of {len(table.runs)} runs")


RUN_FLAGS = ("jobs", "skip_collected", "dry_run", "seconds_per_step", "measure_again")
VERBS = {  # verb -> (its function, its text in --help, its flags)
    "list": (list_runs, "each run's state and its exact command line, to be run in the repository's root",
             ("epochs", "runs_dir", "data_dir", "only", "results")),
    "run": (run_runs, "start the missing runs and continue the interrupted ones",
            ("epochs", "runs_dir", "data_dir", "only", "results", *RUN_FLAGS)),
    "collect": (collect, "write a line of results for every finished run; other lines stay",
                ("epochs", "runs_dir", "results")),
    "render": (render, "make the page, and a picture if the table has one, from the results", ("epochs", "results")),
}  # fmt: skip

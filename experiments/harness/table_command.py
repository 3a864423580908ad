"""What can be done with a table: `python -m experiments.TABLE list|run|collect|render`."""

import argparse
import fnmatch
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments.harness import estimate, result_files, runner
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
    shown,
    state,
)
from fdg_jax.data import directories
from fdg_jax.errors import BadInput, did_you_mean
from fdg_jax.machine import output
from fdg_jax.options.parser import Parser
from fdg_jax.training.signals import Stopped

COLLECTED, REFUSED = "collected", "refused"  # beside the states of a run's directory


def main(table: Table, arguments: Sequence[str] | None = None) -> int:
    """The command. Exit codes: 0 done, 2 bad input, 130 and 143 stopped, else that of the first run that failed."""
    with output.forgiving():
        return answer(table, arguments)


def answer(table: Table, arguments: Sequence[str] | None) -> int:
    try:
        options = parser(table).parse_args(arguments)
        if options.epochs is not None:
            table = shortened(table, options.epochs)
        if "runs_dir" in options and options.runs_dir is None:
            options.runs_dir = ROOT / "runs" / table.home
        table = result_files.complete(table, options.results)
        return options.does(table, options) or 0
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def listed_verbs(table: Table) -> tuple[str, ...]:
    """The verbs that --help names. A table without runs has the others, too, only to say why it refuses them."""
    if not table.runs:
        return ("render",)
    return ("run", "render") if table.measure else ("list", "run", "collect", "render")


def parser(table: Table) -> Parser:
    listed = listed_verbs(table)
    result_names = f"{table.home}.jsonl and {table.name}.md are" if table.runs else f"{table.name}.md is"
    root = Parser(
        prog=f"python -m experiments.{table.name}",
        description=f"{table.summary}. Usually: {', '.join(name for name in listed if name != 'list')}.",
        epilog="Exit codes: 0 done, 2 bad input, 130 and 143 stopped after checkpoints.",
    )
    verbs = root.add_subparsers(required=True, metavar="|".join(listed))

    def verb(name: str, does, text: str, runs: bool = False, data: bool = False, results: bool = False):
        helped: dict[str, Any] = {"help": text} if name in listed else {}  # without help=, --help leaves it out
        made = verbs.add_parser(name, description=text, **helped)
        made.set_defaults(does=does, epochs=None, results=RESULTS, data_dir=None)
        if table.shortened:
            made.add_argument(
                "--epochs", type=int, metavar="N",
                help="the same table with runs of N epochs; run directories, results and page have names of their own",
            )  # fmt: skip
        if runs:
            made.add_argument(
                "--runs-dir", type=Path, metavar="DIR",
                help=f"where the run directories are, one of each run's name (default: runs/{table.home})",
            )  # fmt: skip
        if data and not all_text(table.runs):
            made.add_argument(
                "--data-dir", metavar="DIR",
                help="where the data are, as for the training command: for CIFAR a TensorFlow Datasets directory "
                "(default: $TFDS_DATA_DIR or ~/tensorflow_datasets)",
            )  # fmt: skip
        if data:
            made.add_argument(
                "--only", nargs="+", metavar="NAME",
                help="only these runs, by name or by a pattern in quotes: 'resnet20-*-seed0'",
            )  # fmt: skip
        if results:
            made.add_argument(
                "--results", type=Path, default=RESULTS, metavar="DIR",
                help=f"where {result_names} (default: experiments/results)",
            )  # fmt: skip
        return made

    page = f"results/{table.name}.md{' and its picture' if table.picture else ''}"
    rendering = f"make {page} from {'the .jsonl alone' if table.runs else 'the results of the benchmarks'}"
    if table.measure:
        text = f"measure the runs that results/{table.name}.jsonl has no line of, and add their lines"
        verb("run", measure_runs, text, results=True)
        verb("render", render, rendering, results=True)
        return root
    text = "each run's state and its exact command line, to be run in the repository's root"
    verb("list", list_runs, text, runs=True, data=True, results=True)
    text = "run what is missing and continue what was cut off"
    run = verb("run", run_runs, text, runs=True, data=True, results=True)
    running(run)
    text = f"write a line for every finished run into results/{table.home}.jsonl; other runs keep their lines"
    verb("collect", collect, text, runs=True, results=True)
    verb("render", render, rendering, results=True)
    return root


def running(run: argparse.ArgumentParser) -> None:
    """The flags of the verb `run` alone."""
    run.add_argument(
        "--jobs", type=int, default=1, metavar="N",
        help="runs at a time, each pinned to a core of its own when there are several (default: 1)",
    )  # fmt: skip
    run.add_argument(
        "--skip-collected", action="store_true",
        help="leave out every run that has a line of results, even when its directory is not on this machine",
    )  # fmt: skip
    run.add_argument(
        "--dry-run", action="store_true",
        help="train nothing: list the runs with the time that each would take, from a few steps measured now",
    )  # fmt: skip
    run.add_argument(
        "--seconds-per-step", type=float, metavar="X",
        help="with --dry-run: use X seconds per step instead of measuring it",
    )  # fmt: skip
    run.add_argument(
        "--measure-again", action="store_true",
        help="with --dry-run: measure again, even what an earlier --dry-run on this machine has measured",
    )  # fmt: skip


def shortened(table: Table, epochs: int) -> Table:
    if epochs < 1 or not table.shortened:
        raise BadInput(f"--epochs {epochs}: use 1 or more.")
    return table.shortened(epochs)


def chosen(table: Table, options: argparse.Namespace) -> list[Run]:
    """The runs that were asked for. Raises BadInput for a name or pattern that matches no run."""
    names = [run.name for run in table.runs]
    if not names:
        raise BadInput(f"{table.name} has no runs of its own: use `render`; its page says where its numbers come from.")
    for pattern in options.only or ():
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            asked = f"{did_you_mean(pattern, names)} `list` shows all names."
            raise BadInput(f"--only {pattern}: no run of {table.name} is called that.{asked}")
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
    kinds = []
    for run in runs:
        try:
            now = state(run, options.runs_dir)
            kind = now.kind
        except BadInput as error:
            now, kind = error, REFUSED
        kinds.append(COLLECTED if run.name in lines else kind)
        if kind == MISSING and run.name in lines:
            now = collected(lines[run.name])
        words = command(run, data_dir, place(options.runs_dir / run.name), kind == CUT_OFF)
        print(f"{run.name}: {now}\n  {shown(words)}")
    print(f"\n{about_commands(runs, data_dir)}\n{how_many(kinds)}{wrong}")


def collected(line: Mapping[str, Any]) -> str:
    """What `list` says of a run that has a line of results and no directory here."""
    if line.get("diverged"):
        return "collected, it has diverged"
    return f"collected, test error {line['test_error_percent']:.2f}%"


def how_many(kinds: Sequence[str]) -> str:
    """The sentence that ends `list`. kinds: of each run; one with a line of results is collected, whatever else."""

    def said(kind: str, words: str, of: str = "") -> str:
        number = kinds.count(kind)
        return f"{number}{of} {'is' if number == 1 else 'are'} {words}"

    parts = [said(COLLECTED, "collected", f" of {len(kinds)} runs"), said(RUNNING, "under way")]
    for kind, words in ((CUT_OFF, "cut off"), (DONE, "done and not collected"), (REFUSED, "refused")):
        parts += [said(kind, words)] if kind in kinds else []
    return f"{', '.join(parts)}, {said(MISSING, 'missing')}."


def all_text(runs: Sequence[Run]) -> bool:
    """Whether all runs train on text, which their own options name: nothing else needs to be found."""
    return bool(runs) and all("text" in run.flags for run in runs)


def about_commands(runs: Sequence[Run], data_dir: str | None) -> str:
    """Where the commands of `list` run, and where they find their data."""
    where = f"The commands run in {ROOT}"
    if data_dir or all_text(runs):
        return f"{where}."
    default = directories.default_data_dir()
    download = all(run.module == Run("", {}).module for run in runs)  # the others never fetch their data
    missing = ", what is missing is downloaded there" if download else ""
    return f"{where} and look for the data in {default}{missing}: `list --data-dir DIR` makes them look in DIR."


def place(path: Path) -> str:
    """A path inside the repository relative to its root, where the commands run; other paths stay absolute."""
    path = path.resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def run_runs(table: Table, options: argparse.Namespace) -> int:
    if options.seconds_per_step is not None and not options.dry_run:
        raise BadInput("--seconds-per-step goes with --dry-run: add it, or leave both out to train.")
    if options.measure_again and (not options.dry_run or options.seconds_per_step is not None):
        raise BadInput("--measure-again goes with --dry-run and without --seconds-per-step, which measures nothing.")
    runs = chosen(table, options)
    if table.diverging or options.skip_collected:
        lines = result_files.read(table, options.results)
        runs = [r for r in runs if not (r.name in lines and (options.skip_collected or lines[r.name].get("diverged")))]
    if table.prepare and runs:
        table.prepare()
    if options.dry_run:
        given = options.seconds_per_step
        try:
            with stoppable():
                return estimate.tell(runs, options.runs_dir, options.jobs, given, options.measure_again)
        except Stopped as stopped:
            print(f"stopped by {stopped}; what has been measured is kept", file=sys.stderr)
            return 128 + stopped.number
    return runner.run_missing(runs, options.runs_dir, options.data_dir, options.jobs)


@contextmanager
def stoppable() -> Iterator[None]:
    """A context in which SIGINT and SIGTERM raise Stopped, so that the current work is cleaned up."""

    def stop(number: int, _frame: Any) -> None:
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def measure_runs(table: Table, options: argparse.Namespace) -> None:
    for name in result_files.measure(table, options.results):
        print(f"{result_files.file(table, options.results)}: measured {name}", flush=True)


def collect(table: Table, options: argparse.Namespace) -> None:
    new, kept = result_files.collect(table, options.runs_dir, options.results)
    print(f"{result_files.file(table, options.results)}: collected {', '.join(new)}")
    if kept:
        print(f"as they were: {names_of(kept)}")
    lacking = [run.name for run in table.runs if run.name not in [*new, *kept]]
    if lacking:
        print(f"not finished: {names_of(lacking)}")


def names_of(runs: list[str]) -> str:
    """The runs' names, or how many there are where more than ten would hide the rest of what is said."""
    return ", ".join(runs) if len(runs) <= 10 else f"{len(runs)} runs, see `list`"


def render(table: Table, options: argparse.Namespace) -> None:
    lines = result_files.read(table, options.results)
    options.results.mkdir(parents=True, exist_ok=True)
    page, made = options.results / f"{table.name}.md", []
    page.write_text(result_files.page(table, lines), encoding="utf-8")
    if table.picture:
        made = [options.results / f"{table.name}.png"]
        table.picture(lines, made[0])
    print(f"{' and '.join(map(str, [page, *made]))}: {len(lines)} of {len(table.runs)} runs")

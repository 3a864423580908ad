"""A run as data: a name, the flags of the training command, and the state of its run directory.

This module does not import JAX and reads only what is necessary, so that a table is listed at once.
"""

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments.harness import markdown
from fdg_jax.config import FIELDS
from fdg_jax.errors import BadInput
from fdg_jax.options.fields import words
from fdg_jax.runs import reading
from fdg_jax.runs.run_files import CONFIG, SUMMARY, read_json

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "experiments" / "results"
PYTHON = ".venv/bin/python"
MISSING, RUNNING, CUT_OFF, DONE = "missing", "running", "cut off", "done"


class Run(NamedTuple):
    """A run of the training command.

    name: the name of the run and of its directory.
    flags: options of the training command, by name. They include defaults on which the table depends, so that a line
        stays right after a default has changed.
    """

    name: str
    flags: Mapping[str, Any]
    module: str = "fdg_jax.experiments.cifar"

    def cell(self, seed: int | str | None = None) -> str:
        """The run's command for a cell of a page. seed: the text in place of the run's own seed."""
        made = self if seed is None else self._replace(flags={**self.flags, "seed": seed})
        return f"`{shlex.join(command(made, None, None))}`"


def on_text(run: Run) -> bool:
    """Whether the run trains on text or tokens, whose files are in its options."""
    return run.flags.get("dataset") in ("text", "tokens")


Lines = Mapping[str, Mapping[str, Any]]  # results by the names of their runs


class Table(NamedTuple):
    """A table: its runs, and how its page of results is made.

    blocks(lines): the texts for the names in braces of `pages/<page>.md.in`, made from the results alone.
    page: the name of the page's file, if it is not the table's name. The page's first line is the table's title.
    picture(lines, path): draws the results into a PNG file, if the table has a picture.
    shares: the name under which several tables keep their runs and results, so that a run of several tables is made
        once.
    shortened(epochs): the same table with shorter runs, if the table has such a version.
    then(lines): further runs, whose options follow from the lines of `runs`, such as runs with the tuned options.
    diverging: whether a diverged run is a result, too. The line of such a run has `diverged` and no error.
    prepare(): makes files that the runs need besides --data-dir, at paths in their options.
    measure(run): makes the result line of a run without the training command; such a run has no directory.
    """

    name: str
    runs: tuple[Run, ...]
    blocks: Callable[[Lines], Mapping[str, str]]
    picture: Callable[[Lines, Path], None] | None = None
    page: str = ""
    shares: str = ""
    shortened: "Callable[[int], Table] | None" = None
    measure: Callable[[Run], Mapping[str, Any]] | None = None
    then: Callable[[Lines], tuple[Run, ...]] | None = None
    diverging: bool = False
    prepare: Callable[[], None] | None = None

    @property
    def home(self) -> str:
        """The name of the directory of its runs, and of the file of its results."""
        return self.shares or self.name

    @property
    def title(self) -> str:
        return markdown.title(self.page or self.name)

    def document(self, lines: Lines) -> str:
        """The text of `results/<table>.md`."""
        return markdown.filled(self.page or self.name, {
            "name": self.name, "progress": markdown.progress(lines, len(self.runs)), "origin": markdown.origin(lines),
            **self.blocks(lines),
        })  # fmt: skip


class State(NamedTuple):
    """The state of a run.

    kind: missing, running, cut off or done.
    epochs: how many are trained.
    """

    kind: str
    epochs: float = 0.0
    test_error_percent: float | None = None

    def __str__(self) -> str:
        if self.kind == DONE:
            return f"done, test error {self.test_error_percent:.2f}%"
        return self.kind if self.kind == MISSING else f"{self.kind} at epoch {self.epochs:.2f}"


def command(run: Run, data_dir: str | None, run_dir: str | None, resume: bool = False) -> list[str]:
    """The command line of the run; the first word is the interpreter. Leaves out directories that are None."""
    flags = [word for name, value in run.flags.items() for word in words(name, value)]
    where = [("--data-dir", data_dir), ("--run-dir", run_dir)]
    places = [word for flag, place in where if place for word in (flag, place)]
    return [PYTHON, "-m", run.module, *flags, *places, *(["--resume"] * resume)]


def state(run: Run, runs_dir: Path) -> State:
    """The state of the run. Raises BadInput if the run's directory holds a run with other options."""
    path = runs_dir / run.name
    if not (path / CONFIG).is_file():
        return State(RUNNING if locked(path) else MISSING)
    check(run, path, read_json(path / CONFIG))
    events = reading.events(path)
    epochs = events[-1]["epoch"] if events else 0.0
    if os.path.lexists(path / SUMMARY):
        summary = reading.summary(path)
        if summary["epochs"] >= run.flags["epochs"]:
            return State(DONE, summary["epochs"], summary["test_error_percent"])
    return State(RUNNING if locked(path) else CUT_OFF, epochs)


def check(run: Run, path: Path, config: Mapping[str, Any]) -> None:
    """Raises BadInput unless the run was made with exactly the table's options (as given, or with all defaults filled
    in).

    Options that were added to the command after the run was made are ignored.
    """
    reading.check(path / CONFIG, config, {"asked": dict}, "Use another --runs-dir.", absent={})
    asked = {**config, **config.get("asked", {})}
    free = {name for name, field in FIELDS.items() if field.free} - {"steps"}
    rest = {name: field.default for name, field in FIELDS.items() if name not in free}
    wanted = {name: value for name, value in rest.items() if name in asked} | dict(run.flags)
    unsettled = {name: value for name, value in wanted.items() if config.get(name) != value}
    differing = differences(unsettled, asked)
    if differing:
        raise BadInput(f"{path} holds another run than {run.name}: {differing}. Use another --runs-dir.")


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """`epochs is 2, not 5`, for each option that differs; empty if none does."""
    return ", ".join(
        f"{name} is {found.get(name)}, not {value}" for name, value in wanted.items() if found.get(name) != value
    )


def locked(path: Path) -> bool:
    """Whether a process is writing the run.

    It reads the kernel's list of locks, since trying the lock could keep a starting run from getting the lock. Without
    such a list (not Linux), the answer is False.
    """
    try:
        status, locks = path.stat(), Path("/proc/locks").read_text(encoding="utf-8")
    except OSError:
        return False
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(device in line.split() for line in locks.splitlines())

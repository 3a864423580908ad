"""A run as data: a name and the flags of the training command; and the state of its run directory.

JAX is not imported here, and no more is read than necessary, so that listing a table is immediate.
"""

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fdg_jax.errors import BadInput
from fdg_jax.runs import reading
from fdg_jax.runs.options import FIELDS, spelled
from fdg_jax.runs.run_files import CONFIG, SUMMARY, read_json

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "experiments" / "results"
PYTHON = ".venv/bin/python"
MISSING, RUNNING, CUT_OFF, DONE = "missing", "running", "cut off", "done"


class Run(NamedTuple):
    """name: of the run directory too. flags: options of the training command by their names in `Options`, all
    that the table depends on, defaults included, so that the line still says it when a default changes."""

    name: str
    flags: Mapping[str, Any]
    module: str = "fdg_jax.experiments.cifar"


Lines = Mapping[str, Mapping[str, Any]]  # results by the names of their runs


class Table(NamedTuple):
    """A table: its runs, and how its page of results is made.

    document(lines): the table and its text in Markdown, made from the results alone.
    picture(lines, path): draws the curves into a PNG file, where the table has a picture.
    shares: the name under which several tables keep their runs and results, so that a run which two of them show is
      made and kept once.
    shortened(epochs): the same table with shorter runs, where the table has that.
    measure(run): the result line of a run that is not a training by the command; such a run has no directory.
    """

    name: str
    summary: str
    title: str
    runs: tuple[Run, ...]
    document: Callable[[Lines], str]
    picture: Callable[[Lines, Path], None] | None = None
    shares: str = ""
    shortened: "Callable[[int], Table] | None" = None
    measure: Callable[[Run], Mapping[str, Any]] | None = None

    @property
    def home(self) -> str:
        """The name of the directory of its runs and of the file of its results."""
        return self.shares or self.name


class State(NamedTuple):
    """kind: missing, running, cut off or done. epochs: how many have been trained."""

    kind: str
    epochs: float = 0.0
    test_error_percent: float | None = None

    def __str__(self) -> str:
        if self.kind == DONE:
            return f"done, test error {self.test_error_percent:.2f}%"
        return self.kind if self.kind == MISSING else f"{self.kind} at epoch {self.epochs:.2f}"


def command(run: Run, data_dir: str | None, run_dir: str | None, resume: bool = False) -> list[str]:
    """The command line that makes the run; the first word is the interpreter of the virtual environment.
    Directories that are None are left out of it."""
    flags = [word for name, value in run.flags.items() for word in (spelled(name), written(value))]
    where = [("--data-dir", data_dir), ("--run-dir", run_dir)]
    places = [word for flag, place in where if place for word in (flag, place)]
    return [PYTHON, "-m", run.module, *flags, *places, *(["--resume"] * resume)]


def written(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def shown(words: list[str]) -> str:
    return shlex.join(words)


def state(run: Run, runs_dir: Path) -> State:
    """The state of the run. Raises BadInput if its directory holds a run with other options."""
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
    """A number is the table's only if the run was asked for with the table's options and no others. Options
    that were added to the command after the run was made are ignored."""
    reading.check(path / CONFIG, config, {"asked": dict}, "Use another --runs-dir.", absent={})
    asked = {**config, **config.get("asked", {})}
    free = {name for name, field in FIELDS.items() if field.metadata["free"]} - {"steps"}
    rest = {name: field.default for name, field in FIELDS.items() if name not in free}
    wanted = {name: value for name, value in rest.items() if name in asked} | dict(run.flags)
    differing = differences(wanted, asked)
    if differing:
        raise BadInput(f"{path} holds another run than {run.name}: {differing}. Use another --runs-dir.")


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """`epochs is 2, not 5`, for each option that is not as wanted; empty where all are."""
    return ", ".join(
        f"{name} is {found.get(name)}, not {value}" for name, value in wanted.items() if found.get(name) != value
    )


def locked(path: Path) -> bool:
    """Whether a process is writing the run. Read from the kernel's list: trying the lock could keep a run
    that is just starting from getting it. Where there is no such list (not Linux), nothing is known: False.
    """
    try:
        status, locks = path.stat(), Path("/proc/locks").read_text(encoding="utf-8")
    except OSError:
        return False
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(device in line.split() for line in locks.splitlines())

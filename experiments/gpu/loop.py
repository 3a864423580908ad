"""The loop that works through a list of steps over several calls, and the files that it keeps between calls.

results/<step>.jsonl has the results of a step. It is written completely or not at all, so a kill or a power cut never
leaves half a step. A failed step is done again.
"""

import contextlib
import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness.children import ChildFailed
from experiments.gpu.settings import Settings
from experiments.harness.estimate import duration
from fdg_jax import durable
from fdg_jax.errors import BadInput
from fdg_jax.machine.signals import Signals
from fdg_jax.runs import locking
from fdg_jax.runs.run_files import git_commit

CHECK, SPEED, ROWS = "check", "speed", "rows"
CHOSEN = "chosen.json"
RESERVE_SECONDS, RESERVE_SHARE = 30.0, 0.1  # for stopping: the time to write checkpoints
# A step that may not fit is begun anyway if this share of a call is left, since a later call has little more time.
MOST_OF_A_CALL = 0.8
Line = Mapping[str, Any]


def lines_of(file: Path) -> list[dict[str, Any]]:
    """The lines of a file of results; [] if it is not there."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []


def write_lines(file: Path, lines: Sequence[Line]) -> None:
    """Writes a file of results, whole or not at all."""
    durable.write(file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())


class TimeIsUp(Exception):
    """The time of this call is over. Steps go on in the next call."""


class Clock(Signals):
    """A context for the time limit and signals. Inside `interruptible`, the end of the time raises TimeIsUp and a
    signal raises Stopped, wherever the main thread is. Outside of `interruptible`, both only set flags: `over` and
    `number`.
    seconds: the limit of the whole call, from now on."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds, self.began, self.over = seconds, time.monotonic(), False
        self.reserve = min(RESERVE_SECONDS, RESERVE_SHARE * seconds)

    def __enter__(self) -> "Clock":
        super().__enter__()
        self.alarm_before = signal.signal(signal.SIGALRM, self.ring)
        signal.setitimer(signal.ITIMER_REAL, max(0.001, self.left()))
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.alarm_before)
        super().__exit__()

    def ring(self, _number: int, _frame: Any) -> None:
        self.over = True
        if self.raising:
            raise TimeIsUp

    def left(self) -> float:
        """Seconds until steps are interrupted."""
        return self.began + self.seconds - self.reserve - time.monotonic()

    def left_to_stop(self) -> float:
        """Seconds until all work must have stopped; at least 1."""
        return max(1.0, self.began + self.seconds - time.monotonic())

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        with self.at_once():
            if self.over:
                raise TimeIsUp
            yield


class Folder:
    """The folder of results. path: its path. rows: the folder of run directories. scratch: a folder for temporary
    files."""

    def __init__(self, path: Path):
        self.path = path.resolve()
        self.results, self.rows, self.scratch = (self.path / name for name in ("results", "rows", "scratch"))

    @contextlib.contextmanager
    def held(self, chosen: Mapping[str, Any]) -> Iterator[None]:
        """Makes the folder and locks out other processes. Raises BadInput if another process holds it, or its results
        were made with other choices."""
        with locking.held(self.path, "--folder"), contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self.scratch, ignore_errors=True)
            shutil.rmtree(self.scratch, ignore_errors=True)
            for folder in (self.results, self.rows, self.scratch):
                durable.make_folder(folder)
            [before] = lines_of(self.path / CHOSEN) or [chosen]
            changed = [f"{name} is {now} and was {before.get(name)}" for name, now in chosen.items()
                       if before.get(name) != now]  # fmt: skip
            if changed:
                fact = f"{self.path} was begun with other choices: {'; '.join(changed)}"
                raise BadInput(f"{fact}. Give the same choices again, or another --folder.")
            write_lines(self.path / CHOSEN, [chosen])
            yield

    def file(self, step: str) -> Path:
        return self.results / f"{step}.jsonl"

    def lines(self, step: str) -> list[dict[str, Any]]:
        """The results of a step; [] if there are none yet."""
        return lines_of(self.file(step))

    def done(self, step: str) -> bool:
        return self.file(step).is_file() and all(line.get("passed", True) for line in self.lines(step))

    def failed(self, step: str) -> bool:
        return self.file(step).is_file() and not self.done(step)

    def line(self, step: str) -> dict[str, Any]:
        """The result of a step that has one line; {} if it is not finished."""
        return self.lines(step)[0] if self.done(step) else {}

    def finish(self, step: str, lines: Sequence[Line]) -> None:
        write_lines(self.file(step), lines)

    def place(self, name: str) -> Path:
        """A new path for a temporary file or folder."""
        self.scratch.mkdir(exist_ok=True)
        return self.scratch / f"{name}-{sum(1 for _ in self.scratch.iterdir())}"

    def bytes(self) -> int:
        """The size in bytes of all files that are kept."""
        files = [file for file in self.path.rglob("*") if file.is_file() and self.scratch not in file.parents]
        return sum(file.stat().st_size for file in files)


class Choices(NamedTuple):
    """The choices on the command line besides the settings.

    rows: patterns of the rows' names. precision: that of the rows. hours: a network whose rows take longer is left out.
        accepted: checks that may fail. only: patterns of the steps to do. data_dir: where the data are.
    results: where finished rows are collected.
    """

    rows: tuple[str, ...] = ("resnet20-*",)
    precision: str = "float32"
    hours: float = 12.0
    accepted: tuple[str, ...] = ()
    only: tuple[str, ...] = ("*",)
    data_dir: Path | None = None
    results: Path | None = None


class Workplace(NamedTuple):
    """The arguments of every step."""

    settings: Settings
    folder: Folder
    clock: Clock
    choices: Choices


class Step(NamedTuple):
    """A step, which is done once.

    run(at): does the step and returns its lines, each with `says`, and for a check also `passed`. An exception may
        interrupt `run` anywhere; it then ends the processes that it started.
    needs: names of the steps whose results it reads, or that must have passed.
    takes(at): how many seconds the step still takes; None if this is not known yet; by default the guess in the
        settings.
    refused(at): why the step cannot be done now; "" if it can.
    goes_on: whether an interrupted step continues where it was; otherwise it is repeated from the start.
    """

    name: str
    kind: str
    about: str
    run: Callable[[Workplace], Sequence[Line]]
    needs: tuple[str, ...] = ()
    takes: Callable[[Workplace], float | None] | None = None
    refused: Callable[[Workplace], str] = lambda at: ""
    goes_on: bool = False

    def seconds(self, at: Workplace) -> float | None:
        return self.takes(at) if self.takes else at.settings.guesses.get(self.name.partition("@")[0])


def passed(name: str, at: Workplace) -> bool:
    return at.folder.done(name) or (at.folder.failed(name) and name in at.choices.accepted)


def refusal(step: Step, steps: Sequence[Step], at: Workplace) -> str:
    """Why a step cannot be begun now; "" if it can."""
    for name in step.needs:
        if name in [other.name for other in steps] and not passed(name, at):
            return f"after {name}" + (", which failed" if at.folder.failed(name) else "")
    return step.refused(at)


def shown(steps: Sequence[Step], at: Workplace) -> str:
    """The plan: every step, its state, its time, and whether it still fits into this call."""
    lines, left, unknown, room = [], 0.0, 0, at.clock.left()
    for step in steps:
        if at.folder.done(step.name):
            lines.append((step.name, "done", "", step.about))
            continue
        seconds, why = step.seconds(at), refusal(step, steps, at)
        state = "failed" if at.folder.failed(step.name) else "left"
        fits = "fits" if (seconds or 0.0) <= room else "in part" if step.goes_on and room > 0 else "later"
        told = "time not known" if seconds is None else f"about {duration(seconds)}, {fits}"
        lines.append((step.name, state, told, step.about + (f" ({why})" if why else "")))
        room, left, unknown = room - (seconds or 0.0), left + (seconds or 0.0), unknown + (seconds is None)
    width = max(len(name) for name, *_ in lines)
    text = [f"{name:{width}}  {state:6}  {told:26}  {about}".rstrip() for name, state, told, about in lines]
    known = [f"about {duration(left)}"] if left or not unknown else []
    known += [f"{unknown} of unknown length"] if unknown else []
    text.append(f"work left: {', and '.join(known)}; time left in this call: {duration(max(0.0, at.clock.left()))}")
    return "\n".join(text)


def work(steps: Sequence[Step], at: Workplace) -> int:
    """Does the remaining steps in order. Returns the number of steps that failed. Raises TimeIsUp and Stopped."""
    failed = 0
    for step in steps:
        if passed(step.name, at) or not any(fnmatchcase(step.name, pattern) for pattern in at.choices.only):
            continue
        seconds, left, why = step.seconds(at), at.clock.left(), refusal(step, steps, at)
        beginning = left > MOST_OF_A_CALL * (at.clock.seconds - at.clock.reserve)
        if not why and seconds is not None and seconds > left and not step.goes_on and not beginning:
            why = f"this part takes about {duration(seconds)}, but {duration(max(left, 0))} are left"
        if why:
            print(f"not begun  {step.name}: {why}", flush=True)
        else:
            failed += not do(step, at)
    return failed


def do(step: Step, at: Workplace) -> bool:
    """Does one step and saves its lines. Returns whether it succeeded."""
    print(f"begun      {step.name}: {step.about}", flush=True)
    began = time.monotonic()
    try:
        with at.clock.interruptible():
            lines = step.run(at)
    except (ChildFailed, BadInput) as error:
        lines = [{"passed": False, "says": str(error)}]
    well, seconds = all(line.get("passed", True) for line in lines), round(time.monotonic() - began, 1)
    at.folder.finish(step.name, [stamp(step, line, seconds, at) for line in lines])
    for line in lines:
        mark = "passed" if line.get("passed") else "failed" if "passed" in line else "measured"
        print(f"{mark:9}  {step.name}: {line['says']}", flush=True)
    return well


def stamp(step: Step, line: Line, seconds: float, at: Workplace) -> dict[str, Any]:
    """A result with the device, versions and time of its measurement. seconds: the time of the whole step in its last
    call."""
    device = at.folder.line("devices") or line
    where = {name: device.get(name) for name in ("device", "jax", "python")}
    when = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "commit": git_commit()}
    return {"part": step.name, "kind": step.kind, **line, "part_seconds": seconds, **where, **when}

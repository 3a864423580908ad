"""The order of the parts, what each still takes, and the work itself."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from benchmarks.harness.turns import WorkerDied
from experiments.gpu.children import ChildFailed
from experiments.gpu.clock import Clock
from experiments.gpu.folder import Folder, Line
from experiments.gpu.settings import Settings
from experiments.harness.estimate import duration
from fdg_jax.errors import BadInput
from fdg_jax.runs.run_files import git_commit

CHECK, SPEED, ROWS = "check", "speed", "rows"
# A part that may not fit is begun all the same while so much of a call is left: it never fits better.
MOST_OF_A_CALL = 0.8


class Choices(NamedTuple):
    """What the command line says besides the settings. rows: patterns of their names. precision: of the rows. hours:
    a network whose rows would take longer is left out. accepted: checks whose failure stops nothing. only:
    patterns of the parts to do. data_dir, brought: the data, and folders in which parts of it may have arrived.
    results: where finished rows are collected."""

    rows: tuple[str, ...] = ("resnet20-*",)
    precision: str = "float32"
    hours: float = 12.0
    accepted: tuple[str, ...] = ()
    only: tuple[str, ...] = ("*",)
    data_dir: Path | None = None
    brought: tuple[Path, ...] = ()
    results: Path | None = None


class Workplace(NamedTuple):
    """What every part is given."""

    settings: Settings
    folder: Folder
    clock: Clock
    choices: Choices


class Part(Protocol):
    """Something that is done once. needs: names of parts whose results it reads, or that must have passed. goes_on:
    whether it goes on where it was interrupted, else it begins again."""

    name: str
    kind: str
    about: str
    needs: tuple[str, ...]
    goes_on: bool

    def seconds(self, at: Workplace) -> float | None:
        """How long it still takes, None if that is not known yet."""
        ...

    def refused(self, at: Workplace) -> str:
        """Why it cannot be done here and now, "" if it can."""
        ...

    def run(self, at: Workplace) -> list[Line]:
        """Its results: lines with `says`, and of a check also `passed`. May be interrupted anywhere by an exception,
        and ends whatever it started."""
        ...


class Once:
    """A part that is begun again when it was interrupted. Its time is guessed."""

    goes_on = False
    needs: tuple[str, ...] = ()

    def __init__(self, name: str, kind: str, about: str):
        self.name, self.kind, self.about = name, kind, about

    def seconds(self, at: Workplace) -> float | None:
        return at.settings.guesses.get(self.name.partition("@")[0])

    def refused(self, at: Workplace) -> str:
        return ""


def shown(parts: Sequence[Part], at: Workplace) -> str:
    """The plan: every part, its state, its time, and whether it still fits into this call."""
    lines, left, unknown = [], 0.0, 0
    room = at.clock.left()
    for part in parts:
        if at.folder.done(part.name):
            lines.append((part.name, "done", "", part.about))
            continue
        seconds, why = part.seconds(at), refusal(part, parts, at)
        state = "failed" if at.folder.lines(part.name, failed=True) else "left"
        told = "time not known" if seconds is None else f"about {duration(seconds)}, {fit(part, seconds, room)}"
        lines.append((part.name, state, told, part.about + (f" ({why})" if why else "")))
        room -= seconds or 0.0
        left += seconds or 0.0
        unknown += seconds is None
    width = max(len(name) for name, *_ in lines)
    text = [f"{name:{width}}  {state:6}  {told:26}  {about}".rstrip() for name, state, told, about in lines]
    parts_unknown = [f"{unknown} of unknown length"] if unknown else []
    known = [f"about {duration(left)}"] if left or not unknown else []
    remaining = f"left: {', and '.join([*known, *parts_unknown])}"
    return "\n".join([*text, f"{remaining}; this call works for {duration(max(0.0, at.clock.left()))}"])


def fit(part: Part, seconds: float, room: float) -> str:
    """Whether a part that takes so long fits into the seconds that are left, in words."""
    if seconds <= room:
        return "fits"
    return "in part" if part.goes_on and room > 0 else "later"


def refusal(part: Part, parts: Sequence[Part], at: Workplace) -> str:
    """Why a part cannot be begun now, "" if it can."""
    for name in part.needs:
        if name in [other.name for other in parts] and not passed(name, at):
            failed = at.folder.lines(name, failed=True)
            return f"after {name}, which failed" if failed else f"after {name}"
    return part.refused(at)


def passed(name: str, at: Workplace) -> bool:
    failed = bool(at.folder.lines(name, failed=True))
    return at.folder.done(name) or (failed and name in at.choices.accepted)


def work(parts: Sequence[Part], at: Workplace) -> int:
    """Does what is left, in order. Returns the number of parts that failed. Raises TimeIsUp and Stopped."""
    failed = 0
    for part in parts:
        if passed(part.name, at) or not any(fnmatchcase(part.name, pattern) for pattern in at.choices.only):
            continue
        if why := refusal(part, parts, at):
            print(f"not begun  {part.name}: {why}", flush=True)
            continue
        seconds, left = part.seconds(at), at.clock.left()
        beginning = left > MOST_OF_A_CALL * (at.clock.seconds - at.clock.reserve)
        if seconds is not None and seconds > left and not part.goes_on and not beginning:
            print(f"not begun  {part.name}: it takes about {duration(seconds)}, {duration(max(left, 0))} are left")
            continue
        failed += not do(part, at)
    return failed


def do(part: Part, at: Workplace) -> bool:
    """Does one part and keeps its lines. Returns whether all went well."""
    print(f"begun      {part.name}: {part.about}", flush=True)
    began = time.monotonic()
    try:
        with at.clock.interruptible():
            lines = part.run(at)
    except (ChildFailed, WorkerDied, BadInput) as error:
        lines = [{"passed": False, "says": str(error)}]
    well = all(line.get("passed", True) for line in lines)
    stamped = [stamp(part, line, time.monotonic() - began, at) for line in lines]
    (at.folder.finish if well else at.folder.fail)(part.name, stamped)
    for line in lines:
        mark = "passed" if line.get("passed") else "failed" if "passed" in line else "measured"
        print(f"{mark:9}  {part.name}: {line['says']}", flush=True)
    return well


def stamp(part: Part, line: Line, seconds: float, at: Workplace) -> dict[str, Any]:
    """A result with what it was measured on. seconds: of the whole part, in the call that finished it."""
    device = at.folder.line("devices") or line
    where = {name: device.get(name) for name in ("device", "jax", "python")}
    when = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "commit": git_commit()}
    return {"part": part.name, "kind": part.kind, **line, "part_seconds": round(seconds, 1), **where, **when}

"""`live.json`: where a run stands right now and how it ended, for who watches it (`python -m fdg_jax.watch`).

Every process that trains writes a file of its own over and over: process 0 `live.json`, process n `live-n.json`. A run
needs them for nothing. So they are not flushed to the disk, and what cannot be written is left out.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from fdg_jax.options.values import fits
from fdg_jax.storage import strict_json
from fdg_jax.storage.strict_json import finite
from fdg_jax.storage.temporary_files import start_of

LIVE = "live.json"
ENDED = "ended"  # of `doing`: the process has said how it ends
MOST_BYTES = 2**20  # of a file that is read
MOST_PROCESSES = 4096


class LiveStage(NamedTuple):
    """What a stage does.

    operation: what it worked on at the last look, such as "F12"; None: nothing.
    forward, backward: the newest batch whose forward pass, whose backward pass is finished.
    under_way: operations that were dispatched and are not finished.
    staleness: the most updates between the forward pass of a batch and the update by it, so far.
    busy_percent: in how many of so many `samples` of this session it computed. recent_busy_percent: of the newest ones.
    """

    k: int
    operation: str | None = None
    forward: int | None = None
    backward: int | None = None
    under_way: int | None = None
    staleness: int | None = None
    busy_percent: float | None = None
    recent_busy_percent: float | None = None
    samples: int = 0


class Live(NamedTuple):
    """What a process says of itself.

    unix_seconds: when it was written. doing: starting, compiling, training, evaluating, finishing or
    ENDED. step: the batches that have entered, of `steps`.
    started: when the system started the process, by its own count: a number is given to another process one day.
    train_loss: of the newest batch. per_second: images or tokens (`unit`). seconds_left: until the last batch.
    ended_by: what ended the training before its end, in words. exit_code: of the process, once it is known.
    """

    doing: str
    unix_seconds: float = 0.0
    pid: int = 0
    host: str = ""
    started: int | None = None
    process: int = 0
    processes: int = 1
    step: int = 0
    steps: int = 0
    train_loss: float | None = None
    per_second: float | None = None
    unit: str = "images"
    seconds_left: float | None = None
    ended_by: str = ""
    exit_code: int | None = None
    stages: tuple[LiveStage, ...] = ()


PARTS = get_type_hints(LiveStage)  # what a file has to have, and of which kind
FIELDS = {name: kind for name, kind in get_type_hints(Live).items() if name != "stages"}


def file_of(process: int) -> str:
    """The name of a process's file."""
    return LIVE if process == 0 else f"live-{process}.json"


def write(run: Path, live: Live) -> None:
    """Writes a process's file, with the time and who writes. What cannot be written is left out."""
    now, path = time.time(), run / file_of(live.process)
    beside = path.with_name(path.name + ".part")
    try:
        who = {"pid": os.getpid(), "host": socket.gethostname(), "started": start_of(os.getpid())}
        content = live._asdict() | {"unix_seconds": round(now, 3), **who}
        content["stages"] = [stage._asdict() for stage in live.stages]
        content = {"written": datetime.fromtimestamp(now).astimezone().isoformat(timespec="seconds"), **content}
        content = {name: finite(value) for name, value in content.items()}
        beside.write_text(json.dumps(content, allow_nan=False) + "\n", encoding="utf-8")
        beside.replace(path)
    except (OSError, ValueError):
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def end(run: Path, process: int, code: int) -> None:
    """Adds the exit code of this process to its file. (Another run may have taken the directory's place.)"""
    before = read(run, process)
    if before is not None and before.pid == os.getpid():
        write(run, before._replace(doing=ENDED, exit_code=code))


def read(run: Path, process: int = 0) -> Live | None:
    """What a process has written last; None where there is nothing that can be read."""
    path = run / file_of(process)
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        content = strict_json.read(path)
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or not all(fits(content.get(name), kind) for name, kind in FIELDS.items()):
        return None
    stages = content.get("stages")
    # A file of an earlier version has no `started`.
    found = {"started": None, **{name: content[name] for name in FIELDS if name in content}}
    return Live(**found, stages=tuple(stages_of(stages if isinstance(stages, list) else ())))


def stages_of(found: Sequence[Any]) -> list[LiveStage]:
    """The stages in a file. One that is damaged is left out."""
    whole = [each for each in found if isinstance(each, Mapping)]
    whole = [each for each in whole if all(fits(each.get(name), kind) for name, kind in PARTS.items())]
    shares = ("busy_percent", "recent_busy_percent")
    whole = [each for each in whole if each["k"] >= 1 and all(0 <= (each[name] or 0) <= 100 for name in shares)]
    return [LiveStage(**{name: each[name] for name in PARTS}) for each in whole]


def read_all(run: Path) -> dict[int, Live]:
    """What the processes of a run have written last, by their numbers: {} where process 0 has written nothing."""
    first = read(run)
    if first is None:
        return {}
    others = {process: read(run, process) for process in range(1, min(first.processes, MOST_PROCESSES))}
    return {0: first, **{process: live for process, live in others.items() if live is not None}}


def busy(run: Path) -> dict[int, float]:
    """By stage, at which share of the looks of the newest session it computed, in percent, where that is known."""
    stages = (stage for live in read_all(run).values() for stage in live.stages)
    return {stage.k: stage.busy_percent for stage in stages if stage.busy_percent is not None}

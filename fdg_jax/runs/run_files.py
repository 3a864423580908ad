"""The files of a run directory: the run's options, its events step by step, and its results.

`config.json` and `summary.json` appear completely or not at all. `metrics.jsonl` is passed to the system line by line,
so that a killed process loses no line. It is flushed to the disk before a checkpoint that records its number of lines
is complete. Resuming cuts it back to its length at the checkpoint, so that an interrupted run has the same lines as an
uninterrupted one.

`incidents.jsonl` lists non-finite values and rollbacks to a checkpoint. `stalls.jsonl` lists operations without
progress. Both files keep their lines when `metrics.jsonl` is cut back. A file is created with its first line. Failures
to write or read are ignored, since the run does not need these files.
"""

import contextlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from fdg_jax import durable, own_files, strict_json
from fdg_jax.config import FIELDS, Config
from fdg_jax.errors import BadInput, Unreadable
from fdg_jax.machine import facts
from fdg_jax.options.fields import fits
from fdg_jax.strict_json import finite

CONFIG, METRICS, SUMMARY, CHECKPOINTS = "config.json", "metrics.jsonl", "summary.json", "checkpoints"
LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy", "fdg_jax")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file completely or not at all. A written file survives a power cut."""
    text = json.dumps({key: finite(value) for key, value in content.items()}, indent=2, allow_nan=False)
    durable.write(path, f"{text}\n".encode())


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises BadInput if the file holds anything else; the values are not checked."""
    try:
        content = strict_json.read(path)
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist.") from None
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise BadInput(f"{path} cannot be read: {error}. Start a new run in another --run-dir.") from None
    if not isinstance(content, dict):
        raise BadInput(f"{path} is not a JSON object. Start a new run in another --run-dir.")
    return content


def there(path: Path) -> bool:
    """Whether a path exists. Raises Unreadable if the system does not tell, as in another user's folder."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror or error}.") from None
    return True


def not_written(path: Path, error: OSError) -> str:
    """The message if the disk is full or the run directory is gone. Raises any other error."""
    if not path.is_dir():
        fact = f"error: the run directory {path} does not exist any more"
        return f"{fact}. It was deleted or renamed during the run."
    if not durable.is_disk_full(error):
        raise error
    fact = f"error: {path} cannot be written: {error.strerror}. Files saved earlier are kept"
    return f"{fact}. Make room on the disk, then go on with --resume."


def unit(of: Mapping[str, Any]) -> str:
    """The unit of speed in summary.json, or in a line of metrics.jsonl: "images" or "tokens"."""
    return "tokens" if "tokens_per_second" in of else "images"


def cut_back(path: Path, lines: int) -> int:
    """Keeps the first `lines` complete lines of a file and drops the rest. Returns how many are left."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        kept = [line for line in islice(file, lines) if line.endswith(b"\n")]
    durable.write(path, b"".join(kept))
    return len(kept)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All events of a `metrics.jsonl`. Raises BadInput as `metrics` does."""
    return list(metrics(path))


def metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Reads the events of a `metrics.jsonl`, one after the other.

    Ignores an incomplete last line, which a process was writing when it died.

    Raises:
        BadInput: another line is no event, or has an impossible value.
    """
    if not os.path.lexists(path):
        return
    try:
        for number, line in enumerate(strict_json.lines(path), 1):
            if line.endswith(b"\n"):
                yield event_of(path, number, line)
    except BadInput:
        raise
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise BadInput(f"{path} is damaged: {error}. Remove it, or start a new run in another --run-dir.") from None


def newest_points(run: Path) -> dict[str, int]:
    """The batch of the newest point in a run's curves, for "train" and "test"; {} if metrics.jsonl cannot be read."""
    try:
        return {"train" if "train_loss" in event else "test": event["step"] for event in metrics(run / METRICS)}
    except BadInput:
        return {}


# What the numbers in a line, and in a summary, may be: (type, least, most); 0 is always possible. Losses and learning
# rates are float32.
EVENT: Mapping[str, tuple[Any, float, float]] = {
    "step": (int, 0, 10**12),
    "epoch": (float, 0.0, 1e12),
    "train_loss": (float | None, -1e39, 1e39),
    "test_loss": (float | None, -1e39, 1e39),
    "test_error_percent": (float, 0.0, 100.0),
    "learning_rate": (float, 0.0, 1e39),
    "images_per_second": (float | None, 1e-9, 1e15),
    "tokens_per_second": (float | None, 1e-9, 1e15),
    "test_bits_per_byte": (float | None, -1e39, 1e39),
}
NUMBERS = {**EVENT, "steps": (int, 0, 10**12), "epochs": (float, 0.0, 1e12), "seconds": (float, 0.0, 1e12)}


def event_of(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """The event in a line, with the entries that this version knows. Raises BadInput if the line is no event or has an
    impossible value, so that readers need not check."""
    way_out = "Start a new run in another --run-dir."
    try:
        event = strict_json.parse(line)
    except ValueError as error:
        raise BadInput(f"{path}, line {number} is damaged: {line[:40]!r} ({error}). {way_out}") from None
    if not isinstance(event, dict) or "step" not in event:
        raise BadInput(f"{path}, line {number} is damaged: {line[:40]!r}. {way_out}")
    if wrong := impossible(event):
        raise BadInput(f"{path}, line {number} is damaged: {wrong}. {way_out}")
    return {name: event[name] for name in EVENT if name in event}


def impossible(found: Mapping[str, Any]) -> str:
    """Names an entry of an event, or of a summary, with an impossible value; "" if all are possible."""
    for name, (kind, least, most) in NUMBERS.items():
        value = found.get(name, 0)
        if not fits(value, kind) or (value and not least <= value <= most):
            return f"{name} is {repr(value)[:40]}"
    return ""


def config(used: Config, asked: Config, devices: list[str], note: str) -> dict[str, Any]:
    """The content of config.json.

    Arguments:
        used: the options with all defaults filled in.
        asked: the options before that.
        devices: the devices of the stages k = 1..K.
        note: what the user must know about the data.
    """

    def values(options: Config) -> dict[str, Any]:
        return {name: getattr(options, name) for name in FIELDS if name != "resume"}

    return {
        **values(used),
        **({own_files.CODE: code} if (code := own_files.facts(values(used))) else {}),
        "asked": values(asked),
        "note": note,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        **facts.describe(),
        "devices": devices,
        "git_commit": git_commit(),
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def continued(stored: dict[str, Any], now: dict[str, Any], batch: int) -> dict[str, Any]:
    """The config of a run that is resumed after `batch`, with the new values of options that may change and the new
    session."""
    free = {name: now[name] for name, field in FIELDS.items() if field.free and name != "resume"}
    names = ("started", "versions", "devices", "git_commit", "processor", "usable_cores", "cpu_devices", "xla_flags")
    session = {"batch": batch, **{name: now[name] for name in (*names, "matmul_precision", "jax_settings")}}
    return {**stored, **free, "resumed": [*stored.get("resumed", []), session]}


def version(library: str) -> str | None:
    """The version of a library; None if it is not installed."""
    try:  # fdg_jax imports this module, so it is not imported here
        return sys.modules["fdg_jax"].__version__ if library == "fdg_jax" else metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def git_commit() -> str | None:
    """The commit of the source tree that this package runs from, with "-dirty" if code differs; None without git."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    no_code = [":(exclude)*.md", ":(exclude)*/results/*"]  # measurements write their tables there
    asked = (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "--", ".", *no_code])
    try:
        commit, changes = (
            subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True)
            for words in asked
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.stdout.strip() + "-dirty" * bool(changes.stdout.strip())


INCIDENTS, STALLS = "incidents.jsonl", "stalls.jsonl"
MOST_EVENTS = 1000  # lines that are read


class Incident(NamedTuple):
    """An event in a run. step: the batch that had entered last. fact: a sentence."""

    step: int
    fact: str


def append_event(path: Path, event: Mapping[str, Any]) -> None:
    """Adds an event to a JSON lines file."""
    with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


def add_incident(run: Path, step: int, fact: str) -> None:
    """Adds an incident."""
    append_event(run / INCIDENTS, {"step": step, "fact": fact})


def read_incidents(run: Path) -> list[Incident]:
    """All of a run's incidents, in the order in which they happened."""
    pairs = [(line.get("step"), line.get("fact")) for line in read_events(run / INCIDENTS)]
    return [Incident(step, fact) for step, fact in pairs if isinstance(step, int) and isinstance(fact, str)]


def stalls(run: Path) -> int:
    """The number of reported stalls."""
    return len(read_events(run / STALLS))


def read_events(path: Path) -> list[dict[str, Any]]:
    """The objects in a JSON lines file."""
    found = []
    with contextlib.suppress(OSError, ValueError):  # ValueError: a line that is too long
        for line in islice(strict_json.lines(path), MOST_EVENTS):
            with contextlib.suppress(ValueError):
                found.append(strict_json.parse(line))
    return [each for each in found if isinstance(each, dict)]

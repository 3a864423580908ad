"""Reads and checks what an earlier session wrote, so that a damaged file gives one clear message.

Files of a run may be edited by hand, cut off by a full disk, or from another version. Callers can use the values
without further checks.

The lines of metrics.jsonl take bounded memory: if there are very many, neighbouring lines are merged. A curve looks
the same.
"""

import os
import types
from bisect import insort
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fdg_jax import own_files
from fdg_jax.checks import options as checks
from fdg_jax.config import FIELDS, Config, defaults_of_others, run_length
from fdg_jax.errors import BadInput
from fdg_jax.machine import jax_settings
from fdg_jax.options.fields import described, fits, spelled
from fdg_jax.runs.run_files import CONFIG, METRICS, NUMBERS, SUMMARY, impossible, metrics, read_json

CONFIG_NEEDS = {"note": str, "devices": list, "versions": dict, "asked": dict}
CONFIG_MAY_HAVE = {
    "resumed": list | None,
    "cpu_devices": int | None,
    "xla_flags": str | None,
    "jax_settings": dict | None,
    "stages": list | None,
    "inputs": dict | None,
}
SUMMARY_NEEDS = ("steps", "epochs", "test_error_percent", "seconds")
SUMMARY_LISTS = ("staleness", "updates", "stage_parameters")
# The types of the elements of lists.
ELEMENTS = {
    "devices": str, "resumed": dict, "stages": dict, "staleness": int, "updates": int, "stage_parameters": int,
    "evaluations": dict, "epoch": float, "train_loss": float | None,  # of a curve
}  # fmt: skip
# Entries of each stage, where they are known.
OF_STAGE = {"first_block": int | None, "last_block": int | None, "share_percent": float | None, "share_of": str | None,
            "parameters": int | None, "memory_bytes": dict | None}  # fmt: skip
MOST_DEVICES = 4096


def config(run: Path, absent: Mapping[str, Any] = types.MappingProxyType({})) -> dict[str, Any]:
    """config.json with all options, each of its type, and the entries of CONFIG_NEEDS. absent: name -> value of options
    that may be missing. Raises BadInput."""
    path, way_out, stored = run / CONFIG, "Start a new run in another --run-dir.", read_json(run / CONFIG)
    found = {**defaults_of_others(stored), **absent, **stored}
    kinds = {name: field.kind for name, field in FIELDS.items() if name != "resume"}
    check(path, found, kinds | CONFIG_NEEDS, way_out)
    check(path, {**found, **found["asked"]}, kinds, way_out)
    check(path, found, CONFIG_MAY_HAVE, way_out, absent=None)
    for stage in found.get("stages") or []:
        check(path, stage, OF_STAGE, "Remove the key stages from the file.", absent=None)
        if stage.get("memory_bytes"):
            check(path, stage["memory_bytes"], {"total": int}, "Remove the key stages from the file.")
    own_files.check(path, found.get(own_files.CODE) or {})
    check(path, found.get("inputs") or {}, {"classes": int | None}, way_out, absent=None)
    settings = found.get("jax_settings") or {}
    known = dict.fromkeys(jax_settings.DEFAULTS.keys() & settings.keys(), str | int | float | bool | None)
    check(path, settings, known, way_out)
    if not 1 <= (found.get("cpu_devices") or 1) <= MOST_DEVICES:
        fact = f"{path}: cpu_devices is {found['cpu_devices']}, more than any machine has. The file is damaged"
        raise BadInput(f"{fact}. {way_out}")
    return found


def with_code(run: Path, absent: Mapping[str, Any] = types.MappingProxyType({})) -> dict[str, Any]:
    """As `config`, but also loads the run's own files (fdg_jax.own_files). Raises BadInput if the user has not allowed
    this."""
    own_files.load_of_run(run, config(run, absent))
    return config(run, absent)  # now with the options of these files


def check_ranges(path: Path | str, config: Mapping[str, Any]) -> None:
    """Raises BadInput if options in a file have the right type but an impossible value."""
    try:
        checks.check(Config(**{name: config[name] for name in FIELDS if name in config}), frozenset())
    except BadInput as error:
        raise BadInput(f"{path} holds an impossible value. {error}") from None


def summary(run: Path) -> dict[str, Any]:
    """summary.json with the entries of SUMMARY_NEEDS. Raises BadInput."""
    found = read_json(run / SUMMARY)
    check_summary(run / SUMMARY, found, "Delete the file and resume the run, which writes it anew.")
    return found


def check_summary(path: Path | str, found: Mapping[str, Any], way_out: str) -> None:
    """Raises BadInput if a number of a finished run, or its note, is absent, of another type, or impossible."""
    lists = {name: list for name in SUMMARY_LISTS if name in found}
    check(path, found, {name: NUMBERS[name][0] for name in SUMMARY_NEEDS} | lists, way_out)
    check(path, found, {"note": str | None}, way_out, absent=None)
    if wrong := impossible(found):
        raise BadInput(f"{path}: {wrong}. The file is damaged. {way_out}")


def events(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl in the order of their steps. Each has its epoch, a learning rate with a training loss,
    and a test loss with a test error. If there are very many, neighbours are merged (fdg_jax.runs.reading). Raises
    BadInput."""
    path, found = run / METRICS, {name: Thinned(name) for name in ("train_loss", "test_error_percent", "step")}
    for event in metrics(path):
        for name, where in (("epoch", "step"), ("learning_rate", "train_loss"), ("test_loss", "test_error_percent")):
            if where in event and name not in event:
                fact = f"{path} is damaged: the line of step {event['step']} lacks {name!r}"
                raise BadInput(f"{fact}. Start a new run in another --run-dir.")
        kind = next(name for name in ("test_error_percent", "train_loss", "step") if event.get(name) is not None)
        found[kind].add(event)
    return sorted((event for each in found.values() for event in each.lines), key=lambda event: event["step"])


def refuse_less(steps: int, done: int) -> None:
    """Raises BadInput if a run is to end before its current batch."""
    if done > steps:
        raise BadInput(f"--steps {steps}: the run is already at batch {done}. Give more, or leave --steps out.")


MISSING = object()


def check(
    path: Path | str, found: Mapping[str, Any], needed: Mapping[str, Any], way_out: str, absent: Any = MISSING
) -> None:
    """Raises BadInput if a value in a file is absent or of another type. absent: the value of absent entries."""
    for name, kind in needed.items():
        value = found.get(name, absent)
        if value is MISSING:
            raise BadInput(f"{path} lacks {name!r}. The file is damaged or of another version. {way_out}")
        if not fits(value, kind):
            fact = f"{path}: {name} is {shown(value)}, not {described(kind)}"
            raise BadInput(f"{fact}. The file is damaged. {way_out}")
        for each in value if name in ELEMENTS and isinstance(value, list) else ():
            if not fits(each, ELEMENTS[name]):
                fact = f"{path}: {name} has {shown(each)}, not {described(ELEMENTS[name])}"
                raise BadInput(f"{fact}. The file is damaged. {way_out}")


def shown(value: Any) -> str:
    """A value for an error message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def resumed_options(path: Path, options: Config, given: frozenset[str]) -> tuple[Config, dict[str, Any]]:
    """Returns the options of the resumed run in `path`, and its config.json. The options are the stored ones, except
    for given options that may change. Raises BadInput for given options that contradict the stored ones."""
    stored = with_code(path)
    values, before = {}, stored["asked"]
    for name, field in FIELDS.items():
        now = getattr(options, name)
        if name in ("resume", "run_dir"):
            values[name] = now
            continue
        values[name] = used = stored[name]
        if name in given and field.free and not (name == "steps" and stored["epochs"] == 0):
            values[name] = now
        elif name in given and now not in (used, before.get(name, used)):
            fact = f"--resume: {spelled(name)} {now} contradicts {path / CONFIG}, which says {used}"
            new = "start a new run in another --run-dir (--init-from takes over this run's weights)"
            raise BadInput(f"{fact}. Leave {spelled(name)} out, or {new}.")
    return Config(**values), stored


def finished_steps(path: Path, options: Config) -> int | None:
    """The number of batches of a finished run; None if the run is not finished."""
    if not os.path.lexists(path / SUMMARY):
        return None
    steps = run_length(options.train_size or 0, options.batch_size, options.epochs, options.steps).end
    done = summary(path)["steps"]
    if done < steps:
        return None
    refuse_less(steps, done)
    return steps


Event = dict[str, Any]
MOST = 8192  # lines that are kept, approximately
MEANS = ("train_loss", "test_loss", "test_error_percent", "test_bits_per_byte")
SPEEDS = ("images_per_second", "tokens_per_second")
RANGE = "range of "  # with a name: an entry of merged lines only; no line of a file has it


class Thinned:
    """The lines that have a value `name`. The first line, the newest line and the line with the lowest value are never
    merged.

    name: the name of the value, such as "train_loss".
    """

    def __init__(self, name: str):
        self.name, self.size = name, 1  # how many lines are merged into one
        self.first: Event | None = None
        self.lowest: Event | None = None
        self.between: list[Event] = []
        self.newest: list[Event] = []  # at most `size` lines, and the newest one

    def add(self, event: Event) -> None:
        """Adds the next line."""
        if self.lowest is None or event[self.name] < self.lowest[self.name]:
            self.lowest = event
        if self.first is None:
            self.first = event
            return
        if len(self.newest) > self.size:
            self.between.append(merged(self.newest[:-1], self.name))
            del self.newest[:-1]
        self.newest.append(event)
        if len(self.between) == MOST:
            self.between = [merged(self.between[i : i + 2], self.name) for i in range(0, MOST, 2)]
            self.size *= 2

    @property
    def lines(self) -> list[Event]:
        """The lines so far, in their order. If there are fewer than MOST, no lines are merged."""
        first = [] if self.first is None else [self.first]
        rest = [merged(each, self.name) for each in (self.newest[:-1], self.newest[-1:]) if each]
        found = [*first, *self.between, *rest]
        if self.lowest is not None and self.size > 1 and self.lowest not in (first[0], rest[-1]):
            insort(found, self.lowest, key=lambda event: event["step"])
        return found


def merged(events: Sequence[Event], name: str) -> Event:
    """One line for neighbours: the last of them, with the means and the range of their values.

    The mean of speeds is harmonic, since it averages the times that batches took.
    """
    if len(events) == 1:
        return events[0]
    lows, highs = zip(*(span(event, name) for event in events), strict=True)
    made = {**events[-1], RANGE + name: (min(lows), max(highs))}
    for key in MEANS:
        if values := [event[key] for event in events if event.get(key) is not None]:
            made[key] = sum(values) / len(values)
    for key in SPEEDS:
        if times := [1 / event[key] for event in events if event.get(key)]:
            made[key] = len(times) / sum(times)
    return made


def span(event: Mapping[str, Any], name: str) -> tuple[float, float]:
    """The lowest and highest value of the lines that were merged into this one."""
    return event.get(RANGE + name, (event[name], event[name]))

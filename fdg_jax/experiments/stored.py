"""Reads what an earlier session wrote: every value is judged here, so that a damaged file is one sentence.

Files of a run are edited by hand, cut off by full disks and come from other versions. Who reads them through
this module may use what it names without asking whether it is there.
"""

import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fdg_jax.errors import BadInput
from fdg_jax.experiments.options import FIELDS, Options, spelled
from fdg_jax.experiments.run_directory import CONFIG, SUMMARY, read_json

CONFIG_NEEDS = {"note": str, "devices": list, "versions": dict, "asked": dict}
SAME_BATCHES = ("model", "dataset", "train_size", "batch_size", "seed")  # else it is no continuation
SUMMARY_NEEDS = {"steps": int, "epochs": float, "test_error_percent": float, "seconds": float}
MOST_DEVICES = 4096


def config(run: Path, absent: Mapping[str, Any] = types.MappingProxyType({})) -> dict[str, Any]:
    """config.json with all options, each of its type, and what CONFIG_NEEDS names. absent: options that may be missing,
    and what they then count as. Raises BadInput."""
    found = {**absent, **read_json(run / CONFIG)}
    kinds = {name: field.type for name, field in FIELDS.items() if name != "resume"}
    check(run / CONFIG, found, {**kinds, **CONFIG_NEEDS}, "Start a new run in another --run-dir.")
    optional = {"resumed": list | None, "cpu_devices": int | None, "xla_flags": str | None, "jax_settings": dict | None}
    check(run / CONFIG, found, optional, "Start a new run in another --run-dir.", absent=None)
    if not 1 <= (found.get("cpu_devices") or 1) <= MOST_DEVICES:
        fact = f"{run / CONFIG}: cpu_devices is {found['cpu_devices']}, which no machine has: the file is damaged"
        raise BadInput(f"{fact}. Start a new run in another --run-dir.")
    return found


def summary(run: Path) -> dict[str, Any]:
    """summary.json with what SUMMARY_NEEDS names. Raises BadInput."""
    found = read_json(run / SUMMARY)
    check(run / SUMMARY, found, SUMMARY_NEEDS, "Delete it and resume the run, which writes it again.")
    return found


def refuse_less(steps: int, done: int) -> None:
    """Raises BadInput where a run is to end before the batch that it stands at."""
    if done > steps:
        raise BadInput(f"--steps {steps}: the run stands at batch {done} already. Give more, or leave --steps out.")


MISSING = object()


def check(path: Path, found: Mapping[str, Any], needed: Mapping[str, Any], way_out: str, absent: Any = MISSING) -> None:
    """Refuses a file in which a value is absent or of another type. absent: what an absent one counts as."""
    for name, kind in needed.items():
        value = found.get(name, absent)
        if value is MISSING:
            raise BadInput(f"{path} lacks {name!r}: it is damaged or of another version. {way_out}")
        if not fits(value, kind):
            raise BadInput(f"{path}: {name} is {value!r}, which is no {told(kind)}: the file is damaged. {way_out}")


def fits(value: Any, kind: Any) -> bool:
    """Whether a value read from JSON is of the type of an option: int, float, bool, str, X | None, Literal."""
    if typing.get_origin(kind) is typing.Literal:
        return value in typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return any(fits(value, one) for one in typing.get_args(kind))
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def told(kind: Any) -> str:
    """A type in words a person uses."""
    words = {int: "whole number", float: "number", str: "text", bool: "true or false", list: "list", dict: "object"}
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(map(str, typing.get_args(kind)))
    parts = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return " or ".join(words.get(part, "null") for part in parts)


def resumed_options(path: Path, options: Options, given: frozenset[str]) -> tuple[Options, dict[str, Any]]:
    """(options of the run in `path` under those that may change, its config). Refuses contradictions."""
    stored = config(path)
    values, before = {}, stored["asked"]
    for name, field in FIELDS.items():
        now = getattr(options, name)
        if name in ("resume", "run_dir"):
            values[name] = now
            continue
        values[name] = used = stored[name]
        if name in given and field.metadata["free"]:
            values[name] = now
        elif name in given and now not in (used, before.get(name, used)):
            ways = [f"Leave {spelled(name)} out", "start a new run in another --run-dir"]
            ways += [] if name in SAME_BATCHES else ["go on as another one with --resume-into DIR"]
            fact = f"--resume: {spelled(name)} {now} contradicts {path / CONFIG}, which says {used}"
            raise BadInput(f"{fact}. {', '.join(ways[:-1])}, or {ways[-1]}.")
    return Options(**values), stored

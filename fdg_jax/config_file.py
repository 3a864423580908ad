"""Options from a file: `--config FILE` in TOML, YAML or JSON, by the names that they have in config.json.

A YAML value without quotes is read as the command line would read it. YAML's own rules would make True of `warmup: on`
and a text of `learning_rate: 1e-3`.
"""

import argparse
import os
from pathlib import Path
from typing import Any, NamedTuple

from fdg_jax.config import FIELDS, IN_CONFIG, OF_JOINING, OF_START
from fdg_jax.errors import BadInput, did_you_mean
from fdg_jax.options.common import RETIRED
from fdg_jax.options.fields import LARGEST, Option, described, fits, from_word, spelled
from fdg_jax.options.file import Setting, settings

FACTS = frozenset((*IN_CONFIG, "devices", "stages"))  # of config.json, which are no options
OF_ITS_RUN = frozenset(("run_dir", *RETIRED))
LEFT_OPEN = ("split", "engine", "warmup", "window", "train_size", "block_size")  # a run settles them if nobody does
YES_OR_NO = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
NULLS = ("", "~", "null", "none")


class Found(NamedTuple):
    """What a file says.

    options: name -> value.
    given: the names of those that count as given; a run's own config.json has all, those at their defaults included.
    places: name -> "FILE, line 7".
    own: whether the file is a run's config.json.
    """

    options: dict[str, Any]
    given: frozenset[str]
    places: dict[str, str]
    own: bool


NOTHING = Found({}, frozenset(), {}, False)


def read(path: Path) -> Found:
    """The options in a file. Raises BadInput with file, line and key for whatever is wrong with it."""
    entries = settings(path)
    found, places = {}, {}
    stored = {entry.key: entry.value for entry in entries}
    own = isinstance(stored.get("asked"), dict) and "versions" in stored
    for entry in entries:
        name, place = entry.key.replace("-", "_"), f"{path}, line {entry.line}" if entry.line else str(path)
        if name in FACTS or (own and name in OF_ITS_RUN):
            continue
        if name not in FIELDS:
            raise BadInput(f"{place}: {unknown(entry.key, name)}")
        if name in found:
            raise BadInput(f"{place}: {entry.key} is there twice (before: {places[name]}). Leave one of them out.")
        found[name], places[name] = converted(entry, FIELDS[name], place), place
    if own:
        left = {name for name in LEFT_OPEN if stored["asked"].get(name, "") == FIELDS[name].default}
        found = {name: value for name, value in found.items() if name not in left}
    given = {name for name, value in found.items() if not own or value != FIELDS[name].default}
    return Found(found, frozenset(given), places, own)


def unknown(key: str, name: str) -> str:
    """What to say of a key that no option has."""
    if name in RETIRED:
        return RETIRED[name]
    if name in OF_START or name in OF_JOINING:
        return f"{spelled(name)} is no option of the run, so it is taken on the command line only."
    asked = did_you_mean(name, FIELDS) or " --help lists the options; their names have _ for -."
    return f"there is no option {shown(key)}.{asked}"


def converted(entry: Setting, option: Option, place: str) -> Any:
    """The value of an option. Raises BadInput if it is not of the option's type."""
    kind, value = option.kind, entry.value
    if entry.word and option.switch and value.lower() in YES_OR_NO:
        value = YES_OR_NO[value.lower()]
    elif entry.word and fits(None, kind) and value.lower() in NULLS:
        return None
    elif entry.word and not option.switch:
        try:
            value = from_word(value, kind)
        except argparse.ArgumentTypeError as error:
            raise BadInput(f"{place}: {entry.key}: {error}.") from None
    number = isinstance(value, int) and not isinstance(value, bool)
    possible = abs(value) < LARGEST if number else not isinstance(value, str) or value.isprintable()
    if number and fits("", kind):
        value = str(value)  # split = 3
    elif number and possible and fits(0.5, kind):
        value = float(value)
    if not (possible and fits(value, kind)):
        raise BadInput(f"{place}: {entry.key} is {shown(value)}, which is no {described(kind)}.")
    if option.name in ("run_dir", "init_from") and isinstance(value, str):
        return os.path.expanduser(value)  # as a shell does
    return value


def shown(value: Any) -> str:
    """A value in a message: at most its beginning."""
    text = {True: "true", False: "false", None: "null"}.get(value) if isinstance(value, bool | None) else None
    text = text or ("a list" if isinstance(value, list) else "a table" if isinstance(value, dict) else repr(value))
    return text if len(text) <= 60 else f"{text[:60]}..."

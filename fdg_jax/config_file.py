"""Reads options from a file: `--config FILE` in TOML, YAML or JSON. Options have the names that config.json uses.

A YAML value without quotes is parsed like a value on the command line. YAML's own rules would turn `warmup: on` into
True and `learning_rate: 1e-3` into a string.
"""

import argparse
import os
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from fdg_jax import own_files, strict_json
from fdg_jax.config import FIELDS, IN_CONFIG, OF_JOINING, OF_START
from fdg_jax.errors import BadInput, did_you_mean, first_line, reason
from fdg_jax.options.common import RETIRED
from fdg_jax.options.fields import LARGEST, Option, described, fits, from_word, spelled

FACTS = frozenset((*IN_CONFIG, "devices", "stages"))  # entries of config.json that are no options
OF_ITS_RUN = frozenset(("run_dir", *RETIRED))
# Options whose default means that the run chooses the value.
LEFT_OPEN = ("split", "engine", "warmup", "window", "train_size", "block_size", "vocabulary")
YES_OR_NO = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
NULLS = ("", "~", "null", "none")
MOST_BYTES = 2**20  # the largest size of an option file
WAY_OUT = "Correct the file, or leave --config out."


class Setting(NamedTuple):
    """An entry of a file.

    line: the line number, from 1; None if it is not known.
    word: whether the value is a YAML scalar without quotes.
    """

    key: str
    value: Any
    line: int | None
    word: bool = False


class Found(NamedTuple):
    """The options in a file.

    options: name -> value.
    given: the names of the options that count as given by the user. A run's own config.json contains every option, so
        there only options that differ from their defaults count as given.
    places: name -> "FILE, line 7".
    own: whether the file is a run's config.json.
    """

    options: dict[str, Any]
    given: frozenset[str]
    places: dict[str, str]
    own: bool


NOTHING = Found({}, frozenset(), {}, False)


def read(path: Path) -> Found:
    """Reads the options in a file. Raises BadInput, with file, line and key, if anything in it is wrong."""
    entries = settings(path)
    found, places = {}, {}
    stored = {entry.key: entry.value for entry in entries}
    own = isinstance(stored.get("asked"), dict) and "versions" in stored
    if own:
        own_files.load_of_run(path.parent, stored)
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
    """The message about a key that is not the name of an option."""
    if name in RETIRED:
        return RETIRED[name]
    if name in OF_START or name in OF_JOINING:
        return f"{spelled(name)} is not stored with a run, so it can be given on the command line only."
    asked = did_you_mean(name, FIELDS) or " --help lists the options; write _ for - in option names."
    return f"there is no option {shown(key)}.{asked}"


def converted(entry: Setting, option: Option, place: str) -> Any:
    """Converts an entry to the option's type. Raises BadInput if that is impossible."""
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
    if number and fits("", kind) and not fits(0, kind):
        value = str(value)  # split = 3
    elif number and possible and fits(0.5, kind):
        value = float(value)
    if not (possible and fits(value, kind)):
        raise BadInput(f"{place}: {entry.key} is {shown(value)}, not {described(kind)}.")
    if option.name in ("run_dir", "init_from") and isinstance(value, str):
        return os.path.expanduser(value)  # as a shell does
    return value


def shown(value: Any) -> str:
    """A value as text for a message, cut after 60 characters."""
    text = {True: "true", False: "false", None: "null"}.get(value) if isinstance(value, bool | None) else None
    text = text or ("a list" if isinstance(value, list) else "a table" if isinstance(value, dict) else repr(value))
    return text if len(text) <= 60 else f"{text[:60]}..."


def settings(path: Path) -> list[Setting]:
    """The entries of a file, in the file's order. Raises BadInput if the file cannot be read."""
    if not str(path).isprintable():
        raise BadInput(f"--config {str(path)!r}: choose a name without control characters.")
    reader = {".toml": of_toml, ".json": of_json, ".yaml": of_yaml, ".yml": of_yaml}.get(path.suffix.lower())
    if reader is None:
        raise BadInput(f"--config {path}: its name must end in .toml, .yaml, .yml or .json.")
    try:
        with strict_json.opened(path) as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise BadInput(f"--config {path} cannot be read: {reason(error)}.") from None
    except ValueError as error:  # it is not a file, or its name has a null byte
        raise BadInput(f"--config {path} cannot be read: {error}.") from None
    if len(content) > MOST_BYTES:
        raise BadInput(f"--config {path} has more than {MOST_BYTES:,} bytes, more than a file of options can have.")
    try:
        return reader(content, path)
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not text in UTF-8. {WAY_OUT}") from None
    except RecursionError:
        raise BadInput(f"{path} is nested too deeply. {WAY_OUT}") from None


def of_toml(content: bytes, path: Path) -> list[Setting]:
    text = content.decode("utf-8-sig")
    try:
        found = tomllib.loads(text)
    except ValueError as error:
        raise BadInput(f"{path} is not valid TOML: {first_line(error)}. {WAY_OUT}") from None
    return [Setting(key, value, line_of(key, text, "=")) for key, value in found.items()]


def of_json(content: bytes, path: Path) -> list[Setting]:
    try:
        found = strict_json.parse(content)
    except ValueError as error:
        raise BadInput(f"{path}: {first_line(error)}. {WAY_OUT}") from None
    if not isinstance(found, dict):
        raise BadInput(f'{path} is not a JSON object, such as {{"K": 3, "beta": 0.5}}. {WAY_OUT}')
    text = content.decode()
    return [Setting(key, value, line_of(key, text, ":")) for key, value in found.items()]


def of_yaml(content: bytes, path: Path) -> list[Setting]:
    """The entries of a YAML file. YAML's tags and types are ignored: scalar values are the strings in the file."""
    import yaml

    try:
        root = yaml.compose(content.decode("utf-8-sig"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise BadInput(f"{path}{line} is not valid YAML: {error.problem or error.context}. {WAY_OUT}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # an escape such as \UFFFFFFFF raises the last two
        raise BadInput(f"{path} is not valid YAML: {first_line(error)}. {WAY_OUT}") from None
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise BadInput(f"{path} has no lines such as K: 3. {WAY_OUT}")
    made = []
    for key, value in root.value:
        plain = isinstance(value, yaml.ScalarNode)
        kind: Any = value.value if plain else [] if isinstance(value, yaml.SequenceNode) else {}
        name = key.value if isinstance(key, yaml.ScalarNode) else "?"
        made.append(Setting(name, kind, key.start_mark.line + 1, plain and value.style is None))
    return made


def line_of(key: str, text: str, sign: str) -> int | None:
    """The number of the line, from 1, that has the key followed by `sign` ("=" or ":"). None if the key is not found,
    for example because it is written with escapes."""
    quotes = "\"?'?" if sign == "=" else '"'
    found = re.search(rf"(^|[{{,\s]){quotes}{re.escape(key)}{quotes}\s*{sign}", text, re.MULTILINE)
    table = re.search(rf"^\s*\[+\s*{re.escape(key)}\b", text, re.MULTILINE) if sign == "=" else None
    begin = found.end() if found else table.end() if table else None
    return None if begin is None else text.count("\n", 0, begin) + 1

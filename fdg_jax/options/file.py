"""A file of options in TOML, YAML or JSON, as the entries that stand in it."""

import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from fdg_jax import strict_json
from fdg_jax.errors import BadInput, first_line, reason

MOST_BYTES = 2**20  # of a file that a person writes
WAY_OUT = "Mend it, or leave --config out."


class Setting(NamedTuple):
    """An entry of a file.

    line: from 1; None if it is not known.
    word: whether the value is a text that stands there without quotes, in YAML.
    """

    key: str
    value: Any
    line: int | None
    word: bool = False


def settings(path: Path) -> list[Setting]:
    """The entries of a file, in its order. Raises BadInput if it cannot be read."""
    if not str(path).isprintable():
        raise BadInput(f"--config {str(path)!r}: choose a name without control characters.")
    reader = {".toml": of_toml, ".json": of_json, ".yaml": of_yaml, ".yml": of_yaml}.get(path.suffix.lower())
    if reader is None:
        raise BadInput(f"--config {path}: its name must end in .toml, .yaml, .yml or .json.")
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for a writer
            raise BadInput(f"--config {path} is not a file.")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"--config {path} cannot be read: {reason(error)}.") from None
    if len(content) > MOST_BYTES:
        raise BadInput(f"--config {path} has more than {MOST_BYTES:,} bytes, so it is no file of options.")
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
    """Nothing is constructed of YAML's tags and types: values are the texts that stand there."""
    import yaml

    try:
        root = yaml.compose(content.decode("utf-8-sig"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise BadInput(f"{path}{line} is not valid YAML: {error.problem or error.context}. {WAY_OUT}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two: an escape such as \UFFFFFFFF
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
    """The line on which a key stands before its sign, from 1; None if it is not found (a key with escapes, say)."""
    quotes = "\"?'?" if sign == "=" else '"'
    found = re.search(rf"(^|[{{,\s]){quotes}{re.escape(key)}{quotes}\s*{sign}", text, re.MULTILINE)
    table = re.search(rf"^\s*\[+\s*{re.escape(key)}\b", text, re.MULTILINE) if sign == "=" else None
    begin = found.end() if found else table.end() if table else None
    return None if begin is None else text.count("\n", 0, begin) + 1

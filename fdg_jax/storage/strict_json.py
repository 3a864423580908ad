"""Reads JSON that a person may have edited, a full disk cut off, or somebody made up: as plain values, or as one error.

Python's own reader lets through what fails only later, far from the file: lists within lists until the stack is full,
whole numbers of thousands of digits, infinity (also written as 1e999), and halves of surrogate pairs, which cannot be
written out again. None of them is in a file that this package writes.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any, NoReturn

DEEPEST = 32  # values within values; our own files have 4
LARGEST = 2**63  # whole numbers; larger ones are no number of anything here
MOST_BYTES = 64 * 2**20  # of a file that is read whole


def parse(content: bytes) -> Any:
    """The value. Raises ValueError with the reason in a few words, and nothing else."""
    try:
        value = json.loads(
            content.decode("utf-8"), parse_constant=no_number, parse_int=whole_number, parse_float=finite_number
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not valid JSON: {error}") from None
    except UnicodeDecodeError:
        raise ValueError("it is not valid JSON: the text is not UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except MemoryError:
        raise ValueError("it is larger than the memory") from None
    check(value)
    return value


def read(path: Path) -> Any:
    """The value in a file. Raises ValueError as `parse` does, and OSError where the file cannot be read."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for a writer
        raise ValueError("it is not a file")
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
    return parse(content)


def check(value: Any) -> None:
    """Raises ValueError for what is nested too deeply or has a text that cannot be written. Uses no stack itself."""
    level = [value]
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, str):
                check_text(each)
            elif isinstance(each, dict):
                inner += [*each, *each.values()]
            elif isinstance(each, list):
                inner += each
        level = inner
    if level:
        raise ValueError("it is nested too deeply")


def check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("it has a text that is not Unicode (half of a surrogate pair)") from None


def whole_number(text: str) -> int:
    if len(text) > 20 or not -LARGEST <= int(text) < LARGEST:
        raise ValueError(f"it has a whole number that is too large ({len(text)} characters)")
    return int(text)


def finite_number(text: str) -> float:
    value = float(text)
    if abs(value) == float("inf"):
        raise ValueError(f"it has a number that is too large ({text[:20]})")
    return value


def no_number(text: str) -> NoReturn:
    raise ValueError(f"it has {text}, which is no number")

"""Reads JSON files that may be edited, truncated or malicious: the result is plain values or a ValueError.

Python's own reader accepts content that causes failures only later: nesting that overflows the stack, integers of
thousands of digits, infinity (also as 1e999), and lone surrogates, which cannot be encoded again. If a key occurs
twice, Python silently takes the last value. This module refuses all of these; this package never writes them.
"""

import itertools
import json
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

DEEPEST = 32  # levels of nesting; our own files have 4
LARGEST = 2**63  # the bound of integers
MOST_BYTES = 16 * 2**20  # of a file; its Python values may need thirty times as much memory
LONGEST_LINE = 2**20  # bytes; our own longest lines, in results files, have some 10 KB


def parse(content: bytes) -> Any:
    """Parses JSON.

    Arguments:
        content: the bytes of a file.

    Returns: the value.

    Raises:
        ValueError: the content is not accepted; the message gives the reason in a few words.
    """
    try:
        value = DECODER.decode(content.decode("utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not valid JSON: {error}") from None
    except UnicodeDecodeError:
        raise ValueError("it is not valid JSON: the text is not UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except MemoryError:
        raise ValueError("it does not fit into memory") from None
    if b"\\u" in content or content.count(b"[") + content.count(b"{") > DEEPEST:  # otherwise `check` finds nothing
        check(value)
    return value


def read(path: Path) -> Any:
    """The value in a file. Raises ValueError as `parse` does, and OSError if the file cannot be read."""
    with opened(path) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
    return parse(content)


def lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file, in bounded memory.

    Raises ValueError if a line has more than LONGEST_LINE bytes or `path` is not a regular file, and OSError if the
    file cannot be read.
    """
    with opened(path) as file:
        while line := file.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise ValueError(f"it has a line of more than {LONGEST_LINE:,} bytes")
            yield line


def opened(path: Path) -> BinaryIO:
    """Opens a file for reading. Raises OSError; raises ValueError if it is not a regular file, because opening a pipe
    would wait."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("it is not a file")
    return path.open("rb")


def check(value: Any) -> None:
    """Raises ValueError if a value is nested too deeply or has text that cannot be encoded."""
    level = [value]
    for _ in range(DEEPEST):
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = list(itertools.chain.from_iterable(inner))
    if level:
        raise ValueError("it is nested too deeply")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it has a text that is not Unicode (half of a surrogate pair)") from None


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The dictionary of an object's pairs; raises ValueError if a key occurs twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"it has the key {key[:40]!r} twice")
        found[key] = value
    return found


def whole_number(text: str) -> int:
    """Parses an integer; raises ValueError if it is too large."""
    if len(text) > 20 or not -LARGEST <= int(text) < LARGEST:
        raise ValueError(f"it has a whole number that is too large ({len(text)} characters)")
    return int(text)


def finite_number(text: str) -> float:
    """Parses a float; raises ValueError if it is infinite."""
    value = float(text)
    if abs(value) == float("inf"):
        raise ValueError(f"it has a number that is too large ({text[:20]})")
    return value


def finite(value: Any) -> Any:
    """Replaces NaN and infinity by None before writing, because JSON has neither. Other values are returned as is."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def no_number(text: str) -> NoReturn:
    """Refuses NaN, Infinity and -Infinity, which are not JSON."""
    raise ValueError(f"it has {text}, which is not a number")


DECODER = json.JSONDecoder(
    parse_constant=no_number, parse_int=whole_number, parse_float=finite_number, object_pairs_hook=unique
)

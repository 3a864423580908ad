"""Lines for a terminal: broken between words, and what goes on is set under the text and not under the label."""

import re
import shutil
import sys
import textwrap

LABEL = re.compile(r"\s*\S+( k=\d+)? {2,}")  # "method     ", "stage k=1  ", "  memory   "
NARROWEST = 40  # a terminal is taken to have at least so many columns


def columns() -> int | None:
    """The width of the terminal that stdout is; None where it is a file, a pipe or closed."""
    try:
        terminal = sys.stdout is not None and sys.stdout.isatty()
    except ValueError:  # it has been closed
        return None
    return max(NARROWEST, shutil.get_terminal_size().columns) if terminal else None


def wrapped(line: str, width: int | None) -> str:
    """The line, on several where it is longer than the width. None: as it is, so that in a file a fact stays a line.

    A word that is longer than the width, such as a path, stays whole.
    """
    if width is None or len(line) <= width:
        return line
    label = LABEL.match(line)
    indent = " " * len(label[0]) if label else ""
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
        replace_whitespace=False, expand_tabs=False,
    )  # fmt: skip

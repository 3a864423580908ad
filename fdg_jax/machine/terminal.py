"""Wraps lines for a terminal: between words, and with following lines indented to where the text begins."""

import re
import shutil
import sys
import textwrap

LABEL = re.compile(r"\s*\S+( k=\d+)? {2,}")  # "method     ", "stage k=1  ", "  memory   "
NARROWEST = 40  # columns that a terminal is assumed to have at least


def columns() -> int | None:
    """The width of the terminal; None if stdout is a file, a pipe or closed."""
    try:
        terminal = sys.stdout is not None and sys.stdout.isatty()
    except ValueError:  # it has been closed
        return None
    return max(NARROWEST, shutil.get_terminal_size().columns) if terminal else None


def wrapped(line: str, width: int | None) -> str:
    """Wraps a line. Words longer than the width, such as paths, are not broken.

    Arguments:
        line: the text.
        width: in columns; None leaves the line as it is, so that in a file every fact is one line.
    """
    if width is None or len(line) <= width:
        return line
    label = LABEL.match(line)
    indent = " " * len(label[0]) if label else ""
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
        replace_whitespace=False, expand_tabs=False,
    )  # fmt: skip

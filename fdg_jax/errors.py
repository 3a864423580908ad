"""Exceptions that distinguish a user's mistake from a bug, and helpers for error messages."""

import difflib
import re
from collections.abc import Iterable

LONGEST = 500  # the most characters quoted from another message, which may itself quote a whole file


class BadInput(ValueError):
    """A user's mistake. The message states the fact, the numbers and the way out. Commands print it and exit with 2."""


class Unreadable(BadInput):
    """A file cannot be read at the moment. It may be intact."""


class Damaged(BadInput):
    """An image or a text cannot be read or decoded; the message names the file. A run that meets such a file ends
    with a checkpoint."""


class NoEffect(UserWarning):
    """An option has no effect here, or nearly none."""


class ScheduleError(AssertionError):
    """A schedule uses something that does not exist yet, does something twice, or declares a wrong staleness."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggests known names that resemble an unknown name.

    First it looks for a known name with the same letters. If there is none, it looks for names that contain `name` (of
    three or more letters), and then for names that `difflib` finds close. Case, hyphens, underscores and dots are
    ignored.

    Arguments:
        name: the unknown name that the user wrote.
        known: the names that exist.

    Returns: a sentence to append to a message, such as " Did you mean resnet20 or resnet18?". It has at most three
    names, the nearest first. "" if no name is near.
    """
    by_letters = {re.sub(r"[-_.]", "", each.lower()): each for each in known if each != name}
    letters = re.sub(r"[-_.]", "", name.lower())
    parts = [each for each in by_letters if len(letters) >= 3 and letters in each][:3]
    parts = [letters] if letters in by_letters else parts
    near = parts or difflib.get_close_matches(letters, by_letters, cutoff=0.65 if len(letters) > 1 else 1)
    return f" Did you mean {' or '.join(by_letters[each] for each in near)}?" if near else ""


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, at most `LONGEST` characters of it, for quoting in another message. The
    exception's type if it has no message."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


def sentence(error: BaseException) -> str:
    """`first_line`, ending in one full stop, so that another sentence can follow."""
    return first_line(error).rstrip(".") + "."


def reason(error: BaseException) -> str:
    """Why something failed, in one line: the operating system's message, or else the error's type and message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]

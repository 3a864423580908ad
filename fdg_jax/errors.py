"""The exception for everything that a user can get wrong, which tells it from a bug; help with error messages."""

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """A user's mistake. The message has the fact, the numbers and the way out; commands print it and exit with 2."""


class Unreadable(BadInput):
    """A file cannot be read at the moment, so whether it is intact is not known."""


class ScheduleError(AssertionError):
    """A schedule uses something that does not exist yet, does something twice, or has not the staleness it declares."""


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Suggests the nearest known names for one that is not known.

    Arguments:
        name: what was written.
        known: the names that exist.
        cutoff: how similar a name must be, from 0 to 1.

    Returns: " Did you mean resnet20 or resnet8?", to follow another sentence; "" if no name is near.
    """
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=cutoff)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or else its type: to be quoted in a message of ours."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def sentence(error: BaseException) -> str:
    """`first_line` with one full stop, so that another sentence can follow."""
    return first_line(error).rstrip(".") + "."


def reason(error: BaseException) -> str:
    """Why something failed, in one line: the operating system's words, or else the error's type and message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]

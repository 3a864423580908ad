"""The exception for everything that a user can get wrong, which tells it from a bug; help with error messages."""

import difflib
import re
from collections.abc import Iterable

LONGEST = 500  # characters of another message that are quoted: it may quote a whole file


class BadInput(ValueError):
    """A user's mistake. The message has the fact, the numbers and the way out; commands print it and exit with 2."""


class Unreadable(BadInput):
    """A file cannot be read at the moment, so whether it is intact is not known."""


class Damaged(BadInput):
    """An image or a text cannot be read, or an image not be decoded; the message names the file. A run may meet it
    after hours: it ends with a checkpoint then."""


class NoEffect(UserWarning):
    """Something that was asked for does nothing here, or nearly nothing."""


class ScheduleError(AssertionError):
    """A schedule uses something that does not exist yet, does something twice, or has not the staleness it declares."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggests the nearest known names for one that is not known.

    A name of the same letters goes before names that contain what was written (three or more letters), and these before
    those that `difflib` calls close. Capitals, hyphens, underscores and dots do not count.

    Arguments:
        name: what was written.
        known: the names that exist.

    Returns: " Did you mean resnet20 or resnet18?", to follow another sentence, at most three names, the nearest first;
    "" if no name is near.
    """
    by_letters = {re.sub(r"[-_.]", "", each.lower()): each for each in known}
    letters = re.sub(r"[-_.]", "", name.lower())
    parts = [each for each in by_letters if len(letters) >= 3 and letters in each][:3]
    parts = [letters] if letters in by_letters else parts
    near = parts or difflib.get_close_matches(letters, by_letters, cutoff=0.65 if len(letters) > 1 else 1)
    return f" Did you mean {' or '.join(by_letters[each] for each in near)}?" if near else ""


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, shortened, or else its type: to be quoted in a message of ours."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


def sentence(error: BaseException) -> str:
    """`first_line` with one full stop, so that another sentence can follow."""
    return first_line(error).rstrip(".") + "."


def reason(error: BaseException) -> str:
    """Why something failed, in one line: the operating system's words, or else the error's type and message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]

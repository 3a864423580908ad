"""The exception for everything that a user can get wrong, which tells it from a bug; help with error messages."""

import re
from collections.abc import Iterable

LONGEST = 500  # characters of another message that are quoted: it may quote a whole file


class BadInput(ValueError):
    """A user's mistake. The message has the fact, the numbers and the way out; commands print it and exit with 2."""


class Unreadable(BadInput):
    """A file cannot be read at the moment, so whether it is intact is not known."""


class NoEffect(UserWarning):
    """Something that was asked for does nothing here, or nearly nothing."""


class ScheduleError(AssertionError):
    """A schedule uses something that does not exist yet, does something twice, or has not the staleness it declares."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggests the nearest known names for one that is not known.

    Near are two names if few edits make one of the other: as many as a quarter of the longer one's characters, one if
    it has three, and none if it has two, for then any two names would be near. Near are also a name and a part of it,
    such as `data` and `data_parallel`, and names with the same three or more letters, such as `wrn4_1` and `wrn16_4`.
    Capitals, hyphens, underscores and dots do not count.

    Arguments:
        name: what was written.
        known: the names that exist.

    Returns: " Did you mean resnet20 or resnet18?", to follow another sentence, at most three names, the nearest first;
    "" if no name is near.
    """
    found = [(distance, each) for each in known if (distance := distance_if_near(name, each)) is not None]
    near = [each for _, each in sorted(found)[:3]]
    return f" Did you mean {' or '.join(near)}?" if near else ""


def distance_if_near(a: str, b: str) -> int | None:
    """How many edits two names are apart, if they are near by the rule of `did_you_mean`; else None."""
    a, b = a.lower().lstrip("-"), b.lower().lstrip("-")
    distance = edits(*(re.sub(r"[-_.]", "", name) for name in (a, b)))
    longer, letters = max(len(a), len(b)), re.sub(r"[^a-z]", "", a)
    allowed = 0 if longer < 3 else max(1, longer // 4)
    same_letters = len(letters) >= 3 and letters == re.sub(r"[^a-z]", "", b)
    return distance if distance <= allowed or is_part(a, b) or is_part(b, a) or same_letters else None


def is_part(short: str, long: str) -> bool:
    """Whether three or more characters are the beginning of a name, or of a part of it after a hyphen, _ or a dot."""
    return len(short) >= 3 and re.search(rf"(^|[-_.]){re.escape(short)}", long) is not None


def edits(a: str, b: str) -> int:
    """The fewest characters to insert, leave out, replace, or exchange with their neighbour, that make b of a.

    Source: the optimal string alignment distance, after Damerau (1964), by Wagner and Fischer's recurrence.
    """
    rows = [list(range(len(b) + 1))]  # rows[i][j]: of the first i characters of a and the first j of b
    for i, one in enumerate(a, 1):
        row = [i]
        for j, other in enumerate(b, 1):
            row.append(min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (one != other)))
            if i > 1 and j > 1 and (one, other) == (b[j - 2], a[i - 2]):
                row[j] = min(row[j], rows[-2][j - 2] + 1)
        rows.append(row)
    return rows[-1][-1]


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

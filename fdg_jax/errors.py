"""One exception for everything a person got wrong, so that a command can tell it from a defect; words for it."""

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """States the fact, the numbers and the way out. Commands print it as one message and exit with code 2."""


class Unreadable(BadInput):
    """What is there cannot be read at the moment, so nothing is known of it: neither that it is whole nor that it is
    not."""


class ScheduleError(AssertionError):
    """A schedule asks for something that does not exist yet, twice, or with other staleness than derived."""


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """ " Did you mean resnet20 or resnet8?", the known names nearest to one that is not; "" where none is near."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=cutoff)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def first_line(error: BaseException) -> str:
    """What an exception of someone else's says, in one line fit for a sentence of ours."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def sentence(error: BaseException) -> str:
    """The same with a full stop, so that another sentence can follow."""
    return first_line(error).rstrip(".") + "."


def reason(error: BaseException) -> str:
    """Why something failed, in one line: what the system says, or else the kind of error and its own words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]

"""One exception for everything a person got wrong, so that a command can tell it from a defect."""


class BadInput(ValueError):
    """States the fact, the numbers and the way out. Commands print it as one message and exit with code 2."""


class ScheduleError(AssertionError):
    """A schedule asks for something that does not exist yet, twice, or with other staleness than derived."""


def first_line(error: BaseException) -> str:
    """What an exception of someone else's says, in one line fit for a sentence of ours."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

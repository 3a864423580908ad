"""What the tests of the command for a GPU share: steps that only say that they were there, and a place for them."""

import time
from pathlib import Path

from experiments.gpu.loop import CHECK, Choices, Clock, Folder, Step, Workplace
from experiments.gpu.settings import SMALL


def well():
    return [{"passed": True, "says": "well"}]


def failing():
    return [{"passed": False, "says": "7 is not 8"}]


class Fakes:
    """Makes steps; `ran` has the names of those that were run, in order."""

    def __init__(self):
        self.ran: list[str] = []

    def __call__(self, name, needs=(), seconds: float | None = 1.0, does=well, goes_on=False, kind=CHECK) -> Step:
        def run(at):
            self.ran.append(name)
            return does()

        return Step(name, kind, "a part of a test", run, tuple(needs), lambda at: seconds, goes_on=goes_on)


def at(path: Path, seconds: float = 60.0, **choices) -> Workplace:
    folder = Folder(path / "folder")
    folder.results.mkdir(parents=True, exist_ok=True)
    folder.rows.mkdir(exist_ok=True)
    return Workplace(SMALL, folder, Clock(seconds), Choices(**choices))


def until(what, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)

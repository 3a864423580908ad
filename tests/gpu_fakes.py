"""What the tests of the command for a GPU share: parts that only say that they were there, and a place for them."""

import time
from pathlib import Path

from experiments.gpu import plan
from experiments.gpu.clock import Clock
from experiments.gpu.folder import Folder
from experiments.gpu.plan import Choices, Workplace
from experiments.gpu.settings import SMALL


class Fake:
    """A part that says that it was there."""

    about = "a part of a test"

    def __init__(self, name, needs=(), seconds: float | None = 1.0, does=None, goes_on=False, kind=plan.CHECK):
        self.name, self.needs, self.time, self.goes_on, self.kind = name, tuple(needs), seconds, goes_on, kind
        self.does, self.runs = does or (lambda: [{"passed": True, "says": "well"}]), 0

    def seconds(self, at) -> float | None:
        return self.time

    def refused(self, at) -> str:
        return ""

    def run(self, at):
        self.runs += 1
        return self.does()


def at(path: Path, seconds: float = 60.0, **choices) -> Workplace:
    folder = Folder(path / "folder")
    folder.results.mkdir(parents=True, exist_ok=True)
    folder.rows.mkdir(exist_ok=True)
    return Workplace(SMALL, folder, Clock(seconds), Choices(**choices))


def raises(error: BaseException):
    def do():
        raise error

    return do


def failing():
    return [{"passed": False, "says": "7 is not 8"}]


def until(what, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)

"""Lines of metrics.jsonl in bounded memory. If there are very many lines, neighbours are merged. A curve looks the
same."""

from bisect import insort
from collections.abc import Mapping, Sequence
from typing import Any

Event = dict[str, Any]
MOST = 8192  # lines that are kept, approximately
MEANS = ("train_loss", "test_loss", "test_error_percent", "test_bits_per_byte")
SPEEDS = ("images_per_second", "tokens_per_second")
RANGE = "range of "  # with a name: an entry of merged lines only; no line of a file has it


class Thinned:
    """The lines that have a value `name`. The first line, the newest line and the line with the lowest value are never
    merged.

    name: the name of the value, such as "train_loss".
    """

    def __init__(self, name: str):
        self.name, self.size = name, 1  # how many lines are merged into one
        self.first: Event | None = None
        self.lowest: Event | None = None
        self.between: list[Event] = []
        self.newest: list[Event] = []  # at most `size` lines, and the newest one

    def add(self, event: Event) -> None:
        """Adds the next line."""
        if self.lowest is None or event[self.name] < self.lowest[self.name]:
            self.lowest = event
        if self.first is None:
            self.first = event
            return
        if len(self.newest) > self.size:
            self.between.append(merged(self.newest[:-1], self.name))
            del self.newest[:-1]
        self.newest.append(event)
        if len(self.between) == MOST:
            self.between = [merged(self.between[i : i + 2], self.name) for i in range(0, MOST, 2)]
            self.size *= 2

    @property
    def lines(self) -> list[Event]:
        """The lines so far, in their order. If there are fewer than MOST, no lines are merged."""
        first = [] if self.first is None else [self.first]
        rest = [merged(each, self.name) for each in (self.newest[:-1], self.newest[-1:]) if each]
        found = [*first, *self.between, *rest]
        if self.lowest is not None and self.size > 1 and self.lowest not in (first[0], rest[-1]):
            insort(found, self.lowest, key=lambda event: event["step"])
        return found


def merged(events: Sequence[Event], name: str) -> Event:
    """One line for neighbours: the last of them, with the means and the range of their values.

    The mean of speeds is harmonic, since it averages the times that batches took.
    """
    if len(events) == 1:
        return events[0]
    lows, highs = zip(*(span(event, name) for event in events), strict=True)
    made = {**events[-1], RANGE + name: (min(lows), max(highs))}
    for key in MEANS:
        if values := [event[key] for event in events if event.get(key) is not None]:
            made[key] = sum(values) / len(values)
    for key in SPEEDS:
        if times := [1 / event[key] for event in events if event.get(key)]:
            made[key] = len(times) / sum(times)
    return made


def span(event: Mapping[str, Any], name: str) -> tuple[float, float]:
    """The lowest and highest value of the lines that were merged into this one."""
    return event.get(RANGE + name, (event[name], event[name]))

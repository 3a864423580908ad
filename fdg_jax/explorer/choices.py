"""The choices that the explorer offers: methods, values of their options, K, and times of operations.

The page contains every schedule that can be chosen; its script computes when the operations of a schedule run. Times
are multiples of the forward pass of an ordinary stage.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

from fdg_jax import methods
from fdg_jax.errors import BadInput
from fdg_jax.methods.interface import Method
from fdg_jax.options.fields import Option, choices
from fdg_jax.schedule import Schedule

STAGES = tuple(range(1, 9))
BACKWARD = (1, 2, 3)
LINK = (Fraction(0), Fraction(1, 2), Fraction(1), Fraction(2))
FACTOR = (Fraction(3, 2), Fraction(2), Fraction(3))
AUXILIARY = Fraction(1, 2)
NUMBERS: Mapping[str, tuple[int, ...]] = {"accumulate": (1, 2, 3, 4), "micro_batches": (1, 2, 4, 8)}


class Times(NamedTuple):
    """The times of operations and messages. The unit is a forward pass of an ordinary stage on a whole batch.

    backward: the time of a backward pass and its update.
    link: the time to send a batch's activations to the next stage, or their gradient back. Each direction of a link
        sends one message at a time.
    slow, factor: all operations of stage `slow` take `factor` times as long; slow = 0 means no stage.
    """

    backward: int = 2
    link: Fraction = Fraction(0)
    slow: int = 0
    factor: Fraction = Fraction(1)


class Variant(NamedTuple):
    """A method with chosen values of the options that change its schedule.

    options: name -> value.
    """

    method: Method
    options: Mapping[str, Any]

    def schedule(self, K: int) -> Schedule:
        return self.method.schedule(K, **self.method.accepted(self.options)[0])

    @property
    def key(self) -> str:
        """The variant's name in the page's tables."""
        return ",".join([self.method.name, *(str(value) for value in self.options.values())])


def offered(option: Option) -> tuple[Any, ...]:
    """The values of an option that the page offers. They include the default."""
    if option.kind is bool:
        return (False, True)
    found = choices(option.kind) or NUMBERS.get(option.name, ())
    return tuple(found) if option.default in found else (option.default,)


def choosable(method: Method) -> dict[str, tuple[Any, ...]]:
    """The options of a method that change its schedule, with the values that the page offers. An option is left out if
    the method refuses one of these values, because the page has every combination of values."""
    found = {}
    for name in method.schedule_options:
        kinds = {told(Variant(method, {name: value}), 3) for value in offered(method.declared[name])}
        if len(kinds) > 1 and None not in kinds:
            found[name] = offered(method.declared[name])
    return found


def told(variant: Variant, K: int) -> tuple[Any, ...] | None:
    """Facts in which schedules of variants differ: a steady tick, delays, accumulation and micro-batches. None if the
    variant refuses K."""
    try:
        schedule = variant.schedule(K)
    except BadInput:
        return None
    return schedule.tick(4 * K + 2, None), schedule.delays, schedule.accumulate, schedule.micro_batches


def variants(method: Method) -> list[Variant]:
    """Every combination of a method's options that the page offers."""
    options = choosable(method)
    return [Variant(method, dict(zip(options, chosen, strict=True))) for chosen in product(*options.values())]


def everything() -> Iterator[tuple[Method, list[Variant]]]:
    """Yields all methods, each with its variants. Raises BadInput if a method's file cannot be used."""
    for name in methods.names():
        method = methods.find(name)
        yield method, variants(method)


def ticks_shown(schedule: Schedule) -> int:
    """How many ticks the page shows: enough to fill the pipeline and to show when a late gradient is used.

    With micro-batches, a batch fills and drains the pipeline within a tick, so fewer ticks take the same time.
    """
    K, M = schedule.K, schedule.micro_batches
    return -(-(4 * K + 6) * M // (M + K - 1)) if M > 1 else 4 * K + 6


def check_start(method: Method, K: int, options: Mapping[str, Any]) -> None:
    """Raises BadInput if the page does not offer this K or these values of options, so it cannot open with them."""
    if K not in STAGES:
        raise BadInput(f"--K {K}: the page offers K up to {STAGES[-1]}. Text output, --svg and --trace take any K.")
    on_page = choosable(method)
    for name, value in options.items():
        if value not in on_page.get(name, (value,)):
            flag, has = f"--{name.replace('_', '-')}", ", ".join(map(str, on_page[name]))
            raise BadInput(f"{flag} {value}: the page offers {has}. Text output, --svg and --trace take any value.")

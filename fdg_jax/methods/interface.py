"""What a file of this folder says of its method: `METHOD = Method(name=..., summary=..., schedule=...)`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fdg_jax.errors import BadInput
from fdg_jax.schedule import Schedule

Costs = Mapping[str, tuple[float, float, float]]
PASSES: Costs = {"F": (1, 0, 0), "B": (0, 1, 0)}


class Method(NamedTuple):
    """What the engines need to know of a method.

    schedule(K, **schedule_options) -> Schedule.
    schedule_options: keyword arguments of `schedule`, and with them the flags it answers to.
    stage_options: flags that its stages answer to (`Spec.options`), with their defaults.
    options: further flags it answers to ("beta", "weights").
    delay_line: True where, with stashed weights, the run is exactly BP with each stage's gradient delayed by
        `schedule.behind` backward passes, so that one device can stand in for K.
    same_for_every_K: True where K says where the work is done; the paper's warm-up for K = 3 and 4 is not meant for it.
    words: what operations do that are neither F nor B, for drawings.
    cost: of an operation's kind, in forward passes, backward passes and auxiliary networks of a stage (Table 2); a
        function of K where it depends on it.
    stage: the class of its stages, where it has one. places(devices) -> a Place a stage, where a stage is not simply
        on its device.
    """

    name: str
    summary: str
    schedule: Callable[..., Schedule]
    schedule_options: tuple[str, ...] = ()
    stage_options: Mapping[str, Any] = {}
    options: tuple[str, ...] = ()
    delay_line: bool = False
    same_for_every_K: bool = False
    words: Mapping[str, str] = {}
    cost: Costs | Callable[[int], Costs] = PASSES
    stage: Any = None
    places: Callable[[Sequence[Any]], Sequence[Any]] | None = None

    @property
    def answers_to(self) -> tuple[str, ...]:
        """The names of all its options."""
        return (*self.schedule_options, *self.stage_options, *self.options)

    def costs(self, K: int) -> Costs:
        """`cost` for that K."""
        return self.cost if isinstance(self.cost, Mapping) else self.cost(K)

    def other_weights(self, schedule: Schedule, weights: str) -> list[str]:
        """Per stage, whose weights its backward pass is taken at if not those of its forward pass; "" if they are."""
        own = getattr(self.stage, "backward_at_other_weights", "")
        other = own or ("weights=current" if weights == "current" else "")
        return [other if own or n else "" for n in schedule.behind]

    def accepted(self, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Refuses options this method does not have; returns those of its schedule and all those of its stages."""
        for option, value in options.items():
            if option not in self.answers_to:
                raise BadInput(
                    f"{option}={value}: method {self.name} has no such option "
                    f"(it has: {', '.join(self.answers_to) or 'none'}). Leave it out."
                )
        of_schedule = {option: value for option, value in options.items() if option in self.schedule_options}
        return of_schedule, {name: options.get(name, default) for name, default in self.stage_options.items()}

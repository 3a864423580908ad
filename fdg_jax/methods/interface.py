"""`Method`, with which a file of this folder declares its method: `METHOD = Method(name=..., summary=..., ...)`."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fdg_jax.errors import BadInput, did_you_mean
from fdg_jax.options import fields
from fdg_jax.options.fields import KEYWORDS, Option, named, said
from fdg_jax.schedule import Schedule

Costs = Mapping[str, tuple[float, float, float]]
PASSES: Costs = {"F": (1, 0, 0), "B": (0, 1, 0)}


class Method(NamedTuple):
    """The definition of a method.

    schedule(K, **schedule_options) -> Schedule.
    options: the file's class `Options`; None if the method has no options of its own (fdg_jax.options.fields). Options
        that are parameters of `schedule` are passed to it; the stages get all others (`Spec.options`).
    takes: which of the options "beta" and "weights" the method accepts. The pipeline itself implements these two.
    delay_line: whether a run with stashed weights is exactly BP with each stage's gradient delayed by
        `schedule.delays` backward passes, so that one device can do the same training as K devices.
    same_for_every_K: whether K only changes where the work is done, not the result. The paper's warm-up for K = 3 and 4
        is not used for such methods.
    words: {kind of operation: what it does} for kinds other than F and B, for drawings.
    cost: {kind of operation: its time in (forward passes, backward passes, auxiliary networks) of a stage} (Table 2);
        or a function of K that returns this dictionary.
    stage: the class of the method's stages; None for `Stage`.
    places: places(devices) -> a Place for each stage; None if each stage is on its own device.
    """

    name: str
    summary: str
    schedule: Callable[..., Schedule]
    options: type | None = None
    takes: tuple[str, ...] = ()
    delay_line: bool = False
    same_for_every_K: bool = False
    words: Mapping[str, str] = {}
    cost: Costs | Callable[[int], Costs] = PASSES
    stage: Any = None
    places: Callable[[Sequence[Any]], Sequence[Any]] | None = None

    @property
    def declared(self) -> dict[str, Option]:
        """The method's own options by name. Raises BadInput if `options` is not a class that declares options."""
        return fields.of_class(self.options, f"method {self.name}: Options")

    @property
    def answers_to(self) -> tuple[str, ...]:
        """The names of all options that the method accepts."""
        return (*self.declared, *self.takes)

    @property
    def schedule_options(self) -> tuple[str, ...]:
        """The names of the method's own options that its schedule takes."""
        parameters = inspect.signature(self.schedule).parameters
        return tuple(name for name in self.declared if name in parameters)

    def costs(self, K: int) -> Costs:
        """`cost` for K stages."""
        return self.cost if isinstance(self.cost, Mapping) else self.cost(K)

    def is_late(self) -> bool:
        """Whether any gradient is late with two stages and the default options."""
        return any(self.schedule(2, **self.accepted({})[0]).delays)

    def other_weights(self, schedule: Schedule, weights: str) -> list[str]:
        """Per stage, the setting that makes its backward pass use other weights than its forward pass; "" if there is
        none."""
        own = getattr(self.stage, "backward_at_other_weights", "")
        other = own or ("weights=current" if weights == "current" else "")
        return [other if own or n else "" for n in schedule.delays]

    def accepted(self, asked: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The values of the method's own options.

        Arguments:
            asked: name -> value; all other options have their defaults.

        Returns: (options of the schedule, options of the stages).

        Raises: BadInput for an option that this method does not have, or a value of the wrong type.
        """
        if unknown := [name for name in asked if name not in self.answers_to]:
            raise self.lacks(unknown[0], asked[unknown[0]])
        own, of_schedule = fields.instance(self.options, self.declared, asked), self.schedule_options
        return {name: own[name] for name in of_schedule}, {n: own[n] for n in own if n not in of_schedule}

    def lacks(self, name: str, value: Any, otherwise: str = "") -> BadInput:
        """The error for an option that this method does not have.

        Arguments:
            name, value: the option's name and value.
            otherwise: another way out than to leave the option out, as text for the message.
        """
        way_out = "Leave it out"
        if name == "beta" and self.is_late():
            way_out += f", or add {said('correct', 'shrink')}, which has this option"
        way_out += f", or {otherwise}" if otherwise else ""
        fact = f"{said(name, value)}: method {self.name} has no such option (it has: {named(self.answers_to)})"
        return BadInput(f"{fact}.{did_you_mean(name, {*self.answers_to, *KEYWORDS})} {way_out}.")

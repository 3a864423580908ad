"""Switches: the arguments and fields that say whether a module is trained; and a search for switches that nobody sets.

A stage or a block gets `train`. If a part within it has a switch and is called without it, the switch has its default.
Then dropout may stay off, or batch statistics never move, without any error. So training is traced once with `Untold`.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

Tree = Any
LOSSES = "losses"  # the collection whose sown values are added to a stage's loss; it exists in training only
# The names of switches in Flax and in code written for it, each with its value in training.
SWITCHES = {"train": True, "training": True, "is_training": True, "deterministic": False, "use_running_average": False}
WAY_OUT = (
    "This library sets `train` only, of stages and blocks: True in training and False in evaluation. Give __call__ of "
    "your module an argument `train` and pass it on to its parts, as in nn.Dropout(0.1, deterministic=not train). "
    "nn.Sequential passes none on: write such a module instead, or give its parts as blocks, Pipeline(blocks, split=)."
)
FROZEN = (
    "To keep a part as it is in evaluation, say so where it is called, as in "
    "nn.BatchNorm()(x, use_running_average=True)."
)


class Switch(NamedTuple):
    """A switch of a part of a module, in one call of that part.

    name, value: of the argument or the field.
    argument: whether it is an argument; otherwise it is a field.
    given: whether the caller gave the argument, or the field has another value than its default.
    """

    name: str
    value: bool
    argument: bool
    given: bool

    @property
    def trains(self) -> bool:
        return self.value is SWITCHES[self.name]


def arguments(module: Any, x: Tree, train: bool) -> tuple[list[Any], dict[str, Any]]:
    """(arguments, keyword arguments) of a module's call: x, and `train` if the module takes it. `train` is passed by
    position if possible, since nn.remat and nn.jit know static arguments by their positions."""
    parameters = list(inspect.signature(type(module).__call__).parameters.values())
    before = list(takewhile(lambda each: each.name != "train", parameters))
    if len(before) == len(parameters):
        return [x], {}
    by_position = parameters[len(before)].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    between = [each.default for each in before[2:]]  # after self and x
    if not by_position or inspect.Parameter.empty in between:
        return [x], {"train": train}
    return [x, *between, train], {}


def switch_of(call: Callable, owner: Any, args: Any, kwargs: Mapping[str, Any]) -> Switch | None:
    """The switch of a call; if there are several, one that selects evaluation mode. owner: the module whose fields may
    be switches, or None."""
    try:
        bound = inspect.signature(call).bind_partial(*args, **kwargs)
    except TypeError:  # the call itself will say so
        return None
    given, found = set(bound.arguments), None
    bound.apply_defaults()
    for name in SWITCHES:
        argument = bound.arguments.get(name)
        value = vars(owner).get(name) if argument is None and owner else argument
        if isinstance(value, bool | np.bool_) and (found is None or found.trains):
            differs = value != getattr(type(owner), name, None)  # a dataclass has its fields' defaults there
            found = Switch(name, bool(value), argument is not None, differs if argument is None else name in given)
    return found


class Untold:
    """For flax.linen.intercept_methods: finds the parts that stay in evaluation mode while their module is trained,
    because nobody sets their switch. A switch that the caller sets counts as intended, also for everything within that
    part. So does a field, such as `not train or self.frozen`, if a module around the part is told that it trains.

    tell: whether to set the switches that are found.
    found: {a part, in words, "" for the outermost module: its switch}.
    """

    def __init__(self, tell: bool = False):
        self.tell, self.found = tell, dict[str, Switch]()
        self.looks: bool | None = None  # None outside of the outermost module
        self.told = False  # whether an enclosing module was told that it is trained

    def __call__(self, next_call: Callable, args: Any, kwargs: Any, context: Any) -> Any:
        module, before = context.module, (self.looks, self.told)
        if self.looks is None:
            self.looks = module.scope is not None and module.is_mutable_collection(LOSSES)
        # The method of a module within nn.jit is a lambda, and what is inside may have been traced before.
        lifted = context.method_name == "<lambda>"
        call = partial(type(module).__call__, module) if lifted else context.orig_method
        switch = switch_of(call, module, args, kwargs) if self.looks else None
        try:
            if switch is None or switch.trains:  # a stage of blocks only passes `train` on
                self.told = self.told or (switch is not None and not hasattr(module, "named_blocks"))
            elif switch.given and (switch.argument or self.told):
                self.looks = False
            else:
                outermost, path = before[0] is None, "/".join(module.path)  # a path begins anew in nn.remat, say
                self.found.setdefault("" if outermost else f"{path} ({type(module).__name__})".strip(), switch)
                if self.tell:
                    return told(next_call, args, kwargs, module, switch)
            return next_call(*args, **kwargs)
        finally:
            self.looks, self.told = before


def told(next_call: Callable, args: Any, kwargs: Any, module: Any, switch: Switch) -> Any:
    """The result of a call with its switch set for training."""
    if switch.argument:
        return next_call(*args, **kwargs, **{switch.name: not switch.value})
    object.__setattr__(module, switch.name, not switch.value)
    try:
        return next_call(*args, **kwargs)
    finally:
        object.__setattr__(module, switch.name, switch.value)


def refusal(who: str, part: str, switch: Switch) -> str:
    """The message about a part of a module whose switch nobody sets. part: "" if it is the module itself."""
    whole = f"{who}: its part {part}" if part else who
    what = "an argument" if switch.argument else "a field"
    fact = f"{whole} has {what} `{switch.name}`, which nobody would set: it is {switch.value} in training, too"
    return f"{fact}, so that dropout is off, or batch statistics never move. {WAY_OUT} {FROZEN}"

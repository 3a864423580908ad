"""Switches are the arguments and fields that say whether a module is trained. This module sets them, and finds those
that nobody sets.

The pipeline passes `train` to a stage or block. If the stage then calls a part without setting the part's switch, the
switch keeps its default. Then dropout may stay off, or batch statistics never move, without any error. So training is
traced once with `Untold`, which finds such parts.
An `Around`, which `fdg_jax.stage` and `fdg_jax.tie` return, hands `train` on to the module that it is around.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np

Tree = Any
Path = tuple[Any, ...]  # of a module or an array in nested dictionaries of variables
LOSSES = "losses"  # the collection whose sown values are added to a stage's loss; it exists in training only
# The names of switches in Flax and in code written for it, each with its value in training.
SWITCHES = {"train": True, "training": True, "is_training": True, "deterministic": False, "use_running_average": False}
WAY_OUT = (
    "By itself, fdg_jax sets such switches only of stages and blocks, not of their parts. Use fdg_jax.stage(module), "
    "which sets those of all parts, also within nn.Sequential. Or give __call__ an argument `train` and pass it on, as "
    "in nn.Dropout(0.1, deterministic=not train)."
)
FROZEN = (
    "To keep a part in evaluation mode on purpose, set the switch in its call, as in "
    "nn.BatchNorm()(x, use_running_average=True)."
)


class Switch(NamedTuple):
    """The switch of one part of a module, as a single call of the part sets it.

    name, value: of the argument or the field.
    argument: whether the switch is an argument; otherwise it is a field.
    given: whether the caller gave the argument, or the field has another value than its default.
    """

    name: str
    value: bool
    argument: bool
    given: bool

    @property
    def trains(self) -> bool:
        return self.value is SWITCHES[self.name]


def switches(module: Any, train: bool) -> dict[str, bool]:
    """The switches that a module's __call__ takes, with their values for training or evaluation. A switch that a field
    of the same name sets is left out."""
    takes = inspect.signature(type(module).__call__).parameters
    return {name: SWITCHES[name] is train for name in takes if name in SWITCHES and vars(module).get(name) is None}


def arguments(module: Any, x: Tree, train: bool) -> tuple[list[Any], dict[str, Any]]:
    """(arguments, keyword arguments) of a module's call: x, and its switches. The first switch is passed by position if
    possible, since nn.remat and nn.jit know static arguments by their positions."""
    named, parameters = switches(module, train), list(inspect.signature(type(module).__call__).parameters.values())
    before = list(takewhile(lambda each: each.name not in named, parameters))
    between = [each.default for each in before[2:]]  # after self and x
    if not named or inspect.Parameter.empty in between:
        return [x], named
    first = parameters[len(before)]
    if first.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
        return [x], named
    return [x, *between, named.pop(first.name)], named


def by_position(module: Any, given: list[Any], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a module's call, by position as far as possible, since nn.remat and nn.jit know static arguments
    by their positions."""
    try:
        bound = inspect.signature(type(module).__call__).bind(module, *given, **named)
    except TypeError:  # the call itself will say so
        return tuple(given), named
    bound.apply_defaults()
    return bound.args[1:], bound.kwargs


def switch_of(call: Callable, owner: Any, args: Any, kwargs: Mapping[str, Any]) -> Switch | None:
    """The switch of a call. If the call has several switches, one that selects evaluation mode is returned. owner: the
    module whose fields may be switches, or None."""
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


class Tell:
    """For flax.linen.intercept_methods: sets, for training or for evaluation, every switch within a module that nobody
    else sets. A part whose caller sets its switch stays as it is, with everything within it. A part with a field that
    differs from its default stays as it is, too.
    """

    def __init__(self, train: bool):
        self.train, self.tells = train, True

    def __call__(self, next_call: Callable, args: Any, kwargs: Any, context: Any) -> Any:
        module, before = context.module, self.tells
        if not self.tells or context.method_name != "__call__":
            return next_call(*args, **kwargs)
        parameters = inspect.signature(type(module).__call__).parameters
        given = inspect.signature(context.orig_method).bind_partial(*args, **kwargs).arguments
        fields = {}
        try:
            for name in SWITCHES:
                value, field = SWITCHES[name] is self.train, vars(module).get(name)
                if given.get(name) is not None:
                    self.tells = self.tells and given[name] is value
                elif field != getattr(type(module), name, None):  # set when the module was made
                    self.tells = self.tells and field is value
                elif name in parameters:
                    kwargs = {**kwargs, name: value}
                elif name in vars(module):
                    fields[name] = field
                    object.__setattr__(module, name, value)
            return next_call(*args, **kwargs)
        finally:
            self.tells = before
            for name, field in fields.items():
                object.__setattr__(module, name, field)


class Untold:
    """For flax.linen.intercept_methods: finds the parts that stay in evaluation mode while their module is trained,
    because nobody sets their switch. A switch that the caller sets counts as intended, also for everything within that
    part. A field, such as `not train or self.frozen`, counts as intended if a module around the part was told that it
    is trained.

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
        if lifted and switch and not switch.given:  # static arguments are not among those of the lambda
            switch = None
        try:
            if getattr(module, "stays", False):
                self.looks = False
            elif switch is None or switch.trains:
                self.told = self.told or (switch is not None and not getattr(module, "passes_train_on", False))
            elif switch.given and (switch.argument or self.told):
                self.looks = False
            else:
                outermost, path = before[0] is None, "/".join(module.path)  # paths begin anew in nn.remat, for example
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
    """The message about a part of a module if nobody sets the part's switch. part: "" for the module itself."""
    whole = f"{who}: its part {part}" if part else who
    what = "an argument" if switch.argument else "a field"
    fact = f"{whole} has {what} `{switch.name}`, which nobody would set: it would be {switch.value} in training, too"
    return f"{fact}, so dropout would be off, or batch statistics would not change. {WAY_OUT} {FROZEN}"


class Held:
    """Holds a module in a field of another module without making it a submodule."""

    def __init__(self, module: nn.Module):
        self.module = module


class Around(nn.Module):
    """A module that wraps another one. The inner module's variables keep their names."""

    held: Held
    passes_train_on = True  # hands `train` to its parts, and does nothing else with it

    @property
    def inner(self) -> nn.Module:
        """The inner module, for one call."""
        return self.held.module.clone(parent=self.scope)


def name_of(module: nn.Module) -> str:
    """The name of a module's class; for a wrapper, that of the inner module."""
    return name_of(module.held.module) if isinstance(module, Around) else type(module).__name__


def found(tree: Any, path: Path) -> Any:
    """The entry at a path in nested dictionaries; None if there is no entry."""
    for name in path:
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree

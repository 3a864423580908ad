"""Makes stages of modules that were not written as stages: with other names of the training switch, with several
inputs, with auxiliary outputs, or as plain functions. `stage` and `from_functions` replace a wrapper class of ten lines
by one line.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fdg_jax.errors import BadInput
from fdg_jax.stages.reported import METRICS
from fdg_jax.stages.switches import LOSSES, SWITCHES, Around, Held, Tell, by_position, name_of

Tree = Any


class Call(NamedTuple):
    """How an `Adapted` calls its module. tells: whether it sets the training switches that nobody else sets. The other
    fields are the arguments of `stage`."""

    tells: bool
    switch: tuple[tuple[str, bool | None], ...]
    inputs: tuple[tuple[str | int, str], ...]
    output: str | None
    carry: tuple[str, ...]
    aux: str | float | None
    rngs: tuple[tuple[str, str], ...]


def stage(
    module: Any,
    *,
    switch: str | Mapping[str, bool] | None = None,
    inputs: str | tuple[str, ...] | Mapping[str, str] = (),
    output: str | None = None,
    carry: str | tuple[str, ...] = (),
    aux: str | float | None = None,
    rngs: str | tuple[str, ...] | Mapping[str, str] = (),
) -> nn.Module:
    """Makes a stage, or a block, of a module that was not written for this library. Its variables keep their names.

    It sets the switches `train`, `training`, `is_training`, `deterministic` and `use_running_average` of the module and
    of all its parts, arguments and fields alike. A switch that the module sets itself is left alone. So
    `stage(nn.Sequential([nn.Dense(8), nn.BatchNorm(), nn.Dropout(0.1)]))` needs nothing else. `init` refuses a module
    with a switch that cannot be reached: a field that `setup` has read, or a static argument within nn.remat.

    Arguments:
        module: a linen module, or what `fdg_jax.from_nnx` takes.
        switch: a switch of another name, with its value in training, such as {"testing": False}. Or the name of a
            switch, such as "train", which is then set even if the module was made with a value for it.
        inputs: the entries of the message (a dictionary) that the module takes: one name; several names, in the order
            of its arguments; or {argument: name}. By default the module takes the whole message.
        output: the name of the module's output in the message to the next stage. With `carry`, it is by default the
            name of the module's first input.
        carry: the entries of the message that go on to the next stage untouched, such as ("mask",).
        aux: for a module that returns (y, aux). "loss" adds the sum of aux to the loss. A number is the weight of this
            sum. "metric" reports aux in `Metrics.metrics`: a number as "aux", a dictionary of numbers under its keys.
            "drop" discards aux.
        rngs: names of random streams that the module draws from only if `has_rng` finds them. Or {argument: stream},
            for arguments of its call that take a key. In evaluation these streams do not exist, and these arguments are
            None.

    Returns: a linen module with `__call__(x, train)`.

    Raises:
        BadInput: an argument does not fit the module.

    Example: `stage(TransformerLayer(), inputs=("x", "mask"), carry=("mask",), aux="loss")`
    """
    if isinstance(module, type) and issubclass(module, nn.Module):
        raise BadInput(f"stage takes an instance of a linen module, not the class: stage({module.__name__}(...)).")
    if not isinstance(module, nn.Module):
        from fdg_jax.stages.from_nnx import from_nnx  # here: importing flax.nnx takes half a second

        if switch is not None:
            raise BadInput("switch= is for linen modules; nnx modules have train() and eval(). Leave switch= out.")
        module = from_nnx(module)
    named = {switch: SWITCHES.get(switch)} if isinstance(switch, str) else dict(switch or {})
    takes, who = {*inspect.signature(type(module).__call__).parameters} - {"self"}, type(module).__name__
    for name, value in named.items():
        if value is None:
            fact = f"switch={name!r} does not say which value the switch has in training"
            raise BadInput(f"{fact}. Give switch={{{name!r}: its value in training}}.")
        if name not in takes and name not in vars(module):
            raise BadInput(f"{who} has no argument or field `{name}`: its call takes {', '.join(sorted(takes))}.")
    for name in SWITCHES if switch is None else ():
        field = vars(module).get(name)
        if isinstance(field, bool) and field != getattr(type(module), name, None):
            fact = f"{who} was made with {name}={field}, which may be a switch or a fixed value"
            raise BadInput(f"{fact}. Give switch={name!r} if training sets it, or switch={{}} to keep all values.")
    carry = (carry,) if isinstance(carry, str) else tuple(carry)
    of = [inputs] if isinstance(inputs, str) else inputs
    routes = tuple(of.items() if isinstance(of, Mapping) else enumerate(of))
    if carry and not routes:
        raise BadInput(f"carry={carry} needs a dictionary as input: name the entries that {who} takes, as inputs='x'.")
    if isinstance(aux, str) and aux not in ("loss", "metric", "drop"):
        raise BadInput(f"aux={aux!r} is not known. Give 'loss', a weight such as 0.01, 'metric' or 'drop'.")
    asked = [rngs] if isinstance(rngs, str) else rngs
    streams = tuple(asked.items() if isinstance(asked, Mapping) else (("", name) for name in asked))
    output = output or (routes[0][1] if carry else None)
    if output in carry:
        raise BadInput(f"{output!r} names both a carried entry and the output of {who}. Change output=.")
    return Adapted(Held(module), Call(switch != {}, tuple(named.items()), routes, output, carry, aux, streams))


class Adapted(Around):
    """The linen module that `stage` returns. how: its arguments."""

    how: Call

    @property
    def stays(self) -> bool:
        """Whether the caller of `stage` has asked that no switch is set."""
        return not self.how.tells

    def __call__(self, x: Any, train: bool) -> Any:
        how, who = self.how, name_of(self)
        for name in {each for _, each in how.inputs} | {*how.carry}:
            if not isinstance(x, Mapping) or name not in x:
                has = f"has {', '.join(map(str, x))}" if isinstance(x, Mapping) else "is not a dictionary"
                raise BadInput(
                    f"{who} takes or carries {name!r}, but its input {has}. The stage before passes an entry on by "
                    f"fdg_jax.stage(module, inputs=..., carry=({name!r},))."
                )
        module, given, named = self.inner, [x], {}
        if how.inputs:
            given = [x[name] for at, name in how.inputs if isinstance(at, int)]
            named = {at: x[name] for at, name in how.inputs if isinstance(at, str)}
        for argument, stream in how.rngs:
            key = self.make_rng(stream) if train else None
            named |= {argument: key} if argument else {}
        takes = inspect.signature(type(module).__call__).parameters
        for name, trains in self.switches(module):
            if name in vars(module):
                object.__setattr__(module, name, trains is train)  # `inner` is a copy for this call
            elif name in takes:
                named[name] = trains is train
        given, named = by_position(module, given, named)
        with nn.intercept_methods(Tell(train)) if how.tells else nullcontext():
            y = module(*given, **named)
        if how.aux is not None:
            y = self.without_aux(y)
        return y if how.output is None else {**{name: x[name] for name in how.carry}, how.output: y}

    def switches(self, module: nn.Module) -> Iterable[tuple[str, bool | None]]:
        """(name, value in training) of each switch to set in the module itself. These are the switches given to
        `stage`. By default they are the usual switches, except fields that differ from their defaults."""
        if self.how.switch or not self.how.tells:
            return self.how.switch
        fields, kind = vars(module), type(module)
        return [each for each in SWITCHES.items() if fields.get(each[0]) == getattr(kind, each[0], None)]

    def without_aux(self, result: Any) -> Any:
        """Returns y of a module's (y, aux). Sows or discards aux, as the argument `aux` of `stage` says."""
        if not isinstance(result, tuple):
            fact = f"aux={self.how.aux!r}, but {name_of(self)} does not return a tuple (y, aux)"
            raise BadInput(f"{fact}. Leave aux out.")
        (y, *rest), aux = result, self.how.aux
        if aux == "metric":
            self.sow(METRICS, "aux", rest[0] if len(rest) == 1 else rest)
        elif aux is not None and aux != "drop":
            total = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(rest))
            self.sow(LOSSES, "aux", total if isinstance(aux, str) else total * aux)
        return y


def from_functions(init: Callable[..., Tree], apply: Callable[..., Tree], state: bool = False) -> nn.Module:
    """Makes a stage, or a block, of two pure functions, such as those of Haiku and Equinox.

    Arguments:
        init: (key, x) -> the parameters, a tree; or, with `state`, (parameters, state).
        apply: (parameters, x) -> y; or, with `state`, (parameters, state, x) -> (y, state). An argument `key` or `rng`
            gets a random key in training, and None in evaluation. An argument `train`, or a switch of another usual
            name, is set.
        state: whether there is a state beside the parameters, such as batch statistics. It is kept in training.

    Returns: a linen module with `__call__(x, train)`.

    Example: `from_functions(net.init, lambda params, x, key: net.apply(params, key, x))`, for a `net` of hk.transform
    """
    return FromFunctions(init, apply, state)


class FromFunctions(nn.Module):
    """The linen module that `from_functions` returns. The fields are its arguments."""

    init_: Callable[..., Tree]
    apply_: Callable[..., Tree]
    state: bool

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        first = cache(lambda: self.init_(self.make_rng("params"), x))
        params = self.kept("params", lambda: first()[0] if self.state else first())
        takes = inspect.signature(self.apply_).parameters
        named: dict[str, Any] = {name: SWITCHES[name] is train for name in SWITCHES if name in takes}
        for name in {"key", "rng"} & takes.keys():
            named[name] = self.make_rng("dropout") if train else None
        if not self.state:
            return self.apply_(params, x, **named)
        before = self.kept("state", lambda: first()[1])
        y, after = self.apply_(params, before, x, **named)
        if train and not self.is_initializing():
            for name, value in as_names(after).items():
                self.put_variable("state", name, value)
        return y

    def kept(self, kind: str, make: Callable[[], Tree]) -> Tree:
        """The variables of this kind. A dictionary's entries keep their names; any other tree is one variable."""
        names = as_names(make()) if self.is_initializing() else self.variables.get(kind, {})
        got = {name: self.variable(kind, name, lambda name=name: names[name]).value for name in names}
        return got[WHOLE] if {*got} == {WHOLE} else got


WHOLE = "whole tree"  # the name of a tree of variables that is no dictionary


def as_names(tree: Tree) -> Mapping[str, Tree]:
    """A tree of variables as a dictionary."""
    return tree if isinstance(tree, Mapping) else {WHOLE: tree}

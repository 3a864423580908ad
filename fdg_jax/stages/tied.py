"""Weights that several stages share. One stage owns them: they lie on its device, and its optimizer updates them. It
sends them on beside its outputs. Their gradient comes back with the gradient of the outputs and is equally late.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn

from fdg_jax.errors import BadInput
from fdg_jax.stages.switches import Around, Held, Path, arguments, found

Tree = Any


class WithTable(NamedTuple):
    """A message with the shared weights. x: the message. table: the weights of the shared module."""

    x: Tree
    table: Tree


def tie(stages: Sequence[nn.Module], shared: nn.Module) -> list[nn.Module]:
    """Ties a module that is part of several stages or blocks: they share its weights, as in plain Flax.

    The first stage with the module owns the weights. Every message from there to the last stage with the module also
    carries the weights. This adds the weights' bytes to each message. A later stage uses the version that came with the
    batch.

    Arguments:
        stages: the stages or blocks of a `Pipeline`.
        shared: the linen module. Several of the stages or blocks must be this object, or have it in a field.

    Returns: the stages or blocks, for `Pipeline`. Only the owner has the weights among its variables.

    Raises:
        BadInput: the module is in fewer than two stages or blocks.

    Example: `tie([Tokens(embed), Layer(), Layer(), Head(embed)], embed)`, where `Head` calls `self.embed.attend`
    """
    from fdg_jax.stages.from_nnx import parts  # here: importing flax.nnx takes half a second

    places: list[Path | None] = [
        next((path for part, path, _ in parts(module) if part is shared), None) for module in stages
    ]
    have = [at for at, path in enumerate(places) if path is not None]
    if len(have) < 2:
        fact = f"{len(have)} of {len(stages)} stages have this {type(shared).__name__} in a field, but tie needs two"
        raise BadInput(f"{fact}. Give each the same object, as in embed = nn.Embed(256, 64); [A(embed), B(embed)].")
    first, last = have[0], have[-1]
    return [
        Tied(Held(module), path, at == first, at == last) if first <= at <= last else module
        for at, (module, path) in enumerate(zip(stages, places, strict=True))
    ]


class Tied(Around):
    """A stage from the owner of shared weights to the last one that uses them.

    where: the path of the shared module in the stage's variables; None if this stage does not have it.
    owns, last: whether it is the first, or the last, of the stages with the shared module.
    """

    where: Path | None
    owns: bool
    last: bool

    def __call__(self, x: Any, train: bool) -> Any:
        module = self.inner
        if self.owns:
            y = call(module, x, train)
            return WithTable(y, found(self.variables["params"], self.where or ()))
        x, table = x
        if self.where is None:
            return WithTable(call(module, x, train), table)
        place = ("params", *self.where)
        with_table = nn.map_variables(
            lambda module, x: call(module, x, train),
            "params",
            trans_in_fn=lambda variables: put(variables, place, table),
            trans_out_fn=lambda variables: put(variables, place, None),
            init=self.is_initializing(),
            mutable=self.is_initializing(),
        )
        y = with_table(module, x)
        return y if self.last else WithTable(y, table)


def call(module: nn.Module, x: Tree, train: bool) -> Tree:
    """The result of a stage's module."""
    given, named = arguments(module, x, train)
    return module(*given, **named)


def put(tree: Mapping[str, Tree], path: Path, value: Tree | None) -> dict[str, Tree]:
    """Nested dictionaries with the value set at a path; if the value is None, with the entry at the path removed."""
    if not path:
        return dict(value or {})
    name, *rest = path
    inner = put(tree.get(name, {}), tuple(rest), value) if rest or value is not None else None
    return {**{key: each for key, each in tree.items() if key != name}, **({} if inner is None else {name: inner})}

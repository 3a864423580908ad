"""Model families, one file each. A file has the models' names, their blocks, and the splits of the paper's authors.

Nothing needs to be registered: a file with a `NAMES` table is a family (`Family` says what else it has). Shared layers
are in `fdg_jax.layers`. A network is a flat list of blocks, because it can be split between any two of them. In
residual networks, block 0 is the stem, each residual block is one block, and the last block is the head. A file may
declare options, as methods do (fdg_jax.options.fields). This module imports no JAX; the files of the families do.
"""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, cast

from fdg_jax.errors import BadInput, did_you_mean, sentence
from fdg_jax.options import fields
from fdg_jax.options.fields import Option
from fdg_jax.options.folder import Folder

if TYPE_CHECKING:
    import flax.linen as nn

UNITS = ("images", "tokens")
FOLDER = Folder(__name__, "model")


class Family(Protocol):
    """The interface of a file in this folder. Only NAMES and `blocks` are needed.

    NAMES: {name on the command line: arguments of `blocks`}.
    blocks(classes, **arguments): the blocks, linen modules `__call__(x, train)`, or `__call__(x)` where training and
        evaluation are the same. The first block takes inputs as `TAKES` says; the last block gives the logits of the
        classes. Blocks pass on arrays, or tuples of arrays. They may use dropout (rng "dropout") and batch statistics.
    PAPER_SPLITS: {(name, K): first block numbers of stages 2..K}, for the splits that the authors give.
    TAKES: "images" (float32 [b, h, w, c], the default) or "tokens" (int32 [b, length]).
    arguments(name): the arguments for names that are not in NAMES (any depth or width), None for names of other
        families.
    PATTERNS: the forms of such names, for people: `wrn<d>_<k>`.
    Options: a frozen dataclass of the family's options, which `blocks` takes by name as well.
    flops(classes, parameters, T, **arguments): FLOPs of training on one token, if there is a usual formula.
    DEFAULTS: {name: {option: value}}, the defaults of a single model: for the family's own options and for those of
        every run, such as block_size.
    """

    NAMES: Mapping[str, Mapping[str, Any]]

    def blocks(self, classes: int, **arguments: Any) -> "list[nn.Module]": ...


@cache
def _families() -> tuple[Family, ...]:
    """The files of this folder that have NAMES. Raises BadInput for a file that cannot be used."""
    found = []
    for file in FOLDER.names():
        module = FOLDER.module(file)
        if hasattr(module, "NAMES"):
            _check(module, file)
            found.append(module)
    return tuple(cast(Family, module) for module in found)


def join(file: str) -> None:
    """Checks a file that has joined the folder. Raises BadInput if it has no model of its own name."""
    _families.cache_clear()
    if hasattr(family := FOLDER.module(file), "NAMES"):
        _check(family, file)
    if not is_known(file):
        raise BadInput(f"{FOLDER.shown(file)} has no NAMES with {file!r}. Write NAMES = {{{file!r}: {{}}}}.")


def is_known(name: str) -> bool:
    """Whether there is a model of that name."""
    try:
        return bool(_find(name))
    except BadInput:
        return False


def _shown(file: str) -> str:
    """A family's file in messages."""
    return FOLDER.shown(file.rpartition(".")[2])


def _check(family: Any, file: str) -> None:
    """Raises BadInput if a file with NAMES lacks what a family needs."""
    tables = isinstance(family.NAMES, Mapping) and all(isinstance(each, Mapping) for each in family.NAMES.values())
    if not tables or not all(isinstance(name, str) for name in family.NAMES):
        fact = f"{_shown(file)}: NAMES is not a dictionary {{name: arguments of blocks}}"
        raise BadInput(f"{fact}. Write NAMES = {{'mine': {{}}}}.")
    if not callable(getattr(family, "blocks", None)):
        fact = f"{_shown(file)} has NAMES, but no function blocks"
        raise BadInput(f"{fact}. Write def blocks(classes, **arguments), which returns a list of Flax modules.")
    if getattr(family, "TAKES", UNITS[0]) not in UNITS:
        raise BadInput(f"{_shown(file)}: TAKES is {family.TAKES!r}. Write {' or '.join(map(repr, UNITS))}.")
    fields.of_class(getattr(family, "Options", None), f"{_shown(file)}: Options")


def _find(name: str) -> tuple[Any, Mapping[str, Any]]:
    """(the family of a model, its arguments). Raises BadInput, naming similar models."""
    for family in _families():
        if name in family.NAMES:
            return family, family.NAMES[name]
        arguments = getattr(family, "arguments", lambda _: None)(name)
        if arguments is not None:
            return family, arguments
    known = ", ".join(names_and_patterns())
    raise BadInput(f"model {name!r} is not known.{did_you_mean(name, names())} There are {known}.")


def names(takes: str | None = None) -> list[str]:
    """The names of all models in the families' tables. Some families know further names, such as wrn40_4.

    takes: "images" or "tokens", for the models that take these; None for all.
    """
    return [name for family in _of(takes) for name in family.NAMES]


def _of(unit: str | None) -> list[Any]:
    """The families whose models take "images" or "tokens"; all families for None."""
    return [family for family in _families() if unit in (None, getattr(family, "TAKES", UNITS[0]))]


def names_and_patterns(unit: str | None = None) -> list[str]:
    """The names of all models, then the patterns of the families that accept any size (`wrn<d>_<k>`).

    unit: what the models take, as in `names`. Raises: BadInput for a file that cannot be used.
    """
    return [*names(unit), *(pattern for family in _of(unit) for pattern in getattr(family, "PATTERNS", ()))]


def takes(name: str) -> str:
    """What a model takes: "images" or "tokens". Raises BadInput if there is no such model."""
    return getattr(_find(name)[0], "TAKES", UNITS[0])


def defaults(name: str | None) -> Mapping[str, Any]:
    """The defaults that a model changes, by option; {} for an unknown name, which is refused later."""
    return next((own[name] for family in _families() if name in (own := getattr(family, "DEFAULTS", {}))), {})


def declared(name: str) -> dict[str, Option]:
    """A model's own options by name. Raises BadInput if there is no such model."""
    family, _ = _find(name)
    return fields.of_class(getattr(family, "Options", None), f"{_shown(family.__name__)}: Options")


def of_file(file: str) -> dict[str, Option]:
    """The options that a file of this folder declares; {} for one without NAMES. Raises BadInput."""
    module = FOLDER.module(file)
    return fields.of_class(getattr(module, "Options", None), f"{FOLDER.shown(file)}: Options")


def blocks(name: str, classes: int, **options: Any) -> "list[nn.Module]":
    """The blocks of a model.

    Arguments:
        name: the model.
        classes: number of classes.
        options: the model's own options; those that are missing have their defaults.

    Returns: linen modules: the first takes images [b, h, w, c] or tokens [b, length], the last gives logits
    [b, classes] or [b, length, classes].

    Raises:
        BadInput: there is no such model (the message names similar ones), it has no such option, or its file does not
            make a list of Flax modules.
    """
    import flax.linen as nn

    family, arguments = _find(name)
    own, file, known = getattr(family, "Options", None), _shown(family.__name__), declared(name)
    if unknown := [each for each in options if each not in known]:
        has = ", ".join(known) or "none"
        raise BadInput(f"model {name} has no option {unknown[0]} (it has: {has}). Leave it out, or take another model.")
    chosen = fields.instance(own, known, {**defaults(name), **options})
    try:
        made = family.blocks(classes, **arguments, **chosen)
    except BadInput:
        raise
    except Exception as error:  # whatever the file does
        raise BadInput(f"{file}: blocks() of {name} fails: {sentence(error)} Mend it.") from error
    listed = isinstance(made, list | tuple)
    if not listed or not made or not all(isinstance(block, nn.Module) for block in made):
        kinds = ", ".join(dict.fromkeys(type(block).__name__ for block in made)) if listed else ""
        gives = f"a list of {kinds or 'nothing'}" if listed else f"a {type(made).__name__}"
        fact = f"{file}: blocks() of {name} gives {gives}, not a list of Flax linen modules"
        raise BadInput(f"{fact}. Return [Stem(), ..., Head(classes)].")
    return list(made)


def flops(name: str, classes: int, parameters: int, T: int, **options: Any) -> int | None:
    """FLOPs of training on one token of a block of T, by the family's formula; None if there is no formula. parameters:
    their number in the whole network. Other arguments: those of `blocks`."""
    family, arguments = _find(name)
    count = getattr(family, "flops", None)
    return count and count(classes, parameters, T, **arguments, **options)


def paper_split(name: str, K: int) -> tuple[int, ...] | None:
    """The split in the authors' released code.

    Arguments:
        name: the model.
        K: number of stages.

    Returns: the first block numbers of stages 2..K; None if the authors give no split.

    Raises:
        BadInput: there is no such model.
    """
    family, _ = _find(name)
    return () if K == 1 else getattr(family, "PAPER_SPLITS", {}).get((name, K))

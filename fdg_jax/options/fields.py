"""A file declares its options as fields of a frozen dataclass `Options`, each made by `option`.

    @dataclasses.dataclass(frozen=True)
    class Options:
        accumulate: int = option(1, "Update a stage after every M backward passes.", metavar="M")
        order: Literal["backward-first", "forward-first"] = option("backward-first", "What a stage does first.")

The type is bool, int, float, str or a Literal of texts. The flag of the training command, the keyword of
`fdg_jax.Pipeline` and the entry of config.json have the field's name.
"""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple

from fdg_jax.errors import BadInput
from fdg_jax.options import values

# Of fdg_jax.Pipeline and its `init`: names that mean something else there than an option of a file would.
KEYWORDS = {
    *("stages", "loss", "optimizer", "method", "beta", "correct", "learning_rate", "momentum", "devices", "engine"),
    *("weights", "dtype", "remat", "preprocess", "guard", "read_behind", "options", "key", "example_batch"),
    *("variables", "split", "K", "gradient_norms"),
}


class Option(NamedTuple):
    """What a file says of one of its options.

    kind: bool, int, float, str or Literal["a", "b"]. help: a text for --help. metavar: what stands for a value there,
    "" for the name of its type.
    """

    name: str
    kind: Any
    default: Any
    help: str
    metavar: str = ""


def option(default: Any, help: str, *, metavar: str = "") -> Any:
    """A field of a class `Options`.

    Arguments:
        default: the value that counts where none is given; of the field's type.
        help: what --help says of it.
        metavar: what stands for a value in --help; "" for the name of its type.

    Returns: a dataclass field.
    """
    return dataclasses.field(default=default, metadata={"help": help, "metavar": metavar})


def of_class(options: type | None, where: str) -> dict[str, Option]:
    """The options that a class declares, inherited ones included.

    Arguments:
        options: the class; None declares none.
        where: what to call it in a message.

    Returns: name -> Option, in the order of the fields.

    Raises: BadInput where it is no dataclass, or a field is not made by `option` or has no type that there is.
    """
    if options is None:
        return {}
    if not (isinstance(options, type) and dataclasses.is_dataclass(options)):
        raise BadInput(f"{where} is no dataclass. Write @dataclasses.dataclass(frozen=True) above the class.")
    kinds = typing.get_type_hints(options)
    found = {}
    for field in dataclasses.fields(options):
        if "help" not in field.metadata:
            raise BadInput(f"{where}.{field.name} is not made by option(). {example(field.name)}")
        if field.name in KEYWORDS:
            fact = f"{where}.{field.name} has the name of a keyword of fdg_jax.Pipeline with another meaning"
            raise BadInput(f"{fact}. Choose another one.")
        found[field.name] = checked(Option(field.name, kinds[field.name], field.default, **field.metadata), where)
    return found


def checked(declared: Option, where: str) -> Option:
    """The option, if its type is one that there is and its default is of that type. BadInput otherwise."""
    name, kind, default = declared[:3]
    if kind not in (bool, int, float, str) and not values.choices(kind):
        fact = f"{where}.{name} is of a type that an option cannot have"
        raise BadInput(f"{fact}. Use bool, int, float, str or Literal with texts.")
    if not values.fits(default, kind):
        fact = f"{where}.{name} has the default {default!r}, which is no {values.described(kind)}"
        raise BadInput(f"{fact}. Give one of its own type.")
    return declared


def instance(options: type | None, declared: Mapping[str, Option], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a class's options, checked by their types and by the class itself.

    Arguments:
        options: the class; None has no options.
        declared: its options, as `of_class` gives them.
        asked: name -> value. What is not named is at its default; other names are left alone.

    Returns: name -> value of every option.

    Raises: BadInput for a value that is not of its type, or that the class refuses (in __post_init__).
    """
    if options is None:
        return {}
    own = {name: asked[name] for name in declared if name in asked}
    for name, value in own.items():
        values.check(name, value, declared[name].kind, declared[name].default)
        if declared[name].kind in (int, float):  # a number of NumPy's would give arrays its own dtype
            own[name] = declared[name].kind(value)
    return dataclasses.asdict(options(**own))


def example(name: str) -> str:
    """How an option is declared, for messages."""
    return f'Write {name}: float = option(0.5, "what it does") there, with nothing computed.'

"""A file declares its options as fields of a frozen dataclass `Options`, each made by `option`.

    @dataclasses.dataclass(frozen=True)
    class Options:
        accumulate: int = option(1, "Update a stage after every M backward passes.", metavar="M", inside="[1, inf)")
        order: Literal["backward-first", "forward-first"] = option("backward-first", "What a stage does first.")

The type is bool, int, float, str or a Literal of texts. The flag of the training command, the keyword of
`fdg_jax.Pipeline` and the entry of config.json have the field's name.

Messages name an option as the user writes it: `--beta 0.5` in a command, `beta=0.5` in Python.
"""

import argparse
import contextlib
import dataclasses
import numbers
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from fdg_jax.errors import BadInput

# Keywords of fdg_jax.Pipeline and its `init`. They have a meaning already, so no file may declare such an option.
KEYWORDS = {
    *("stages", "loss", "optimizer", "method", "beta", "correct", "learning_rate", "momentum", "devices", "engine"),
    *("weights", "dtype", "remat", "preprocess", "guard", "read_behind", "options", "key", "example_batch"),
    *("variables", "split", "K", "gradient_norms", "ema", "axis_rules"),
}
WORDS = {
    int: "a whole number", float: "a number", str: "text", bool: "true or false", list: "a list", dict: "an object",
}  # fmt: skip
LONGEST = 2**16  # characters of a text; a note may name several files
LARGEST = 2**53  # the largest whole number that JSON keeps exactly in every language
AS_FLAGS: ContextVar[bool] = ContextVar("AS_FLAGS", default=False)


class Option(NamedTuple):
    """The declaration of an option; `option` explains the fields. by: the files that declare it, if any."""

    name: str
    kind: Any
    default: Any
    help: str
    metavar: str = ""
    inside: str = ""
    use: str = ""
    group: str = ""
    shown: str = ""
    free: bool = False
    by: tuple[str, ...] = ()

    @property
    def switch(self) -> bool:
        """Whether the flag takes no value, and has a --no-... form as well."""
        return fits(False, self.kind)


def option(
    default: Any, help: str, *, metavar: str = "", inside: str = "", use: str = "", group: str = "", shown: str = "",
    free: bool = False,
) -> Any:  # fmt: skip
    """A field of a class `Options`.

    Arguments:
        default: the default value, of the field's type.
        help: its text in --help.
        metavar: the placeholder of a value in --help; "" for the name of its type.
        inside: the interval of allowed numbers, such as "[1, inf)" or "(0, 1]"; "" for any.
        use: the advice for a number outside `inside`, such as "1 for no shrinking"; "" for the default.
        group, shown, free: only for the library's own options (fdg_jax.config). They are the group in --help, the
            default in words, and whether a resumed run may change the option.

    Returns: a dataclass field.
    """
    about = {"help": help, "metavar": metavar, "inside": inside, "use": use}
    return dataclasses.field(default=default, metadata={**about, "group": group, "shown": shown, "free": free})


def of_class(options: type | None, where: str, taken: Collection[str] = frozenset(KEYWORDS)) -> dict[str, Option]:
    """The options that a class declares or inherits.

    Arguments:
        options: the class; None declares none.
        where: the name of the class in a message.
        taken: names with another meaning, which no option may have.

    Returns: name -> Option, in the order of the fields.

    Raises: BadInput if `options` is no dataclass, or a field cannot be an option.
    """
    if options is None:
        return {}
    if not (isinstance(options, type) and dataclasses.is_dataclass(options)):
        raise BadInput(f"{where} is not a dataclass. Write @dataclasses.dataclass(frozen=True) above the class.")
    kinds, found = typing.get_type_hints(options), {}
    for field in dataclasses.fields(options):
        name, kind, who = field.name, kinds[field.name], f"{where}.{field.name}"
        if "help" not in field.metadata:
            raise BadInput(f'{who} is not made by option(). Write {name}: float = option(0.5, "what it does").')
        if name in taken or name.startswith("_"):
            raise BadInput(f"{who} has a name that is already in use. Choose another one.")
        if not all(part in (bool, int, float, str, tuple, types.NoneType) or choices(part) for part in parts(kind)):
            fact = f"{who} is of a type that an option cannot have"
            raise BadInput(f"{fact}. Use bool, int, float, str or Literal with texts.")
        if not fits(field.default, kind):
            fact = f"{who} has the default {field.default!r}, not {described(kind)}"
            raise BadInput(f"{fact}. Give a default of the option's type.")
        found[name] = Option(name, kind, field.default, **field.metadata)
    return found


def instance(options: type | None, declared: Mapping[str, Option], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a class's options, checked against their declarations and by the class itself.

    Arguments:
        options: the class; None has no options.
        declared: its options, as `of_class` gives them.
        asked: name -> value. Options without a value keep their default; other names are ignored.

    Returns: name -> value of every option.

    Raises: BadInput for a value that is invalid, or that the class refuses (in __post_init__).
    """
    if options is None:
        return {}
    own = declared.keys() & asked.keys()
    return dataclasses.asdict(options(**{name: checked(declared[name], asked[name]) for name in own}))


def checked(option: Option, value: Any) -> Any:
    """The checked value of an option, with a NumPy number as a Python one. Raises BadInput if the value is invalid."""
    name, kind, default = option[:3]
    if not fits(value, kind):
        if several := choices(kind):
            use = " or ".join([f"{default} (the default)", *(each for each in several if each != default)])
            raise BadInput(f"{said(name, value)} is not known. Use {use}.")
        raise BadInput(f"{said(name, value)} is not {described(kind)}. The default is {default!r}.")
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    value = float(value) if float in parts(kind) else int(value)  # type: ignore[arg-type]
    if isinstance(value, int) and not -LARGEST < value < LARGEST:
        raise BadInput(f"{said(name, value)}: whole numbers must be below {LARGEST:,}. Use a smaller number.")
    if option.inside and not lies(value, option.inside):
        use = option.use or ("another number, or leave the option out" if default is None else written(default))
        raise BadInput(f"{said(name, value)}: it {in_words(option.inside)}. Use {use}.")
    return value


def lies(value: float, inside: str) -> bool:
    """Whether a number lies in an interval such as "(0, 1]"; NaN lies in none."""
    low, high = map(float, inside[1:-1].split(","))
    above = value >= low if inside[0] == "[" else value > low
    return above and (value <= high if inside[-1] == "]" else value < high)


def in_words(inside: str) -> str:
    """An interval as a phrase after "it", such as "must be 1 or more"."""
    low, high = (part.strip() for part in inside[1:-1].split(","))
    if high != "inf":
        return f"must lie in {inside}"
    return "must be positive" if inside[0] == "(" else f"must be {low} or more"


# Types and values


def parts(kind: Any) -> tuple[Any, ...]:
    """The members of a union; any other type alone."""
    return typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)


def choices(kind: Any) -> tuple[str, ...]:
    """The texts of a Literal; () for any other type."""
    found = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
    return found if all(isinstance(each, str) for each in found) else ()


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of the type of an option: int, float, bool, str, X | None, or a Literal of texts."""
    if len(parts(kind)) > 1:
        return any(fits(value, one) for one in parts(kind))
    if typing.get_origin(kind) is typing.Literal:
        return isinstance(value, str) and value in typing.get_args(kind)
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, str) and len(value) > LONGEST:
        return False
    return isinstance(value, {int: numbers.Integral, float: numbers.Real}.get(kind, kind))


def described(kind: Any) -> str:
    """A type in plain words, for messages."""
    named = [" or ".join(choices(part)) or WORDS.get(part, "null") for part in parts(kind)]
    return " or ".join(named)


def from_word(word: str, kind: Any) -> Any:
    """Parses a word of a command line.

    Arguments:
        word: as it was typed.
        kind: int, float, str, a Literal of texts, or a union of these. The first member of a union that fits is taken.
            None is written "None".

    Raises: argparse.ArgumentTypeError, which says what is wrong with the word.
    """
    kinds = [one for one in parts(kind) if one is not types.NoneType]
    if word == "None" and types.NoneType in parts(kind):
        return None
    if several := choices(kinds[0]):
        if word not in several:
            raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(map(repr, several))}")
        return word
    for one in kinds:
        with contextlib.suppress(ValueError):
            return one(word)
    raise argparse.ArgumentTypeError(f"{word!r} is not {WORDS[kinds[0]]}")


# Options in messages and on command lines


@contextlib.contextmanager
def as_flags() -> Iterator[None]:
    """A context in which messages name options as flags, for users of a command line."""
    token = AS_FLAGS.set(True)
    try:
        yield
    finally:
        AS_FLAGS.reset(token)


def said(name: str, value: Any) -> str:
    """An option with its value, as the user writes it."""
    return " ".join(words(name, value)) if AS_FLAGS.get() else f"{name}={value!r}"


def named(names: Collection[str]) -> str:
    """The names of options in a message; "none" for none."""
    return ", ".join(map(spelled, names) if AS_FLAGS.get() else names) or "none"


def spelled(name: str) -> str:
    """An option's name as a flag: train_size -> --train-size."""
    return "--" + name.replace("_", "-")


def words(name: str, value: Any) -> list[str]:
    """An option as the words of a command line. A switch has no value: drain=False is --no-drain."""
    if isinstance(value, bool):
        return [spelled(name if value else f"no_{name}")]
    return [spelled(name), written(value)]


def written(value: Any) -> str:
    """A value as a word of a command line, with as many digits as it needs."""
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)

"""Values of options: whether one fits a type, what the type is called, and how a word of a command line becomes one."""

import argparse
import types
import typing
from typing import Any

from fdg_jax.errors import BadInput

WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false", list: "list", dict: "object"}
LONGEST = 2**16  # characters of a text; a note may name several files


def choices(kind: Any) -> tuple[str, ...]:
    """The texts of a Literal; () for any other type."""
    if typing.get_origin(kind) is typing.Literal:
        found = typing.get_args(kind)
        return found if all(isinstance(each, str) for each in found) else ()
    return ()


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of the type of an option: int, float, bool, str, X | None, or a Literal of texts."""
    if typing.get_origin(kind) is typing.Literal:
        return isinstance(value, str) and value in typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return any(fits(value, one) for one in typing.get_args(kind))
    if isinstance(value, bool):
        return kind is bool
    if kind is str and isinstance(value, str) and len(value) > LONGEST:
        return False
    return isinstance(value, (int, float) if kind is float else kind)


def described(kind: Any) -> str:
    """A type in words a person uses."""
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(map(str, typing.get_args(kind)))
    parts = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return " or ".join(WORDS.get(part, "null") for part in parts)


def check(name: str, value: Any, kind: Any, default: Any) -> None:
    """Raises BadInput where the value of an option is not of its type, or outside its Literal.

    Arguments:
        name: of the option. value: what was given for it. kind: its type. default: named as the way out.
    """
    if fits(value, kind):
        return
    if choices(kind):
        others = [each for each in choices(kind) if each != default]
        use = " or ".join([f"{default} (the default)", *others])
        raise BadInput(f"{name}={value!r} is not known. Use {use}.")
    raise BadInput(f"{name}={value!r} is no {described(kind)}. Use {default!r}, say, which is the default.")


def from_word(word: str, kind: Any) -> Any:
    """The value that a word of a command line stands for.

    Arguments:
        word: as it was typed.
        kind: int, float, str, a Literal of texts, or one of these or None, of which "None" is the word.

    Raises: argparse.ArgumentTypeError, which says what is wrong with the word.
    """
    if isinstance(kind, types.UnionType):
        if word == "None":
            return None
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    if choices(kind):
        if word not in choices(kind):
            raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(map(repr, choices(kind)))}")
        return word
    try:
        return kind(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r} is not a {WORDS[kind]}") from None

"""Reads the options that a file declares from its text, because --help cannot wait until the file's imports are done.

Only what is written out is understood: the class `Options` at the top level, its fields, and in them literals and
types. A type may be named in the same file (`Order = Literal["backward-first", "forward-first"]`).
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from fdg_jax.errors import BadInput
from fdg_jax.options.fields import Option, checked, example

KINDS = {"bool": bool, "int": int, "float": float, "str": str}


def options(file: Path, shown: str) -> dict[str, Option]:
    """The options that a file declares itself; those that its class inherits belong to another file.

    Arguments:
        file: the Python file.
        shown: what to call it in a message.

    Returns: name -> Option, in the order of the text; {} where there is no class `Options`.

    Raises: BadInput where the file, or a declaration in it, cannot be read.
    """
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        fact = f"{shown}{line} cannot be read: {getattr(error, 'msg', None) or error}"
        raise BadInput(f"{fact}. Mend it, or move it out of that folder.") from None
    types = dict(assigned(tree))
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Options":
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    found[field.target.id] = checked(
                        declared(field, field.target.id, types, shown), f"{shown}: Options"
                    )
    return found


def assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """(name, value) of every assignment at the top level of a module."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from ((target.id, statement.value) for target in targets if isinstance(target, ast.Name))


def declared(field: ast.AnnAssign, name: str, types: Mapping[str, ast.expr], shown: str) -> Option:
    """The option of a line `name: type = option(default, help, metavar=...)`. BadInput where it is no such line."""
    try:
        call = field.value
        if not isinstance(call, ast.Call) or last_name(call.func) != "option":
            raise ValueError
        given = [ast.literal_eval(each) for each in call.args]
        named = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        made = Option(name, kind_of(field.annotation, types), *given, **named)
        if not isinstance(made.help, str):
            raise ValueError
        return made
    except (ValueError, TypeError):
        fact = f"{shown}, line {field.lineno}: the option {name} cannot be read from the text of the file"
        raise BadInput(f"{fact}. {example(name)}") from None


def kind_of(node: ast.expr, types: Mapping[str, ast.expr]) -> Any:
    """The type that an annotation names. ValueError where it is none of those that an option can have."""
    name = last_name(node)
    if name in KINDS:
        return KINDS[name]
    if isinstance(node, ast.Name) and node.id in types:
        return kind_of(types[node.id], {})
    if isinstance(node, ast.Subscript) and last_name(node.value) == "Literal":
        texts = ast.literal_eval(node.slice)
        return Literal[texts if isinstance(texts, tuple) else (texts,)]  # type: ignore[valid-type]
    raise ValueError


def last_name(node: ast.expr) -> str:
    """`b` of `b` and of `a.b`, "" of anything else."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""

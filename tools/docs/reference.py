"""The reference: the names that a user imports, with the signatures of their source and their docstrings."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

import fdg_jax
from tools.docs import docstrings


class Part(NamedTuple):
    """A page of the reference.

    names: the page's names by the module from which a user imports them.
    """

    title: str
    says: str
    names: dict[str, list[str]]


PARTS = {
    "pipeline": Part("Pipeline", "[Your own modules](../own-modules.md) explains it by topics.",
                     {"fdg_jax": ["Pipeline"]}),
    "beside-it": Part("What belongs to it", "What a pipeline takes and gives, and what comes before it.",
                      {"fdg_jax": ["emulate_cpu", "join_processes", "stage", "from_nnx", "from_functions", "tie",
                                   "Weighted", "Metrics", "Evaluation", "BadInput"],
                       "fdg_jax.optimizers.nadam": ["nadam"], "fdg_jax.optimizers.rotation": ["rotation"]}),
    "weights": Part("Weights and states", "[Out of a pipeline, and back](../own-modules.md#weights-in-and-out).",
                    {"fdg_jax": ["save_weights", "load_weights", "load", "load_run"],
                     "fdg_jax.split": ["whole", "stages", "costs", "balanced", "parse"]}),
    "schedules": Part("Schedules", "Who does what when, as integers, without JAX.",
                      {"fdg_jax.schedule": ["Schedule", "Op", "Address", "Messages", "bp", "chain", "existing_ops",
                                            "check_K", "check_accumulation"],
                       "fdg_jax.methods.fdg": ["fdg"], "fdg_jax.methods.ddg": ["forward_locked"],
                       "fdg_jax.schedule.drawing": ["render"], "fdg_jax.schedule.summary": ["describe"],
                       "fdg_jax.schedule.running": ["Trace", "trace_run", "validate"],
                       "fdg_jax.schedule.ideal": ["Time", "Locks", "locks", "tick_time", "free_time"],
                       "fdg_jax.schedule.simulator": ["Link", "Machine", "Prediction", "predict"]}),
    "extending": Part("What a file of your own uses", "[Add a method, a correction and others](../extending.md).",
                      {"fdg_jax.methods.interface": ["Method"], "fdg_jax.stages.stage": ["Stage"],
                       "fdg_jax.stages.functions": ["Spec", "StageState"], "fdg_jax.stages.update": ["UpdateRule"],
                       "fdg_jax.corrections.interface": ["CorrectionSpec", "Late", "Correction"],
                       "fdg_jax.options.fields": ["option"], "fdg_jax.models": ["Family"],
                       "fdg_jax.data": ["Dataset", "Stream", "Text"],
                       "fdg_jax.transport.in_process": ["InProcess"], "fdg_jax.transport.devices": ["Place"]}),
    "networks": Part("Networks and data", "Those of the training commands.",
                     {"fdg_jax.models": ["names", "blocks", "takes", "paper_split"],
                      "fdg_jax.data": ["names", "load", "load_text"],
                      "fdg_jax.methods": ["names", "find"], "fdg_jax.corrections": ["names", "find"]}),
}  # fmt: skip


def pages() -> dict[str, str]:
    """The pages by path, and the page that lists all names."""
    listed = {name for part in PARTS.values() for name in part.names.get("fdg_jax", [])}
    if listed != set(fdg_jax.__all__):
        raise SystemExit(f"docs: the reference and fdg_jax.__all__ differ by {listed ^ set(fdg_jax.__all__)}.")
    return {f"docs/reference/{file}.md": page(part) for file, part in PARTS.items()} | {"docs/reference.md": overview()}


def overview() -> str:
    """The page that lists all names."""
    says = "What a user imports. What is wrong with an input raises `fdg_jax.BadInput`, before long work."
    out = ["# Reference\n", f"{says}\n"]
    for file, part in PARTS.items():
        out += [f"## [{part.title}](reference/{file}.md)\n", "| | |", "|---|---|"]
        for module, name, thing in members(part):
            out.append(f"| {{py:obj}}`{module}.{name}` | {first_sentence(thing)} |")
        out.append("")
    return "\n".join(out)


def members(part: Part) -> Iterator[tuple[str, str, Any]]:
    """(module, name, object) of everything on a page."""
    for module, names in part.names.items():
        for name in names:
            yield module, name, getattr(import_module(module), name)


def first_sentence(thing: Any) -> str:
    """The beginning of a docstring."""
    paragraph = (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")
    sentence = paragraph.split(". ")[0].rstrip(".")
    return docstrings.escaped(sentence).replace("|", "\\|") + "."


def page(part: Part) -> str:
    """A page of the reference."""
    out = [f"# {part.title}", part.says]
    module_before = ""
    for module, name, thing in members(part):
        if module != module_before and len(part.names) > 1:
            out.append(f"## {module}")
        module_before = module
        out.append(described(f"{module}.{name}", thing))
    return "\n\n".join(out) + "\n"


def described(name: str, thing: Any) -> str:
    """A class with its methods, or a function, as a directive of Sphinx."""
    if not inspect.isclass(thing):
        return directive("py:function", f"{name}({arguments(thing)}){returned(thing)}", docstrings.of(thing))
    inner = [docstrings.of(thing)]
    for owner, each in own_members(thing):
        called = vars(owner)[each]
        if isinstance(called, property):
            inner.append(directive("py:property", each, docstrings.of(called), ":type: " + type_of(called)))
        elif inspect.isfunction(called):
            signature = f"{each}({arguments(called, method=True)}){returned(called)}"
            inner.append(directive("py:method", signature, docstrings.of(called)))
    return directive("py:class", f"{name}({fields_of(thing)})", "\n\n".join(inner), marks=5)


def own_members(thing: type) -> list[tuple[type, str]]:
    """Public functions and properties of a class and its bases in this library, in source order. For an error, none of
    Python's own members."""
    found: dict[str, type] = {}
    for owner in thing.__mro__:
        if owner.__module__.startswith("fdg_jax"):
            for name, member in vars(owner).items():
                public = not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
                if public and (inspect.getdoc(member) or "") and name not in found:
                    found[name] = owner
    return [(owner, name) for name, owner in found.items()]


def directive(kind: str, signature: str, text: str, option: str = "", marks: int = 4) -> str:
    """A directive of MyST."""
    fence = "`" * marks
    return f"{fence}{{{kind}}} {signature}\n" + (f"{option}\n" if option else "") + f"\n{text}\n{fence}"


def source(thing: Any) -> Any:
    """The syntax tree of a class or a function."""
    return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(thing)))).body[0]


def arguments(function: Any, method: bool = False) -> str:
    """The arguments of a function as written in its source."""
    args = source(function).args
    if method and (args.posonlyargs or args.args):
        (args.posonlyargs or args.args).pop(0)
    return ast.unparse(args)


def returned(function: Any) -> str:
    """The return type of a function as written in its source."""
    found = source(function).returns
    return f" -> {ast.unparse(found)}" if found is not None else ""


def type_of(member: property) -> str:
    """The type of a property."""
    return returned(member.fget).removeprefix(" -> ") or "Any"


def fields_of(thing: type) -> str:
    """The parts of a class: the arguments of its __init__, or its fields."""
    for owner in thing.__mro__:
        if "__init__" in vars(owner) and owner.__module__.startswith("fdg_jax"):
            if hasattr(owner, "__dataclass_fields__"):
                break
            return arguments(vars(owner)["__init__"], method=True)
    if not (issubclass(thing, tuple) or hasattr(thing, "__dataclass_fields__")):
        return ""
    tree = source(thing)
    found = [each for each in tree.body if isinstance(each, ast.AnnAssign)]
    return ", ".join(ast.unparse(each) for each in found)

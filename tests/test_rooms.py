"""Every module lies in a room, and a room imports only the rooms that it may: whatever is not allowed is forbidden.

`ROOMS` is the whole rule. The source is read as text, so imports inside functions, imports for type checkers and
module names in strings (`import_module("fdg_jax.api")`) count like all others.
"""

import ast
import graphlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("fdg_jax", "benchmarks", "experiments", "examples")
FILES = ("errors", "durable", "strict_json")
BELOW_STAGES = (*FILES, "machine", "arrays", "checkpoint", "transport")
CONFIGURED = ("options", "config", "models", "corrections", "methods", "own_files")
BELOW_API = (*BELOW_STAGES, "schedule", "layers", "stages", "engine", "split", "checks", *CONFIGURED)
# Who may import whom, from the lowest room to the highest.
ROOMS: Mapping[str, tuple[str, ...]] = {
    "errors": (),
    "optimizers": (),
    "recipe": ("optimizers",),
    "schedule": ("errors",),
    "layers": (),
    "durable": (),
    "strict_json": (),
    "options": ("errors",),
    "arrays": ("errors",),
    "checkpoint": (*FILES, "arrays"),
    "machine": FILES,
    "data": (*FILES, "machine", "options"),
    "models": ("errors", "options", "layers"),
    "transport": ("errors", "machine", "schedule"),
    "corrections": ("errors", "options"),
    "stages": (*BELOW_STAGES, "layers", "corrections"),
    "split": ("errors", "machine", "models", "stages"),
    "block_times": ("recipe", "machine", "layers", "stages", "split"),
    "methods": (*BELOW_STAGES, "options", "schedule", "layers", "stages"),
    "engine": (*BELOW_STAGES, "schedule", "stages"),
    "config": ("errors", "options", "models", "corrections", "methods"),
    "own_files": ("errors", "durable", "options", "data", "config", "models", "corrections", "methods"),
    "gpt2": ("errors", "durable", "checkpoint", "models", "split", "config"),
    "config_file": ("errors", "strict_json", "options", "config", "own_files"),
    "cli": ("errors", "machine", "data", "config_file", *CONFIGURED),
    "checks": (*BELOW_STAGES, "data", "schedule", "stages", "split", "block_times", *CONFIGURED),
    "pages": (),
    "explorer": ("errors", "strict_json", "options", "schedule", "methods", "checks", "pages"),
    "api": ("recipe", *BELOW_API),
    "late": ("errors", "stages", "checks", *CONFIGURED),
    "runs": (*FILES, "machine", "data", "split", "stages", "checks", *CONFIGURED),
    "report": (*FILES, "recipe", "machine", "schedule", "checks", "pages", "explorer", "runs", *CONFIGURED),
    "compare": ("errors", "machine", "options", "report"),
    "watch": (),
    "sweep": ("errors", "durable", "machine", *CONFIGURED, "config_file", "cli", "checks", "runs", "report"),
    "training": ("recipe", *BELOW_API, "api", "data", "gpt2", "block_times", "cli", "runs", "report"),
    "together": ("errors", "machine", *CONFIGURED, "data", "engine", "cli", "runs", "sweep", "training"),
    "experiments": ("errors", "machine", "data", "options", "config", "cli", "checks", "runs", "report", "sweep",
                    "training", "together"),
    "evaluate": ("errors", "options", "machine", "own_files", "training", "experiments"),
    "export": ("errors", "machine", "gpt2", "training", "experiments", "evaluate"),
    "sample": ("errors", "options", "config", "machine", "data", "training", "experiments", "evaluate"),
    "launch": ("errors", "options", "machine"),
}
# A registry finds the files of its own room by their names.
REGISTRIES = {
    "fdg_jax.options.folder": (),
    "experiments": "experiments.table",
    "experiments.harness.paper": (),
    "benchmarks.__main__": (),
    "benchmarks.harness.forms": "fdg_jax.models.",
}
LAZY = {
    "Pipeline": "fdg_jax.api",
    "Metrics": "fdg_jax.engine.losses",
    "load": "fdg_jax.checkpoint.weights",
    "load_run": "fdg_jax.training.trained",
    "load_weights": "fdg_jax.checkpoint.weights",
    "save_weights": "fdg_jax.checkpoint.weights",
}  # names that `fdg_jax` resolves on first use


def modules() -> dict[str, Path]:
    """Every module by its full name."""
    found = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = file
    return found


MODULES = modules()


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that a source file imports, in whatever way it does."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                lazy = LAZY.get(alias.name) if node.module == "fdg_jax" else None
                yield lazy or (full if full in MODULES else node.module or "")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fdg_jax":
            yield LAZY.get(node.attr, "")
        elif isinstance(node, ast.Constant) and str(node.value).startswith("fdg_jax.") and id(node) not in docstrings:
            yield str(node.value)


@cache
def imports() -> dict[str, set[str]]:
    """The modules that each module imports."""
    return {name: {*imported(ast.parse(path.read_text()))} & MODULES.keys() - {name} for name, path in MODULES.items()}


def room(module: str) -> str:
    """The room a module of fdg_jax lies in, "" for the package itself and for commands (`__main__`)."""
    package, _, rest = module.partition(".")
    return "" if package != "fdg_jax" or rest.endswith("__main__") else rest.partition(".")[0]


def forbidden(module: str, other: str) -> str:
    """Why a module may not import another, "" where it may."""
    ours, theirs = module.partition(".")[0], other.partition(".")[0]
    if ours != theirs:
        downwards = {"benchmarks": ("fdg_jax",), "examples": ("fdg_jax",), "experiments": ("benchmarks", "fdg_jax")}
        return "" if theirs in downwards.get(ours, ()) else f"{module} imports {other}"
    here, there = room(module), room(other)
    if ours != "fdg_jax" or here == there or not here or other == "fdg_jax":
        return ""
    return "" if there in ROOMS.get(here, ()) else f"{module} (room {here}) imports {other} (room {there or 'command'})"


def test_every_module_lies_in_a_room():
    assert {room(module) for module in MODULES} - {""} == set(ROOMS)


def test_no_room_may_import_a_higher_one():
    order = list(ROOMS)
    assert all(order.index(lower) < order.index(room) for room, allowed in ROOMS.items() for lower in allowed)


def test_a_module_imports_only_what_its_room_may():
    found = ((module, other) for module, others in imports().items() for other in sorted(others))
    assert not [why for module, other in found if (why := forbidden(module, other))]


def graph() -> dict[str, set[str]]:
    """What every module imports; a registry imports all files that it finds."""
    found = {module: set(others) for module, others in imports().items()}
    for registry, prefixes in REGISTRIES.items():
        found[registry] |= {module for module in MODULES if module.startswith(prefixes) and "__main__" not in module}
        found[registry].discard(registry)
    return found


def test_no_module_imports_itself_by_way_of_others():
    graphlib.TopologicalSorter(graph()).prepare()  # CycleError names the modules of a circle

"""Every flag of the training command, in one frozen dataclass `Options`: `CommonOptions` and what the methods declare.

The declarations are read from the text of all files in fdg_jax/methods, so that --help and checks need no JAX. Names
and values stand in config.json as they are here, side by side.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from fdg_jax import methods
from fdg_jax.runs.common_options import GROUPS, CommonOptions, Resume, flag

__all__ = ["FIELDS", "GROUPS", "SWITCHES", "UNREADABLE", "Options", "Resume", "spelled"]

# Names that mean something else as a keyword of fdg_jax.Pipeline, in config.json or in summary.json.
KEYWORDS = (
    *("stages", "loss", "optimizer", "correct", "devices", "preprocess", "guard", "read_behind", "variables"),
    "options",
)
IN_CONFIG = (
    *("asked", "note", "versions", "backend", "processor", "cpus", "usable_cores", "platform", "cpu_devices"),
    *("xla_flags", "matmul_precision", "jax_settings", "git_commit", "started", "resumed", "resumed_from"),
)
IN_SUMMARY = (
    *("parameters", "auxiliary_parameters", "seconds", "images_per_second", "train_loss", "test_loss", "staleness"),
    *("test_error_percent", "updates", "final_parameters_sha256", "final_state_sha256", "stage_parameters", "drained"),
    "sessions",
)
TAKEN = {*KEYWORDS, *IN_CONFIG, *IN_SUMMARY, *(field.name for field in dataclasses.fields(CommonOptions))}
# What the methods' files declare, and what is wrong with a file that cannot be read. A command says it and ends; where
# this module is imported nothing is raised, for in Python only the method of that file is affected.
DECLARED, UNREADABLE = methods.declared(TAKEN)

if TYPE_CHECKING:

    class Options(CommonOptions):
        """All flags of the training command, as given or by default."""

        def __init__(self, **values: Any): ...

        def __getattr__(self, name: str) -> Any: ...

else:

    def field_of(one: methods.Declared) -> tuple[str, Any, Any]:
        """The field of `Options` for what a method's file declares."""
        group = "fdg" if "fdg" in one.methods else "others"
        made = flag(one.option.default, group, one.option.help, metavar=one.option.metavar, methods=one.methods)
        return one.option.name, one.option.kind, made

    Options = dataclasses.make_dataclass("Options", list(map(field_of, DECLARED)), bases=(CommonOptions,), frozen=True)
    Options.__module__ = __name__

# By group, as --help lists them; within a group first what all runs have.
FIELDS = {
    field.name: field for group in GROUPS for field in dataclasses.fields(Options) if field.metadata["group"] == group
}

# Flags without a value, which have a --no-... as well.
SWITCHES = frozenset(name for name, field in FIELDS.items() if field.type in (bool, Resume))


def defaults_of_other_methods(method: Any) -> dict[str, Any]:
    """The options that only other methods declare, at their defaults.

    A method's file that was added since a run began declares options which its config.json cannot have.
    """
    of = {name: field.metadata["methods"] for name, field in FIELDS.items() if field.metadata["methods"]}
    return {name: FIELDS[name].default for name, methods_of in of.items() if method not in methods_of}


def spelled(name: str) -> str:
    """A field's name as a flag: train_size -> --train-size."""
    return "--" + name.replace("_", "-")

"""Checks that the processes of a pipeline were started with the same settings, before any of them computes."""

import json
from collections.abc import Mapping

from fdg_jax.errors import BadInput
from fdg_jax.transport.notices import Notices


def check_same(facts: Mapping[str, str]) -> None:
    """Compares the processes' settings. Every process has to call it.

    Arguments:
        facts: the settings by name. Other settings are not compared.

    Raises:
        BadInput: a process has other settings than process 0. Every process raises this error.
    """
    found = [json.loads(text) for text in Notices().share(json.dumps(dict(facts)))]
    if difference := first_difference(found):
        raise BadInput(f"{difference} Start all with the same command line, code and versions.")


def first_difference(found: list[dict[str, str]]) -> str:
    """A sentence on the first setting in which a process differs from process 0; "" if they all agree.

    Arguments:
        found: the settings of the processes 0, 1, ...
    """
    first = found[0]
    for process, facts in enumerate(found):
        for name in [*first, *(facts.keys() - first.keys())]:
            ours, theirs = first.get(name, "none"), facts.get(name, "none")
            if ours != theirs:
                return f"process {process} has {name} {theirs}, process 0 has {name} {ours}."
    return ""

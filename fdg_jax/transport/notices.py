"""Exchanges short texts between joined processes through the coordination service of `jax.distributed`.

The texts are for rare agreements, such as on the settings, or on the step at which a training stops. Arrays are not
sent this way.
"""

import itertools
import json
from collections.abc import Mapping
from typing import Any

import jax
from jax.errors import JaxRuntimeError

from fdg_jax.errors import BadInput
from fdg_jax.machine import jax_internals

PREFIX = "fdg_jax"
SHARED = itertools.count()  # counts the calls of `share` in this process


class Notices:
    """The texts of this program by their names. Any thread may call the methods."""

    def __init__(self) -> None:
        self.client: Any = jax_internals.coordination_client()

    def put(self, name: str, text: str) -> None:
        """Stores a text. It replaces an earlier text of the same name."""
        self.client.key_value_set(f"{PREFIX}/{name}", text, allow_overwrite=True)

    def wait(self, name: str, seconds: float) -> str | None:
        """Waits for a text.

        Arguments:
            name: the text's name.
            seconds: how long to wait.

        Returns: the text; None if it has not come in this time.

        Raises:
            JaxRuntimeError: the coordination service cannot be reached.
        """
        try:
            return self.client.blocking_key_value_get(f"{PREFIX}/{name}", max(1, round(1000 * seconds)))
        except JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error) and "GetKeyValue() timed out" in str(error):
                return None
            raise

    def share(self, text: str) -> list[str]:
        """Returns, in every process, the texts of the processes 0, 1, ... It waits without a limit, because JAX ends
        the program if the heartbeats of a process stop. All processes must make these calls in the same order."""
        number = next(SHARED)
        self.put(f"all {number}/{jax.process_index()}", text)
        found: list[str] = []
        while len(found) < jax.process_count():
            if (other := self.wait(f"all {number}/{len(found)}", 60.0)) is not None:
                found.append(other)
        return found


def check_same(facts: Mapping[str, str]) -> None:
    """Compares the processes' settings. Every process must call it.

    Arguments:
        facts: the settings to compare, by name.

    Raises:
        BadInput: the settings of a process differ from those of process 0. Every process raises this error.
    """
    found = [json.loads(text) for text in Notices().share(json.dumps(dict(facts)))]
    if difference := first_difference(found):
        raise BadInput(f"{difference} Start all with the same command line, code and versions.")


def first_difference(found: list[dict[str, str]]) -> str:
    """A sentence about the first setting in which a process differs from process 0; "" if all processes agree.

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

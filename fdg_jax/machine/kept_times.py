"""Keeps measured times in the user's cache directory, together with the conditions that they depend on.

The times are used only under exactly these conditions. An error with the files never ends a command; the times are then
measured again.
"""

import contextlib
import hashlib
import json
import math
from pathlib import Path
from typing import Any

from fdg_jax import strict_json
from fdg_jax.durable import make_private, replacing
from fdg_jax.machine.facts import cache_dir
from fdg_jax.machine.output import say


def path_of(what: str, of: dict[str, Any]) -> Path:
    """The file in which these times are kept."""
    digest = hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()
    return cache_dir() / f"{what.replace(' ', '-')}-{digest[:16]}.json"


def load(what: str, of: dict[str, Any], n: int) -> list[float] | None:
    """Loads times.

    Arguments:
        what: what was measured, in the plural, such as "block times"; the file is named after it.
        of: all conditions, as JSON has them.
        n: how many times there should be.

    Returns: the n times in seconds; None if there are none, or if the file is damaged.
    """
    with contextlib.suppress(OSError, RuntimeError, ValueError, KeyError, TypeError):
        found = strict_json.read(path_of(what, of))
        seconds = found["seconds"]
        if found["of"] == of and len(seconds) == n and all(0 < s < math.inf for s in seconds):
            return seconds
    return None


def save(what: str, of: dict[str, Any], seconds: list[float]) -> None:
    """Saves times in seconds; arguments as in `load`. The file is renamed when complete, so readers never see a part of
    it."""
    try:
        path = path_of(what, of)
        make_private(path.parent)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps({"of": of, "seconds": seconds}, indent=1), encoding="utf-8")
    except (OSError, RuntimeError) as error:
        say(f"the {what} can't be kept ({error}): the next start will measure them again.")

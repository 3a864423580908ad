"""Keeps measured times in the user's cache directory, together with the conditions that they depend on.

They are used only under exactly these conditions. If the file is damaged, they are measured again. An error with these
files never ends a command.
"""

import contextlib
import hashlib
import json
import math
from pathlib import Path
from typing import Any

from fdg_jax import strict_json
from fdg_jax.durable import make_private, temporary_beside
from fdg_jax.machine import compile_cache
from fdg_jax.machine.stderr import say


def digest(content: Any) -> str:
    """A hash of a JSON value."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def path_of(what: str, of: dict[str, Any]) -> Path:
    """The file in which these times are kept."""
    return compile_cache.root() / f"{what.replace(' ', '-')}-{digest(of)[:16]}.json"


def load(what: str, of: dict[str, Any], n: int) -> list[float] | None:
    """Loads times.

    Arguments:
        what: what was measured, in the plural, such as "block times"; the file is named after it.
        of: all conditions, as JSON has them.
        n: how many times there should be.

    Returns: the n times in seconds; None if there are none, or if the file is damaged.
    """
    try:
        path = path_of(what, of)
        found = strict_json.read(path)
        whole = found["of"] == of and found["checksum"] == digest([found["of"], found["seconds"]])
        if whole and len(found["seconds"]) == n and all(0 < s < math.inf for s in found["seconds"]):
            return found["seconds"]
    except (FileNotFoundError, RuntimeError):  # RuntimeError: a user without a home
        return None
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        pass
    say(f"the {what} in {path} can't be used, the file is damaged; measuring again")
    return None


def save(what: str, of: dict[str, Any], seconds: list[float]) -> None:
    """Saves times in seconds; arguments as in `load`. The file is renamed when complete: readers see no part."""
    temporary = None
    try:
        path = path_of(what, of)
        make_private(path.parent)
        temporary = temporary_beside(path)
        content = {"of": of, "seconds": seconds, "checksum": digest([of, seconds])}
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
        temporary.replace(path)
    except (OSError, RuntimeError) as error:
        say(f"the {what} can't be kept ({error}): the next start will measure again.")
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

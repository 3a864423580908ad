"""What a folder must contain to the last byte: Orbax notices neither a flipped bit nor a file that was emptied.

`manifest.json` lists every file with its size and sha256, carries further content, and ends in a hash of itself. It is
written last, so a folder without one is not whole.

Only what is proven is damage: content that was read and is not what was sealed, a file too few or too many. A file that
cannot be read at the moment (a network that is away, no file handles or memory left) proves nothing.
"""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fdg_jax import errors
from fdg_jax.errors import BadInput, reason

NAME, FORMAT = "manifest.json", 1
REPLACED = ".replaced"  # behind the name of a checkpoint whose place another one is about to take


class OtherFormat(BadInput):
    """The folder is as it was sealed, by another version of this."""


class Damaged(BadInput):
    """It is proven that the folder is not as it was sealed."""


class Unreadable(errors.Unreadable):
    """The folder cannot be read at the moment. Whether it is as it was sealed is not known."""

    def __init__(self, folder: Path, error: BaseException):
        fact = f"the checkpoint at {folder} cannot be read: {reason(error)}"
        super().__init__(f"{fact}. Nothing was changed. Try again once it can be read.")


def write(folder: Path, content: Mapping[str, Any]) -> None:
    """Seals a folder as it is now."""
    names = sorted(name for name, mode in list_entries(folder).items() if name != NAME and stat.S_ISREG(mode))
    files = {name: [(folder / name).stat().st_size, file_sha256(folder / name)] for name in names}
    body = {"format": FORMAT, "files": files, **content}
    (folder / NAME).write_text(json.dumps({"sha256": content_sha256(body), "content": body}), encoding="utf-8")


def check(folder: Path) -> dict[str, Any]:
    """The content, if the folder is as it was sealed. Damaged, naming what is not; OtherFormat. OSError and MemoryError
    where it cannot be told."""
    fact, there = f"the checkpoint at {folder} is damaged", list_entries(folder)
    body = sealed_content(folder, there, fact)
    for name, (size, sha256) in body["files"].items():
        if name not in there:
            raise Damaged(f"{fact}: {name} is missing.")
        check_regular_file(name, there[name], fact)
        found = (folder / name).stat().st_size
        if found != size or file_sha256(folder / name) != sha256:
            raise Damaged(f"{fact}: {name} ({found} of {size} bytes) does not match its hash.")
    for name in sorted(there.keys() - body["files"].keys() - {NAME}):
        raise Damaged(f"{fact}: {name} is there, and {NAME} does not list it.")
    return body


def sealed_content(folder: Path, there: Mapping[str, int], fact: str) -> dict[str, Any]:
    """What the manifest says, if it is one and matches its own hash. there: `list_entries(folder)`."""
    if NAME not in there:
        raise Damaged(f"{fact}: {NAME} cannot be read ({os.strerror(errno.ENOENT)}).")
    check_regular_file(NAME, there[NAME], fact)
    text = (folder / NAME).read_bytes()
    try:
        sealed = json.loads(text)
        found, body = sealed["sha256"], sealed["content"]
        expected = content_sha256(body)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Damaged(f"{fact}: {NAME} is no manifest.") from None
    if found != expected:
        raise Damaged(f"{fact}: {NAME} does not match its own hash.")
    if not isinstance(body, dict) or "format" not in body:
        raise Damaged(f"{fact}: {NAME} is no manifest.")
    if body["format"] != FORMAT:
        fact = f"the checkpoint at {folder} has format {body['format']}; this version reads {FORMAT}"
        raise OtherFormat(f"{fact}. Resume it where it was made.")
    files = body.get("files")
    if not isinstance(files, dict) or not all(isinstance(each, list) and len(each) == 2 for each in files.values()):
        raise Damaged(f"{fact}: {NAME} is no manifest.")
    return body


def check_regular_file(name: str, mode: int, fact: str) -> None:
    """Raises Damaged for a link, a pipe and the like: none was ever sealed, and a pipe keeps its reader waiting."""
    if not stat.S_ISREG(mode):
        raise Damaged(f"{fact}: {name} is no ordinary file.")


def list_entries(folder: Path) -> dict[str, int]:
    """{name in the folder, with /: mode} of everything below it that is no folder, and of folders that are empty. Links
    are not followed. Raises OSError where a folder cannot be listed, which Path.rglob passes over."""
    found, left = {}, [""]
    while left:
        place = left.pop()
        with os.scandir(folder / place) as entries:
            modes = {f"{place}{entry.name}": entry.stat(follow_symlinks=False).st_mode for entry in entries}
        if not modes and place:
            found[place] = stat.S_IFDIR
        for name, mode in modes.items():
            if stat.S_ISDIR(mode):
                left.append(f"{name}/")
            else:
                found[name] = mode
    return found


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_sha256(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

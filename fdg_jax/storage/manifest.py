"""The manifest of a checkpoint's folder, which shows any damage: Orbax notices neither flipped bits nor emptied files.

`manifest.json` lists every file with its size and sha256, has further content, and a hash of itself. It is written
last, so a folder without one is incomplete. Writing it is called sealing the folder; it becomes a checkpoint only when
`checkpoint.save` renames it.

Where several processes have written a checkpoint, each has sealed a folder in it, called a part. The manifest above
them lists these parts and their manifests' hashes.

A folder is called damaged only if that is proven: content was read and differs, or a file is missing or too many. A
file that cannot be read at the moment (the network is down, no file handles or memory left) proves nothing.
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
from fdg_jax.storage import durable, strict_json

NAME, FORMAT = "manifest.json", 1
REPLACED = ".replaced"  # suffix of a checkpoint that is being replaced by a new one


class OtherFormat(BadInput):
    """The folder was sealed by another version of this package, in another format."""


class Damaged(BadInput):
    """The folder is proven to differ from what was sealed."""


class Unreadable(errors.Unreadable):
    """The folder cannot be read at the moment, so whether it is damaged is not known."""

    def __init__(self, folder: Path, error: BaseException):
        fact = f"the checkpoint at {folder} cannot be read: {reason(error)}"
        super().__init__(f"{fact}. Nothing was changed. Try again once it can be read.")


def write(folder: Path, content: Mapping[str, Any]) -> None:
    """Seals a folder as it is now. content: what else goes into the manifest, as JSON has it."""
    names = sorted(name for name, mode in list_entries(folder).items() if name != NAME and stat.S_ISREG(mode))
    files = {name: list(size_and_sha256(folder / name)) for name in names}
    seal(folder, {"files": files, **content})


def write_above(folder: Path, parts: Mapping[str, tuple[int, str]], content: Mapping[str, Any]) -> None:
    """Seals a folder of parts without reading them.

    Arguments:
        folder: where the parts are.
        parts: {name of the part: (size of its manifest in bytes, sha256 of it)}.
        content: what else goes into the manifest.
    """
    files = {f"{part}/{NAME}": list(parts[part]) for part in sorted(parts)}
    seal(folder, {"files": files, "parts": sorted(parts), **content})


def seal(folder: Path, content: Mapping[str, Any]) -> None:
    """Writes the manifest itself."""
    (folder / NAME).write_bytes(sealed({"format": FORMAT, **content}))


def sealed(body: Mapping[str, Any]) -> bytes:
    """A manifest of this content."""
    return json.dumps({"sha256": content_sha256(body), "content": body}).encode()


def change(folder: Path, content: Mapping[str, Any]) -> None:
    """Replaces some of the content of a manifest; the rest stays. Raises Damaged, OtherFormat, OSError."""
    body = sealed_content(folder, list_entries(folder), f"the checkpoint at {folder} is damaged")
    durable.write(folder / NAME, sealed({**body, **content}))


def size_and_sha256(path: Path) -> tuple[int, str]:
    """(bytes, hash) of a file, as a manifest lists it."""
    return path.stat().st_size, file_sha256(path)


def check(folder: Path) -> dict[str, Any]:
    """Checks that a folder is as it was sealed, with the parts in it.

    Returns: the manifest's content; its "parts" are {name: the content of that part's manifest}.

    Raises:
        Damaged: a file differs; the message names it.
        OtherFormat: it was sealed by another version.
        OSError, MemoryError: it cannot be read, so nothing is known.
    """
    fact, there = f"the checkpoint at {folder} is damaged", list_entries(folder)
    body = sealed_content(folder, there, fact)
    for name, (size, sha256) in body["files"].items():
        if name not in there:
            raise Damaged(f"{fact}: {name[:200]} is missing.")
        check_regular_file(name, there[name], fact)
        found = (folder / name).stat().st_size
        if found != size or file_sha256(folder / name) != sha256:
            raise Damaged(f"{fact}: {name} ({found} of {size} bytes) does not match its hash.")
    parts = {part: check(folder / part) for part in body.get("parts", [])}
    for name in sorted(there.keys() - body["files"].keys() - {NAME}):
        if name.partition("/")[0] not in parts:
            raise Damaged(f"{fact}: {name} is there, and {NAME} does not list it.")
    return {**body, "parts": parts}


def sealed_content(folder: Path, there: Mapping[str, int], fact: str) -> dict[str, Any]:
    """The manifest's content. there: `list_entries(folder)`. Raises Damaged, also for a wrong hash, and OtherFormat."""
    if NAME not in there:
        raise Damaged(f"{fact}: {NAME} cannot be read ({os.strerror(errno.ENOENT)}).")
    check_regular_file(NAME, there[NAME], fact)
    try:
        whole = strict_json.read(folder / NAME)
        found, body = whole["sha256"], whole["content"]
        expected = content_sha256(body)
    except (ValueError, TypeError, KeyError):
        raise Damaged(f"{fact}: {NAME} is no manifest.") from None
    if found != expected:
        raise Damaged(f"{fact}: {NAME} does not match its own hash.")
    if not isinstance(body, dict) or "format" not in body:
        raise Damaged(f"{fact}: {NAME} is no manifest.")
    if body["format"] != FORMAT:
        fact = f"the checkpoint at {folder} has format {str(body['format'])[:80]}; this version reads {FORMAT}"
        raise OtherFormat(f"{fact}. Resume it where it was made.")
    files = body.get("files")
    if not isinstance(files, dict) or not all(
        isinstance(each, list) and [type(part) for part in each] == [int, str] for each in files.values()
    ):
        raise Damaged(f"{fact}: {NAME} is no manifest.")
    parts = body.get("parts", [])
    if not isinstance(parts, list) or any(f"{part}/{NAME}" not in files for part in parts):
        raise Damaged(f"{fact}: {NAME} is no manifest.")
    return body


def check_regular_file(name: str, mode: int, fact: str) -> None:
    """Raises Damaged for a link, a pipe and the like: they are never sealed, and reading a pipe would block."""
    if not stat.S_ISREG(mode):
        raise Damaged(f"{fact}: {name} is no ordinary file.")


def list_entries(folder: Path) -> dict[str, int]:
    """{path below the folder, with /: mode} of all files and of empty folders. Links are not followed.

    Raises OSError if a folder cannot be listed, which Path.rglob would skip.
    """
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
    """The hash of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_sha256(body: Any) -> str:
    """The hash of a manifest's content, with which it is sealed."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

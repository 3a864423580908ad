"""The manifest of a checkpoint's folder, which shows any damage: Orbax notices neither flipped bits nor emptied files.

`manifest.json` lists every file with its size and sha256. It also has further content, and a hash of itself. It is
written last, so a folder without a manifest is incomplete. Writing the manifest is called sealing the folder.

If several processes have written a checkpoint, each has sealed its own folder in the checkpoint, called a part. The
checkpoint's manifest lists the parts and the hashes of their manifests.

A folder is called damaged only if the damage is proven: content was read and differs, or a file is missing or not
listed. A file that cannot be read at the moment (the network is down, no file handles or memory left) proves nothing.
"""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fdg_jax import durable, errors, strict_json
from fdg_jax.errors import BadInput, reason

NAME, FORMAT = "manifest.json", 1


class OtherFormat(BadInput):
    """The folder was sealed by another version of this package, in another format."""


class Damaged(BadInput):
    """The folder is proven to differ from what was sealed."""

    def __init__(self, folder: Path, fact: str):
        super().__init__(f"the checkpoint at {folder} is damaged: {fact}.")


class Unreadable(errors.Unreadable):
    """The folder cannot be read at the moment, so it is not known whether it is damaged."""

    def __init__(self, folder: Path, error: BaseException):
        fact = f"the checkpoint at {folder} cannot be read: {reason(error)}"
        super().__init__(f"{fact}. Nothing was changed. Try again once it can be read.")


def seal(folder: Path, content: Mapping[str, Any]) -> None:
    """Seals a folder as it is now. content: further entries, which JSON can hold."""
    names = sorted(name for name, mode in list_entries(folder).items() if name != NAME and stat.S_ISREG(mode))
    write(folder, {"files": {name: list(size_and_sha256(folder / name)) for name in names}, **content})


def write(folder: Path, content: Mapping[str, Any]) -> None:
    """Writes the manifest itself, durably. An earlier manifest is replaced. Raises OSError."""
    body = {"format": FORMAT, **content}
    durable.write(folder / NAME, json.dumps({"sha256": content_sha256(body), "content": body}).encode())


def change_about(folder: Path, about: Mapping[str, Any]) -> None:
    """Replaces the entry "about" of a checkpoint's manifest. Raises Damaged, OtherFormat, OSError."""
    write(folder, {**read(folder, list_entries(folder)), "about": dict(about)})


def check(folder: Path) -> dict[str, Any]:
    """Checks that a folder, and the parts in it, are as they were sealed.

    Returns: the manifest's content; its "parts" are {name: the content of that part's manifest}.

    Raises:
        Damaged: a file differs; the message names it.
        OtherFormat: it was sealed by another version.
        OSError, MemoryError: the folder cannot be read, so it is not known whether it is damaged.
    """
    entries = list_entries(folder)
    body = read(folder, entries)
    for name, sealed in body["files"].items():
        check_regular_file(folder, name, entries)
        size = (folder / name).stat().st_size
        if [size, file_sha256(folder / name)] != sealed:
            raise Damaged(folder, f"{name} ({size} of {sealed[0]} bytes) does not match its hash")
    parts = {part: check(folder / part) for part in body.get("parts", [])}
    for name in sorted(entries.keys() - body["files"].keys() - {NAME}):
        if name.partition("/")[0] not in parts:
            raise Damaged(folder, f"{NAME} does not list {name}")
    return {**body, "parts": parts}


def read(folder: Path, entries: Mapping[str, int]) -> dict[str, Any]:
    """The content of a folder's manifest, after a check of its hash. entries: `list_entries(folder)`. Raises Damaged,
    OtherFormat."""
    check_regular_file(folder, NAME, entries)
    try:
        whole = strict_json.read(folder / NAME)
        body, intact = whole["content"], whole["sha256"] == content_sha256(whole["content"])
        version, files, parts = body["format"], body.get("files"), body.get("parts", [])
        fits = all([type(part) for part in each] == [int, str] for each in files.values())
        fits = fits and isinstance(parts, list) and all(f"{part}/{NAME}" in files for part in parts)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise Damaged(folder, f"{NAME} is not a manifest") from None
    if not intact:
        raise Damaged(folder, f"{NAME} does not match its own hash")
    if version != FORMAT:
        fact = f"the checkpoint at {folder} has format {str(version)[:80]}; this version reads {FORMAT}"
        raise OtherFormat(f"{fact}. Resume it with the version that wrote it.")
    if not fits:
        raise Damaged(folder, f"{NAME} is not a manifest")
    return body


def check_regular_file(folder: Path, name: str, entries: Mapping[str, int]) -> None:
    """Raises Damaged for a missing file, and for a link, a pipe and the like. These are never sealed, and a pipe would
    block its reader."""
    if name not in entries:
        raise Damaged(folder, f"{name[:200]} is missing")
    if not stat.S_ISREG(entries[name]):
        raise Damaged(folder, f"{name} is not a regular file")


def list_entries(folder: Path) -> dict[str, int]:
    """{path below the folder, with /: mode} of all files and of empty folders. Links are not followed.

    Raises OSError if a folder cannot be listed, which Path.rglob would skip.
    """
    found: dict[str, int] = {}
    with os.scandir(folder) as entries:
        modes = {entry.name: entry.stat(follow_symlinks=False).st_mode for entry in entries}
    for name, mode in modes.items():
        below = list_entries(folder / name) if stat.S_ISDIR(mode) else {}
        found |= {f"{name}/{inner}": each for inner, each in below.items()} or {name: mode}
    return found


def size_and_sha256(path: Path) -> tuple[int, str]:
    """(bytes, hash) of a file, as a manifest lists it."""
    return path.stat().st_size, file_sha256(path)


def file_sha256(path: Path) -> str:
    """The hash of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_sha256(body: Any) -> str:
    """The hash of a manifest's content, which the manifest contains."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

"""What a folder must contain to the last byte: Orbax notices neither a flipped bit nor a file that was emptied.

`manifest.json` lists every file with its size and sha256, carries further content, and ends in a hash of itself. It is
written last, so a folder without one is not whole.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fdg_jax.errors import BadInput

NAME, FORMAT = "manifest.json", 1


class OtherFormat(BadInput):
    """The folder is as it was sealed, by another version of this."""


def write(folder: Path, content: Mapping[str, Any]) -> None:
    """Seals a folder as it is now."""
    files = {name: [path.stat().st_size, digest(path)] for name, path in inside(folder).items()}
    body = {"format": FORMAT, "files": files, **content}
    (folder / NAME).write_text(json.dumps({"sha256": signed(body), "content": body}), encoding="utf-8")


def check(folder: Path) -> dict[str, Any]:
    """The content, if the folder is as it was sealed; else BadInput naming what is not."""
    fact = f"the checkpoint at {folder} is damaged"
    try:
        sealed = json.loads((folder / NAME).read_bytes())
        found, body = sealed["sha256"], sealed["content"]
    except OSError as error:
        raise BadInput(f"{fact}: {NAME} cannot be read ({error.strerror}).") from None
    except (ValueError, TypeError, KeyError):
        raise BadInput(f"{fact}: {NAME} is no manifest.") from None
    if found != signed(body):
        raise BadInput(f"{fact}: {NAME} does not match its own hash.")
    if body["format"] != FORMAT:
        fact = f"the checkpoint at {folder} has format {body['format']}; this version reads {FORMAT}"
        raise OtherFormat(f"{fact}. Resume it where it was made.")
    files = inside(folder)
    for name, (size, sha256) in body["files"].items():
        if name not in files:
            raise BadInput(f"{fact}: {name} is missing.")
        try:
            there = files[name].stat().st_size
            if there != size or digest(files[name]) != sha256:
                raise BadInput(f"{fact}: {name} ({there} of {size} bytes) does not match its hash.")
        except OSError as error:
            raise BadInput(f"{fact}: {name} cannot be read ({error.strerror}).") from None
    return body


def inside(folder: Path) -> dict[str, Path]:
    """All files of a folder but the manifest, by their names in it."""
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    found.pop(NAME, None)
    return found


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def signed(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

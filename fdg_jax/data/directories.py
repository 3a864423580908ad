"""Finds prepared data sets in TFDS's layout, `<data directory>/<name>/<version>/`.

Errors distinguish a missing directory, a file in its place, and an unreadable directory.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from fdg_jax.errors import BadInput


def default_data_dir() -> Path:
    """The directory in which TFDS itself keeps data sets."""
    return Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def find(name: str, data_dir: Path) -> Path | None:
    """The directory of the newest prepared version of `name` in `data_dir`; None if there is none. Raises BadInput."""
    versions = [path for path in list_directory(data_dir / name, missing_ok=True)
                if re.fullmatch(r"\d+\.\d+\.\d+", path.name) and list_directory(path)]  # fmt: skip
    return max(versions, key=lambda path: [int(part) for part in path.name.split(".")], default=None)


def list_directory(path: Path, missing_ok: bool = False) -> list[Path]:
    """The sorted entries of a directory; [] if it is missing and `missing_ok`. Raises BadInput."""
    try:
        return sorted(path.iterdir())
    except FileNotFoundError:
        if missing_ok:
            return []
        raise BadInput(f"the directory {path} doesn't exist. Give an existing one: --data-dir FOLDER.") from None
    except NotADirectoryError:
        raise BadInput(f"{path} is a file where a directory is needed.") from None
    except OSError as error:
        raise BadInput(f"the directory {path} can't be read: {error.strerror}.") from None

"""CIFAR-10 in parts small enough to be carried to a machine one by one, and whole again there.

`pack` cuts the file of its arrays (fdg_jax.data.arrays; they hardly compress) into files of at most so many MiB, with
a small manifest: the sha256 of each and of all. `Brought` collects what has arrived in one folder of the machine. When
all parts are here, that folder holds `cifar10.npz`, which the training command reads.
"""

import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fdg_jax.data import arrays, cifar
from fdg_jax.data.arrays import Arrays
from fdg_jax.data.sets import cifar10
from fdg_jax.errors import BadInput

MANIFEST, FORMAT, MIB = "cifar10-parts.json", 3, 2**20


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def pack(data_dir: str | None, into: Path, mib: int) -> list[Path]:
    """Writes the parts and the manifest. Returns their paths. Raises BadInput."""
    if mib < 1:
        raise BadInput(f"--mib {mib}: use 1 or more.")
    dataset = cifar10.load(data_dir)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "whole"
        arrays.write(file, Arrays(*(getattr(dataset, name) for name in Arrays._fields)))
        whole = file.read_bytes()
    durable.make_folder(into)
    parts = list[dict[str, Any]]()
    for number, begin in enumerate(range(0, len(whole), mib * MIB), 1):
        content = whole[begin : begin + mib * MIB]
        parts.append({"name": f"cifar10-part{number}.bin", "bytes": len(content), "sha256": digest(content)})
        durable.write(into / parts[-1]["name"], content)
    manifest = {"format": FORMAT, "sha256": digest(whole), "parts": parts}
    durable.write(into / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    return [into / name for name in (MANIFEST, *(part["name"] for part in parts))]


class Brought:
    """What has arrived. data_dir: where it is collected, outside of anything that travels. brought: folders in which
    parts may lie."""

    def __init__(self, data_dir: Path, brought: Sequence[Path]):
        self.data_dir, self.brought = data_dir.expanduser().resolve(), [path.expanduser() for path in brought]
        self.parts, self.ready = self.data_dir / "parts", self.data_dir / "cifar10.npz"

    def manifest(self) -> dict[str, Any] | None:
        """Raises BadInput for one that cannot be used."""
        for file in (folder / MANIFEST for folder in (self.parts, *self.brought)):
            if file.is_file():
                try:
                    found = json.loads(file.read_text(encoding="utf-8"))
                    assert found["format"] == FORMAT and found["parts"] and found["sha256"]
                except (ValueError, KeyError, TypeError, AssertionError) as error:
                    raise BadInput(f"{file} is not what `pack` writes ({error!r}). Pack again.") from None
                return found
        return None

    def collect(self) -> list[str]:
        """Takes what has arrived, and makes the file of arrays once all is here. Returns the names of the parts that
        are still missing. Raises BadInput for a part that is damaged."""
        if self.ready.is_file():
            return []
        manifest = self.manifest()
        if manifest is None:
            return [MANIFEST]
        durable.make_folder(self.parts)
        durable.write(self.parts / MANIFEST, json.dumps(manifest).encode())
        missing = [part["name"] for part in manifest["parts"] if not self.take(part)]
        if not missing:
            self.join(manifest)
        return missing

    def take(self, part: dict[str, Any]) -> bool:
        """Takes a part that has arrived; whether it is here. Raises BadInput for a damaged one."""

        def whole(file: Path) -> bool:
            return file.is_file() and file.stat().st_size == part["bytes"]

        kept = self.parts / part["name"]
        for file in (folder / part["name"] for folder in self.brought):
            if whole(file) and not whole(kept):
                content = file.read_bytes()
                if digest(content) != part["sha256"]:
                    raise BadInput(f"{file} is damaged: its sha256 is not that of the manifest. Bring it again.")
                durable.write(kept, content)
        return whole(kept)

    def join(self, manifest: dict[str, Any]) -> None:
        """Raises BadInput where the whole is not what was packed, or not the data set."""
        content = b"".join((self.parts / part["name"]).read_bytes() for part in manifest["parts"])
        if digest(content) != manifest["sha256"]:
            raise BadInput(f"the parts in {self.parts} are damaged. Remove that folder, and bring all of them again.")
        durable.write(self.ready, content)
        try:
            cifar.read_file(self.ready, cifar10.CIFAR10.expected)
        except BadInput:
            self.ready.unlink()
            raise

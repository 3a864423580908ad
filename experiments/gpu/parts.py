"""CIFAR-10 in parts small enough to be carried to a machine one by one, and whole again there.

`pack` writes the arrays as they are in memory (they hardly compress): files of at most so many MiB and a small manifest
with the sha256 of each and of all. `Brought` collects what has arrived in one folder of the machine; when all parts are
there it makes the data directory that the training command reads. Nothing is unpickled.
"""

import hashlib
import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fdg_jax import durable
from fdg_jax.data import cache
from fdg_jax.data.prepare import VERSION
from fdg_jax.data.prepared import Arrays
from fdg_jax.data.sets import cifar10
from fdg_jax.errors import BadInput

MANIFEST, FORMAT, MIB = "cifar10-parts.json", 2, 2**20
EXPECTED = cifar10.CIFAR10.expected


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def pack(data_dir: str | None, into: Path, mib: int) -> list[Path]:
    """Writes the parts and the manifest. Returns their paths. Raises BadInput."""
    if mib < 1:
        raise BadInput(f"--mib {mib}: use 1 or more.")
    dataset, file = cifar10.load(data_dir), io.BytesIO()
    for name in Arrays._fields:
        np.save(file, getattr(dataset, name))
    durable.make_folder(into)
    whole, parts = file.getvalue(), list[dict[str, Any]]()
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
        self.parts, self.ready = self.data_dir / "parts", self.data_dir / "cifar10" / VERSION
        self.cache_home = self.data_dir / "cache"  # what XDG_CACHE_HOME has to be: decoded images lie beside the data

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
        """Takes what has arrived, and makes the data directory once all is here. Returns the names of the parts that
        are still missing. Raises BadInput for a part that is damaged, and where images would be kept elsewhere."""
        if (self.ready / MANIFEST).is_file() and any(self.cache_home.glob("fdg_jax/cifar10-*.npz")):
            return []
        if cache.cache_dir().resolve() != self.cache_home / "fdg_jax":
            fact = f"decoded images are kept in {cache.cache_dir()}, and not beside the data in {self.data_dir}"
            raise BadInput(f"{fact}, so training would not find them there. Set XDG_CACHE_HOME={self.cache_home}")
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
            shutil.rmtree(self.parts)
            raise BadInput(f"the parts in {self.parts} were damaged, so they were removed. Bring all of them again.")
        file = io.BytesIO(content)
        arrays = Arrays(*(np.load(file, allow_pickle=False) for _ in Arrays._fields))
        found, wanted = (len(arrays.train_labels), len(arrays.test_labels)), (EXPECTED.train, EXPECTED.test)
        if found != wanted or arrays.train_images.shape[1:] != EXPECTED.shape:
            raise BadInput(f"the packed set has {found} images to train and test, and CIFAR-10 {wanted}. Pack again.")
        durable.make_folder(self.ready)
        durable.write(self.ready / MANIFEST, json.dumps(manifest).encode())
        cache.cached(self.ready, EXPECTED, lambda: arrays)

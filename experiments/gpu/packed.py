"""A data set in parts small enough to be carried to a machine one by one, and whole again there.

`pack` writes the pixels and labels as they are in memory (they hardly compress): files of at most so many MiB and a
small manifest with the sha256 of each and of all. `Brought` collects what has arrived in one folder of the machine;
when all parts are there it makes the data directory that the training command reads. Nothing is unpickled.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fdg_jax.data import cache
from fdg_jax.data.prepare import VERSION
from fdg_jax.data.prepared import Arrays, Expected
from fdg_jax.data.sets import cifar10
from fdg_jax.errors import BadInput
from fdg_jax.storage import durable

MANIFEST, FORMAT, MIB = "cifar10-parts.json", 1, 2**20
EXPECTED = cifar10.CIFAR10.expected


def pack(data_dir: str | None, into: Path, mib: int) -> list[Path]:
    """Writes the parts and the manifest. Returns their paths. Raises BadInput."""
    if mib < 1:
        raise BadInput(f"--mib {mib}: use 1 or more.")
    dataset = cifar10.load(data_dir)
    arrays = Arrays(*(np.ascontiguousarray(getattr(dataset, name)) for name in Arrays._fields))
    durable.make_folder(into)
    parts, whole = [], hashlib.sha256()
    for number, content in enumerate(cut(arrays, mib * MIB), 1):
        whole.update(content)
        parts.append({"name": f"cifar10-part{number}.bin", "bytes": len(content), "sha256": digest(content)})
        durable.write(into / parts[-1]["name"], content)
    shapes = [
        {"name": name, "dtype": array.dtype.str, "shape": list(array.shape)} for name, array in arrays._asdict().items()
    ]
    manifest = {"format": FORMAT, "arrays": shapes, "sha256": whole.hexdigest(), "parts": parts}
    durable.write(into / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    return [into / name for name in (MANIFEST, *(part["name"] for part in parts))]


def cut(arrays: Arrays, size: int) -> Iterator[bytes]:
    """The bytes of all arrays, one after another, in pieces of `size`; the last one may be smaller."""
    left = b""
    for array in arrays:
        content, at = array.tobytes(), 0
        while at < len(content):
            taken = content[at : at + size - len(left)]
            left, at = left + taken, at + len(taken)
            if len(left) == size:
                yield left
                left = b""
    if left:
        yield left


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Brought:
    """What has arrived. data_dir: where it is collected, outside of anything that travels. brought: folders in which
    parts may lie."""

    def __init__(self, data_dir: Path, brought: Sequence[Path]):
        self.data_dir, self.brought = data_dir.expanduser().resolve(), [path.expanduser() for path in brought]
        self.parts = self.data_dir / "parts"
        self.ready = self.data_dir / "cifar10" / VERSION

    def cache_home(self) -> Path:
        """What XDG_CACHE_HOME has to be for the decoded images to be found: beside the data."""
        return self.data_dir / "cache"

    def missing(self) -> list[str]:
        """Names of parts that are not here yet; the manifest's alone, if it is not."""
        manifest = self.manifest()
        if manifest is None:
            return [MANIFEST]
        return [part["name"] for part in manifest["parts"] if not self.whole(self.parts / part["name"], part)]

    def manifest(self) -> dict[str, Any] | None:
        """Raises BadInput for one that cannot be used."""
        for folder in (self.parts, *self.brought):
            file = folder / MANIFEST
            if file.is_file():
                try:
                    found = json.loads(file.read_text(encoding="utf-8"))
                    assert found["format"] == FORMAT and found["parts"] and found["arrays"]
                except (ValueError, KeyError, TypeError, AssertionError) as error:
                    raise BadInput(f"{file} is not what `pack` writes ({error!r}). Pack again.") from None
                return found
        return None

    def whole(self, file: Path, part: dict[str, Any]) -> bool:
        """Whether a part is here with the right size; its bytes are checked when it arrives and when all are joined."""
        return file.is_file() and file.stat().st_size == part["bytes"]

    def collect(self) -> list[str]:
        """Takes what has arrived, and makes the data directory once all is here. Returns the names of the parts that
        are still missing. Raises BadInput for a part that is damaged, and where images would be kept elsewhere."""
        if self.done():
            return []
        home = self.cache_home()
        if cache.cache_dir().resolve() != home / "fdg_jax":
            fact = f"decoded images are kept in {cache.cache_dir()}, and not beside the data in {self.data_dir}"
            raise BadInput(f"{fact}, so training would not find them there. Set XDG_CACHE_HOME={home}")
        manifest = self.manifest()
        if manifest is None:
            return [MANIFEST]
        durable.make_folder(self.parts)
        if not (self.parts / MANIFEST).is_file():
            durable.write(self.parts / MANIFEST, json.dumps(manifest).encode())
        for part in manifest["parts"]:
            for file in (folder / part["name"] for folder in self.brought):
                if self.whole(file, part) and not self.whole(self.parts / part["name"], part):
                    content = file.read_bytes()
                    if digest(content) != part["sha256"]:
                        raise BadInput(f"{file} is damaged: its sha256 is not that of the manifest. Bring it again.")
                    durable.write(self.parts / part["name"], content)
        missing = self.missing()
        if not missing:
            self.join(manifest)
        return missing

    def done(self) -> bool:
        """Whether the data directory is there, with the decoded images that belong to it."""
        return (self.ready / MANIFEST).is_file() and any(self.cache_home().glob("fdg_jax/cifar10-*.npz"))

    def join(self, manifest: dict[str, Any]) -> None:
        """Raises BadInput where the whole is not what was packed."""
        content = b"".join((self.parts / part["name"]).read_bytes() for part in manifest["parts"])
        if digest(content) != manifest["sha256"]:
            shutil.rmtree(self.parts)
            raise BadInput(f"the parts in {self.parts} were damaged, so they were removed. Bring all of them again.")
        arrays, at = {}, 0
        for shape in manifest["arrays"]:
            dtype, count = np.dtype(shape["dtype"]), int(np.prod(shape["shape"]))
            arrays[shape["name"]] = np.frombuffer(content, dtype, count, at).reshape(shape["shape"])
            at += count * dtype.itemsize
        check(Arrays(**arrays), EXPECTED)
        durable.make_folder(self.ready)
        durable.write(self.ready / MANIFEST, json.dumps(manifest).encode())
        cache.cached(self.ready, EXPECTED, lambda: Arrays(**arrays))


def check(arrays: Arrays, expected: Expected) -> None:
    """Raises BadInput for arrays that are not the data set's."""
    wanted = {
        "train_images": (expected.train, *expected.shape), "train_labels": (expected.train,),
        "test_images": (expected.test, *expected.shape), "test_labels": (expected.test,),
    }  # fmt: skip
    for name, shape in wanted.items():
        if getattr(arrays, name).shape != shape:
            raise BadInput(f"the packed {name} are {getattr(arrays, name).shape} and not {shape}. Pack again.")

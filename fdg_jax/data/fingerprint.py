"""Says which data set a run is trained on, so that a run that goes on can be refused other images.

A fingerprint is small and made of plain numbers and texts, so that it can stand in a JSON file. It depends on the
content and the order of the images alone: not on the directory, and not on when a file was written. A copy of a data
set at another place has the same one.

Arrays in memory are hashed whole. Of images that stay in their files that would take hours, so there the names, labels
and sizes of the files count, and the bytes of a sample of the images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, TypeGuard

import numpy as np

from fdg_jax.data import Stream
from fdg_jax.data.dataset import Dataset
from fdg_jax.data.stream import Encoded, sample_indices

FORMAT = 1  # to be raised when the same data get another fingerprint
SPLITS = {"train": "training", "test": "test"}

Fingerprint = dict[str, Any]


def of(dataset: Dataset | Stream) -> Fingerprint:
    """{"format", "classes", "shape", "train": {"images", "labels", "content"}, "test": the same}.

    images: how many; labels: a hash of the labels in their order (of files also of the names); content: one of the
    pixels (of files: of the sizes, and of the bytes of a sample).
    """
    parts = {}
    for split in SPLITS:
        images = getattr(dataset, f"{split}_images")
        if isinstance(dataset, Stream):
            parts[split] = of_files(images)
        else:
            labels = getattr(dataset, f"{split}_labels")
            parts[split] = {"images": len(images), "labels": digest([labels]), "content": digest([images])}
    return {"format": FORMAT, "classes": dataset.classes, "shape": list(dataset.shape), **parts}


def of_files(images: Encoded) -> Fingerprint:
    """Of the images of one split that lie in files."""
    labels, sizes = images.listing()
    contents, found = zip(*(images.read(i)[:2] for i in sample_indices(len(images))), strict=True)
    return {
        "images": len(images),
        "labels": digest([*labels, np.asarray(found, np.int64)]),
        "content": digest([sizes, *map(np.frombuffer, contents, [np.uint8] * len(contents))]),
    }


def digest(arrays: Iterable[np.ndarray]) -> str:
    """sha256 over dtype, shape and bytes of every array."""
    made = hashlib.sha256()
    for array in arrays:
        made.update(f"{array.dtype.str}{array.shape}".encode())
        made.update(np.ascontiguousarray(array).data)
    return made.hexdigest()


def without_content(of: Fingerprint) -> Fingerprint:
    """The same without what is in the images: for a run that stops at a damaged one, which somebody will repair."""
    return {**of, **{split: {**of[split], "content": None} for split in SPLITS}}


def comparable(was: Any) -> TypeGuard[Fingerprint]:
    """Whether what a file keeps as a fingerprint is one of this format."""
    return isinstance(was, dict) and was.get("format") == FORMAT and all(isinstance(was.get(s), dict) for s in SPLITS)


def difference(was: Fingerprint, now: Fingerprint) -> str:
    """What differs, in words that follow "the data are not the same: "; "" where nothing does."""
    said = [
        f"{name} {now.get(key)}, was {was.get(key)}"
        for key, name in (("classes", "classes"), ("shape", "image shape"))
        if was.get(key) != now.get(key)
    ]
    for split, name in SPLITS.items():
        before, after = was[split], now[split]
        if before.get("images") != after["images"]:
            said.append(f"{after['images']} {name} images, were {before.get('images')}")
        elif before.get("labels") != after["labels"]:
            said.append(f"other labels or another order of the {name} images")
        elif before.get("content") not in (None, after["content"]):
            said.append(f"other pixels in the {name} images")
    return "; ".join(said)

"""A fingerprint of the data set that a run is trained on, so that the run cannot be resumed with other data.

A fingerprint is a small JSON value. It depends on the content and the order of the images, but not on directories or
times of files. A copy of a data set elsewhere has the same fingerprint.

Arrays in memory and text are hashed completely. For images that stay in their files, hashing all bytes would take
hours. So for such images only the names, labels and sizes of all files, and the bytes of a sample, are hashed.
"""

from typing import Any, TypeGuard, cast

import numpy as np

from fdg_jax.data.arrays import digest
from fdg_jax.data.dataset import Source
from fdg_jax.data.files import Encoded
from fdg_jax.data.stream import Stream, sample_indices
from fdg_jax.data.text import Text

FORMAT = 1  # increase it if the same data get another fingerprint
SPLITS = {"train": "training", "test": "test"}
WORDS = {"images": ("images", "pixels"), "tokens": ("blocks", "bytes")}  # the words for examples, and for their content

Fingerprint = dict[str, Any]


def of(dataset: Source) -> Fingerprint:
    """The fingerprint of a data set.

    Returns: {"format", "classes", "shape", "train": {"images", "labels", "content"}, "test": the same}. images: the
    number of examples. labels: a hash of the labels in order (for files, also of the names). content: a hash of the
    pixels (for files, of the files' sizes and the bytes of a sample). A text also has {"unit": "tokens"}, and
    "tokenizer", the hash of its tokenizer, if there is one. The content of a text is the hash of all its bytes, and its
    labels are None.

    Raises:
        Damaged: an image file cannot be read.
    """
    parts = {}
    for split in SPLITS:
        inputs = getattr(dataset, f"{split}_inputs")
        if isinstance(dataset, Stream):
            parts[split] = of_files(cast(Encoded, inputs))
        elif isinstance(dataset, Text):
            parts[split] = {"images": len(inputs), "labels": None, "content": dataset.sha256}
        else:
            labels = getattr(dataset, f"{split}_labels")
            parts[split] = {"images": len(inputs), "labels": digest([labels]), "content": digest([inputs])}
    unit = {} if dataset.unit == "images" else {"unit": dataset.unit}
    if isinstance(dataset, Text) and dataset.tokenizer:
        unit["tokenizer"] = dataset.tokenizer
    return {"format": FORMAT, "classes": dataset.classes, "shape": list(dataset.shape), **unit, **parts}


def of_files(images: Encoded) -> Fingerprint:
    """The fingerprint of one split whose images are in files."""
    labels, sizes = images.listing()
    contents, found = zip(*(images.read(i)[:2] for i in sample_indices(len(images))), strict=True)
    return {
        "images": len(images),
        "labels": digest([*labels, np.asarray(found, np.int64)]),
        "content": digest([sizes, *map(np.frombuffer, contents, [np.uint8] * len(contents))]),
    }


def without_content(of: Fingerprint) -> Fingerprint:
    """A fingerprint without the images' content: for a run that stops at a damaged image, which may be repaired."""
    return {**of, **{split: {**of[split], "content": None} for split in SPLITS}}


def comparable(was: Any) -> TypeGuard[Fingerprint]:
    """Whether a value from a file is a fingerprint of this format."""
    return isinstance(was, dict) and was.get("format") == FORMAT and all(isinstance(was.get(s), dict) for s in SPLITS)


def difference(was: Fingerprint, now: Fingerprint) -> str:
    """Describes how two fingerprints differ, as a clause after "the data are not the same: "; "" if they are equal."""
    if was.get("unit") != now.get("unit"):
        return f"{now.get('unit', 'images')} now, {was.get('unit', 'images')} before"
    examples, content = WORDS[now.get("unit", "images")]
    said = [
        f"{name} {now.get(key)} now, {was.get(key)} before"
        for key, name in (("classes", "classes"), ("shape", f"{examples[:-1]} shape"))
        if was.get(key) != now.get(key)
    ]
    for split, name in SPLITS.items():
        before, after = was[split], now[split]
        if before.get("images") != after["images"]:
            said.append(f"{after['images']} {name} {examples} now, {before.get('images')} before")
        elif before.get("labels") != after["labels"]:
            said.append(f"other labels or another order of the {name} {examples}")
        elif before.get("content") not in (None, after["content"]):
            said.append(f"other {content} in the {name} {examples}")
    return "; ".join(said)

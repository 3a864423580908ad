"""Named arrays in one safetensors file, sealed by a hash: it holds no code, and other programs read it, too.

The format's header has texts beside the arrays. `format` says what kind of file it is, `sha256` is over all arrays and
all other texts: a file that was cut off or changed, or that another program wrote, is refused in one sentence.
`dtypes` is there for arrays that the format itself cannot hold, `containers` for what names of arrays do not show.
"""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fdg_jax.errors import BadInput, Unreadable, first_line, reason, sentence
from fdg_jax.storage import checkpoint, durable, strict_json
from fdg_jax.storage.plain import is_key, plain, shown

WEIGHTS, PIPELINE = "fdg_jax weights 1", "fdg_jax pipeline 1"
CONTAINERS, STORED = "containers", "dtypes"
OWN = ("format", "sha256", CONTAINERS, STORED)  # the entries of the header that `write` makes, and `read` relies on
READERS = {WEIGHTS: "fdg_jax.load_weights", PIPELINE: "fdg_jax.load"}
CHUNK = 2**20  # bytes that are hashed at once
KEY = "key "  # before the name of a random key's implementation
# The format's names of NumPy's dtypes. JAX has taught NumPy those that are not its own, such as bfloat16.
DTYPES = {
    "BOOL": "bool",
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
}


def write(
    path: str | os.PathLike[str],
    kind: str,
    arrays: Mapping[str, Any],
    containers: Mapping[str, str],
    about: Mapping[str, Any],
) -> None:
    """Writes a file completely or not at all: a file that was there is replaced at the very end.

    Arguments:
        path: the file.
        kind: WEIGHTS or PIPELINE.
        arrays: {name: array}.
        containers: {name: kind}, as fdg_jax.storage.named.flattened gives them.
        about: further entries of the header. A text stays as it is, anything else becomes JSON.

    Raises:
        BadInput: an array is not of numbers or random keys, an entry of the header has a name or a value that it
            cannot have, or there is no such folder.
        OSError: the disk is full, or the like.
    """
    path, texts = Path(path), {"format": kind, **{name: text(name, value) for name, value in about.items()}}
    stored, dtypes = {}, {}
    for name, value in arrays.items():
        stored[name], dtype = as_stored(name, value)
        dtypes |= {name: dtype} if dtype else {}
    if path.is_dir() or not path.absolute().parent.is_dir():
        fact = "is a folder" if path.is_dir() else "lies in a folder that is not there"
        raise BadInput(f"{path} {fact}. Give the name of a file in a folder that exists.")
    texts |= {entry: json.dumps(said) for entry, said in ((CONTAINERS, containers), (STORED, dtypes)) if said}
    durable.write(path, save(stored, {**texts, "sha256": seal(stored, texts)}))


def as_stored(name: str, value: Any) -> tuple[np.ndarray, str]:
    """(the array that the format can hold, the dtype to make of it again): a random key is stored as its words, and an
    array of a dtype that the format does not know as its bytes [..., itemsize]. The dtype is "" for all others."""
    array = np.asarray(plain(value), order="C")
    if isinstance(value, jax.Array) and is_key(value):
        return array, f"{KEY}{jax.random.key_impl(value)}"
    if array.dtype.name in DTYPES.values():
        return array, ""
    if not jnp.issubdtype(array.dtype, jnp.number):
        raise BadInput(f"{name} is {shown(array)}: a file holds numbers, bools and random keys only. Leave it out.")
    return array[..., None].view(np.uint8), array.dtype.name


def from_stored(array: np.ndarray, dtype: str) -> Any:
    """The inverse of `as_stored`. Raises ValueError or TypeError if there is none."""
    if dtype.startswith(KEY):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=dtype.removeprefix(KEY))
    if not jnp.issubdtype(np.dtype(dtype), jnp.number):
        raise ValueError(f"{dtype!r} is no dtype of numbers")
    return np.squeeze(array.view(np.dtype(dtype)), -1)


def text(name: Any, value: Any) -> str:
    """An entry of the header as it is written. Raises BadInput if there can be none of that name or value."""
    if not isinstance(name, str) or name in OWN:
        fact = "is written by this library" if name in OWN else "is no text"
        raise BadInput(f"the header's entry {name!r} has a name that {fact}. Choose another name.")
    try:
        found = value if isinstance(value, str) else json.dumps(value, allow_nan=False, default=plain_number)
        (name + found).encode()
    except (TypeError, ValueError) as error:
        raise BadInput(f"the header's entry {name!r} cannot be written: {sentence(error)} Give a text.") from None
    return found


def plain_number(value: Any) -> Any:
    """NumPy's number as Python's, for JSON. Raises TypeError for anything else."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} is neither a text nor JSON")


def seal(arrays: Mapping[str, np.ndarray], texts: Mapping[str, str]) -> str:
    """The hash of everything that is in a file, but for this hash."""
    return seal_of(checkpoint.sha256(arrays), texts)


def seal_of(arrays_sha256: str, texts: Mapping[str, str]) -> str:
    """`seal` by the hash of the arrays."""
    return hashlib.sha256(f"{arrays_sha256}\n{json.dumps(texts, sort_keys=True)}".encode()).hexdigest()


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """(arrays, containers, texts of the header) of a file that `write` wrote.

    Arguments:
        path: the file.
        kind: WEIGHTS or PIPELINE.

    Raises:
        BadInput: there is no file, it is damaged, or it is another kind of file.
        Unreadable: it cannot be read at the moment.
    """
    path = Path(path)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for a writer
            raise BadInput(f"{path} is not a file. Give the name of a file.")
        with path.open("rb") as file:
            entries, texts = header(file)
            check_texts(path, kind, texts)
            sealed = texts.pop("sha256", None)
            if sealed != seal_of(stored_sha256(file, entries), texts):
                raise BadInput(f"{path} is damaged: its content does not match its sha256. Write it again.")
            arrays = {name: array(file, entry) for name, entry in entries.items()}
    except FileNotFoundError:
        raise BadInput(f"there is no file {path}. Give the name of one that exists.") from None
    except (OSError, MemoryError) as error:
        raise Unreadable(f"{path} cannot be read: {reason(error)}.") from None
    except BadInput:
        raise
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        fact = f"{path} is damaged or is no safetensors file ({first_line(error)})"
        raise BadInput(f"{fact}. Write it again, or give another file.") from None
    try:
        containers, dtypes = (strict_json.parse(texts.pop(entry, "{}").encode()) for entry in (CONTAINERS, STORED))
        arrays |= {name: from_stored(arrays[name], dtype) for name, dtype in dtypes.items()}
        return arrays, dict(containers.items()), texts
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise BadInput(f"{path} is damaged: its header does not fit its arrays ({first_line(error)}).") from None


class Entry(NamedTuple):
    """Where an array is in a file: its bytes from `begin` to `end`."""

    dtype: np.dtype
    shape: list[int]
    begin: int
    end: int


def header(file: BinaryIO) -> tuple[dict[str, Entry], dict[str, str]]:
    """(the arrays, the texts) that a file declares. No array is read.

    Raises SafetensorError, ValueError, KeyError, TypeError where that does not fit the length of the file.
    """
    length = int.from_bytes(file.read(8), "little")
    if length > strict_json.MOST_BYTES:
        raise ValueError(f"its header has {length:,} bytes")
    found = strict_json.parse(file.read(length))
    with safe_open(file.name, "numpy"):  # checks that the arrays lie one behind the other and fill the file
        texts = found.pop("__metadata__", None) or {}
    entries = {}
    for name, each in found.items():
        begin, end = each["data_offsets"]
        entries[name] = Entry(np.dtype(DTYPES[each["dtype"]]), each["shape"], 8 + length + begin, 8 + length + end)
    return entries, texts


def check_texts(path: Path, kind: str, texts: Mapping[str, str]) -> None:
    """Raises BadInput where a file is not of this kind."""
    of = texts.get("format")
    if of != kind:
        if of in READERS:
            raise BadInput(f"{path} is another file of this library. Read it with {READERS[of]}.")
        written = f"its format is {of[:80]!r}" if of else "its header names no format"
        raise BadInput(f"{path} was not written by this version of fdg_jax ({written}). Give a file that was.")


def stored_sha256(file: BinaryIO, entries: Mapping[str, Entry]) -> str:
    """`checkpoint.sha256` of arrays that stay in their file: whatever it declares, this takes no memory."""
    digest = hashlib.sha256()
    for name in sorted(entries):
        entry = entries[name]
        digest.update(checkpoint.heading(name, entry.dtype, entry.shape))
        file.seek(entry.begin)
        for at in range(entry.begin, entry.end, CHUNK):
            digest.update(file.read(min(CHUNK, entry.end - at)))
    return digest.hexdigest()


def array(file: BinaryIO, entry: Entry) -> np.ndarray:
    """An array of a file, which may be written to."""
    file.seek(entry.begin)
    return np.frombuffer(bytearray(file.read(entry.end - entry.begin)), entry.dtype).reshape(entry.shape)

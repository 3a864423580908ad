"""Writes weights and whole pipelines into safetensors files, and reads them.

Such a file holds named arrays and no code, and other programs read it, too. The format's header also has texts.
`format` is the kind of the file, `sha256` the hash of all arrays and all other texts. A file that was cut off or
changed, or that another program wrote, is refused with one sentence. `dtypes` lists dtypes that the format itself does
not have. `containers` lists containers that the arrays' names do not show (fdg_jax.arrays).
"""

import hashlib
import json
import os
import re
import stat
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, deserialize, safe_open
from safetensors.numpy import save as as_safetensors

from fdg_jax import durable, strict_json
from fdg_jax.arrays import flattened, is_key, plain, shown, unflattened
from fdg_jax.checkpoint import state as states
from fdg_jax.errors import BadInput, Unreadable, first_line, reason, sentence

Tree = Any
HASH = "parameters_sha256"
WEIGHTS, PIPELINE = "fdg_jax weights 1", "fdg_jax pipeline 1"
READERS = {WEIGHTS: "fdg_jax.load_weights", PIPELINE: "fdg_jax.load"}
OWN = ("format", "sha256", "containers", "dtypes")  # the entries of the header that `write` makes, and `read` relies on
STATE = "state/"  # before the names of the exact state's arrays
KEY = "key "  # before the name of a random key's implementation
CHUNK = 2**20  # bytes that are read at once
# The format's names of NumPy's dtypes. JAX adds those that NumPy itself lacks, such as bfloat16.
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


class Weights(NamedTuple):
    """What a file of weights holds.

    variables: the Flax dictionary {"params": ..., "batch_stats": ...}, NumPy arrays.
    about: the texts of the header. Values that were not texts are stored as JSON.
    """

    variables: dict[str, Tree]
    about: dict[str, str]


class Saved(NamedTuple):
    """What a file of `Pipeline.save` holds. All arrays are NumPy arrays, except random keys.

    state: the exact state, for `Pipeline.restore`.
    variables: for each stage k = 1..K its Flax dictionary, for `Pipeline.init(..., variables=...)` or `module.apply`,
        as `load_weights` gives one.
    about: the texts of the header: method, K and so on.
    """

    state: dict[str, Any]
    variables: list[dict[str, Tree]]
    about: dict[str, str]


def save_weights(
    path: str | os.PathLike[str], variables: Mapping[str, Tree], about: Mapping[str, Any] = types.MappingProxyType({})
) -> None:
    """Writes a Flax dictionary into a safetensors file, completely or not at all.

    An array's name is its path, such as `params/block000/conv/kernel`; a slash in a key is written as %2F. The header
    has the sha256 of the parameters (`parameters_sha256`, as in summary.json) and of the whole file.

    Arguments:
        path: the file. If it exists, it is replaced.
        variables: {"params": ..., "batch_stats": ...}, such as `Pipeline.export(whole=True)` gives, or one entry of
            the list that `Pipeline.export()` gives.
        about: further entries of the header. A text stays as it is, anything else becomes JSON. The names "format",
            "sha256", "containers" and "dtypes" are reserved.

    Raises:
        BadInput: `variables` is no dictionary, an array holds neither numbers nor random keys, or `about` has an entry
            that no header can have.
        OSError: the disk is full, or the like.

    Example:
        >>> import numpy, tempfile
        >>> file = tempfile.mkdtemp() + "/weights.safetensors"
        >>> save_weights(file, {"params": {"bias": numpy.zeros(2)}}, {"classes": 10})
        >>> found = load_weights(file)
        >>> found.variables["params"]["bias"], found.about["classes"]
        (array([0., 0.]), '10')
    """
    if not isinstance(variables, Mapping):
        fact = f"save_weights takes one Flax dictionary, not a {type(variables).__name__}"
        raise BadInput(f"{fact}. Give pipeline.export(whole=True), or write each stage of export() into its own file.")
    sha256 = states.parameters_sha256([variables.get("params", {})])
    write(path, WEIGHTS, *flattened(variables), {**about, HASH: sha256})


def load_weights(path: str | os.PathLike[str]) -> Weights:
    """Reads what `save_weights` or `python -m fdg_jax.export` has written.

    Arguments:
        path: the file.

    Returns: the Flax dictionary, for `module.apply` or for `Pipeline.init(..., variables=...)`, and the header. Tuples,
    lists, None, whole numbers as keys, empty dictionaries and random keys (`jax.random.key`) come back as they were.
    Containers of other classes come back as dictionaries. Boxes such as `nn.Partitioned` come back as the arrays in
    them. `Pipeline.init` puts both into the modules' containers.

    Raises:
        BadInput: there is no file, it is damaged, or another program wrote it.
    """
    arrays, containers, about = read(path, WEIGHTS)
    return Weights(unflattened(path, arrays, containers), about)


def save(
    path: str | os.PathLike[str],
    state: Mapping[str, Any],
    variables: Sequence[Mapping[str, Tree]],
    about: Mapping[str, Any],
) -> None:
    """Writes a pipeline, for `load`. Raises BadInput and OSError as `write` does."""
    arrays, containers = flattened({"stage": {str(k): stage for k, stage in enumerate(variables, 1)}})
    write(path, PIPELINE, {**arrays, **{STATE + name: value for name, value in state.items()}}, containers, about)


def load(path: str | os.PathLike[str]) -> Saved:
    """Reads what `Pipeline.save` has written.

    A file holds arrays and no code. So it cannot make the pipeline, which consists of modules, a loss and an optimizer.
    Make the pipeline as before, call its `init`, and then:

        pipeline.restore(fdg_jax.load(path).state)

    Arguments:
        path: the file.

    Returns: the exact state, the weights of each stage, and the header.

    Raises:
        BadInput: there is no file, it is damaged, or it is of another kind.
    """
    arrays, containers, about = read(path, PIPELINE)
    K = about.get("K", "")
    if not re.fullmatch("[1-9][0-9]{0,4}", K):
        fact = f"{path} is damaged: its header says K={K[:20]!r}, which is no number of stages"
        raise BadInput(f"{fact}. Write it again.")
    state = {name.removeprefix(STATE): arrays.pop(name) for name in list(arrays) if name.startswith(STATE)}
    tree, wanted = unflattened(path, arrays, containers), [str(k) for k in range(1, int(K) + 1)]
    stages = tree.pop("stage", None)
    if tree or not isinstance(stages, dict) or stages.keys() != {*wanted}:
        held = min(tree, default="other stages")
        raise BadInput(f"{path} is damaged: it holds {held[:40]!r}, which no pipeline of {K} stages has.")
    return Saved(state, [stages[k] for k in wanted], about)


def write(
    path: str | os.PathLike[str],
    kind: str,
    arrays: Mapping[str, Any],
    containers: Mapping[str, str],
    about: Mapping[str, Any],
) -> None:
    """Writes a file completely or not at all. An existing file is replaced at the very end.

    Arguments:
        path: the file.
        kind: WEIGHTS or PIPELINE.
        arrays: {name: array}.
        containers: {name: kind}, as fdg_jax.arrays.flattened gives them.
        about: further entries of the header. A text stays as it is, anything else becomes JSON.

    Raises:
        BadInput: an array holds neither numbers nor random keys, an entry of the header has an impossible name or
            value, or the file's folder does not exist.
        OSError: the disk is full, or the like.
    """
    path, texts = Path(path), {"format": kind, **{name: text(name, value) for name, value in about.items()}}
    if path.is_dir() or not path.absolute().parent.is_dir():
        fact = "is a folder" if path.is_dir() else "lies in a folder that does not exist"
        raise BadInput(f"{path} {fact}. Give the name of a file in a folder that exists.")
    both = {name: as_stored(name, value) for name, value in arrays.items()}
    stored = {name: array for name, (array, _) in both.items()}
    dtypes = {name: dtype for name, (_, dtype) in both.items() if dtype}
    texts |= {entry: json.dumps(each) for entry, each in (("containers", containers), ("dtypes", dtypes)) if each}
    durable.write(path, as_safetensors(stored, {**texts, "sha256": seal(stored, texts)}))


def as_stored(name: str, value: Any) -> tuple[np.ndarray, str]:
    """(an array that the format can hold, the dtype to restore from it). A random key is stored as its words. An array
    of a dtype that the format does not know is stored as its bytes [..., itemsize]. For all others the dtype is ""."""
    array = np.asarray(plain(value), order="C")
    if isinstance(value, jax.Array) and is_key(value):
        return array, f"{KEY}{jax.random.key_impl(value)}"
    if array.dtype.name in DTYPES.values():
        return array, ""
    if not jnp.issubdtype(array.dtype, jnp.number):
        raise BadInput(f"{name} is {shown(array)}: a file holds numbers, bools and random keys only. Leave it out.")
    return array[..., None].view(np.uint8), array.dtype.name


def from_stored(array: np.ndarray, dtype: str) -> Any:
    """The inverse of `as_stored`. Raises ValueError or TypeError if there is no inverse."""
    if dtype.startswith(KEY):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=dtype.removeprefix(KEY))
    if not jnp.issubdtype(np.dtype(dtype), jnp.number):
        raise ValueError(f"{dtype!r} is no dtype of numbers")
    return np.squeeze(array.view(np.dtype(dtype)), -1)


def text(name: str, value: Any) -> str:
    """An entry of the header as it is written. Raises BadInput if the name or the value is impossible."""
    if name in OWN:
        raise BadInput(f"the header's entry {name!r} is reserved for this library. Choose another name.")
    try:
        # `item` makes a Python number of a NumPy one.
        return value if isinstance(value, str) else json.dumps(value, allow_nan=False, default=lambda one: one.item())
    except (TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"the header's entry {name!r} cannot be written: {sentence(error)} Give a text.") from None


def seal(arrays: Mapping[str, np.ndarray], texts: Mapping[str, str]) -> str:
    """The hash of everything in a file except this hash."""
    return seal_of(states.sha256(arrays), texts)


def seal_of(arrays_sha256: str, texts: Mapping[str, str]) -> str:
    """The result of `seal`, computed from the hash of the arrays."""
    return hashlib.sha256(f"{arrays_sha256}\n{json.dumps(texts, sort_keys=True)}".encode()).hexdigest()


def stored_sha256(path: Path) -> str:
    """The hash of the arrays in a file with a sound header. The function needs little memory, whatever the header
    declares."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        begin = 8 + (length := int.from_bytes(file.read(8), "little"))
        header = json.loads(file.read(length))
        for name in sorted(header.keys() - {"__metadata__"}):
            of = header[name]
            digest.update(states.heading(name, np.dtype(DTYPES[of["dtype"]]), of["shape"]))
            first, last = (begin + offset for offset in of["data_offsets"])
            file.seek(first)
            for at in range(first, last, CHUNK):
                digest.update(file.read(min(CHUNK, last - at)))
    return digest.hexdigest()


def is_ours(path: Path) -> bool:
    """Whether a file's header names a format of this library. False if it cannot be read; `read` says why."""
    try:
        with safe_open(path, "numpy") as file:
            return (file.metadata() or {}).get("format", "").startswith("fdg_jax")
    except (OSError, SafetensorError):
        return False


def read(path: str | os.PathLike[str], kind: str | None) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """(arrays, containers, texts of the header) of a file that `write` wrote.

    Arguments:
        path: the file.
        kind: WEIGHTS or PIPELINE; None for a safetensors file of another program, which has no hash to check.

    Raises:
        BadInput: there is no file, it is damaged, or it is another kind of file.
        Unreadable: it cannot be read at the moment.
    """
    path = Path(path)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for a writer
            raise BadInput(f"{path} is not a file. Give the name of a file.")
        with safe_open(path, "numpy") as file:  # checks the header, and reads no array
            texts = file.metadata() or {}
        if kind is not None:
            check_kind(path, kind, texts.get("format"))
        if kind is not None and texts.pop("sha256", None) != seal_of(stored_sha256(path), texts):
            raise BadInput(f"{path} is damaged: its content does not match its sha256. Write it again.")
        stored = {name: from_bytes(**each) for name, each in deserialize(path.read_bytes())}
    except FileNotFoundError:
        raise BadInput(f"there is no file {path}. Give the name of one that exists.") from None
    except (OSError, MemoryError) as error:
        raise Unreadable(f"{path} cannot be read: {reason(error)}.") from None
    except BadInput:
        raise
    except (SafetensorError, KeyError) as error:
        fact = f"{path} is damaged or is no safetensors file ({first_line(error)})"
        raise BadInput(f"{fact}. Write it again, or give another file.") from None
    try:
        containers, dtypes = (strict_json.parse(texts.pop(name, "{}").encode()) for name in ("containers", "dtypes"))
        arrays = stored | {name: from_stored(stored[name], dtype) for name, dtype in dtypes.items()}
        return arrays, dict(containers.items()), texts
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise BadInput(f"{path} is damaged: its header does not fit its arrays ({first_line(error)}).") from None


def from_bytes(dtype: str, shape: Sequence[int], data: bytes) -> np.ndarray:
    """An array from a file. It is writable."""
    return np.frombuffer(bytearray(data), DTYPES[dtype]).reshape(shape)


def check_kind(path: Path, kind: str, found: str | None) -> None:
    """Raises BadInput where a file is not of this kind. found: the format that its header names."""
    if found in READERS and found != kind:
        raise BadInput(f"{path} is another kind of file of this library. Read it with {READERS[found]}.")
    if found != kind:
        written = f"its format is {found[:80]!r}" if found else "its header names no format"
        raise BadInput(f"{path} was not written by this version of fdg_jax ({written}). Give a file that was.")

"""Makes the exact state of a run, a flat {path: array}, from trees, reads it back, hashes it, and searches it for NaN.

A path is the JAX key path of a leaf. A state holds nothing that is private to JAX. A stash (what a backward pass needs)
is stored as the inputs of its forward pass. The forward pass is replayed when the state is restored
(fdg_jax.engine.host_engine).
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax.arrays import check_usable, plain, plain_like, shown, unplain
from fdg_jax.errors import BadInput

Flat = dict[str, np.ndarray]
OTHER = "it is of another model, split or method"
# Weights, statistics and the optimizer's state. A state with a NaN in one of these cannot be trained on.
LASTING = re.compile(r"(stage\d+/(state/|weights/|memo/\d+/extra)|run/\.stages\[)")
# Arrays that are used once: messages, stashes, gradients in a line or a sum, losses. A guard may still refuse the
# updates that they lead to. (Stashes and stashed weights are in both groups.)
PASSING = re.compile(r"^mail/|^stage\d+/(memo|weights|line|sum)/|^run/\.(lines|sums)|^loop/")


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Flattens a tree into {prefix + key path: leaf}, each leaf as it is stored (fdg_jax.arrays.plain)."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): plain(leaf) for path, leaf in leaves}


def unflatten(template: Any, flat: Mapping[str, Any], prefix: str = "", any_lengths: bool = False) -> Any:
    """The inverse of `flatten`.

    Arguments:
        template: a tree of arrays or jax.ShapeDtypeStructs with the structure, shapes and dtypes to expect.
        flat: {path: array}.
        prefix: the beginning of the paths.
        any_lengths: whether axes may have other lengths (the last batch of an epoch is shorter, a sequence longer).

    Returns: a tree like `template` with copies of the arrays.

    Raises:
        BadInput: a path is missing, or a shape or dtype differs.
    """

    def leaf(path, like):
        name = prefix + jax.tree_util.keystr(path)
        if name not in flat:
            options = ", or guard, gradient_norms or ema has changed" if ".opt_state" in name else ""
            raise BadInput(f"the checkpoint has no {name}: {OTHER}{options}.")
        # A copy: on a CPU device_put may use the memory of its argument, and the caller may write there later.
        value, needed = np.array(plain(flat[name])), plain_like(like)
        fits = value.ndim == len(needed.shape) if any_lengths else value.shape == needed.shape
        if not fits or value.dtype != needed.dtype:
            raise BadInput(f"the checkpoint's {name} is {shown(value)}, but this run needs {shown(needed)}: {OTHER}.")
        return unplain(value, like)

    return jax.tree_util.tree_map_with_path(leaf, template)


class Reading(Mapping[str, Any]):
    """The entries of a state whose names begin with a prefix, by the rest of their names. Records which were read."""

    def __init__(self, state: Mapping[str, Any], prefix: str = "", read: set[str] | None = None):
        self.state, self.prefix = state, prefix
        self.read: set[str] = set() if read is None else read

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise BadInput(f"the checkpoint has no {self.prefix}{name}: it is not whole, or of another pipeline.")
        self.read.add(self.prefix + name)
        return self.state[self.prefix + name]

    def __contains__(self, name: object) -> bool:
        return f"{self.prefix}{name}" in self.state

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self.prefix) for name in self.state if name.startswith(self.prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def below(self, prefix: str) -> "Reading":
        """The entries under a longer prefix."""
        return Reading(self.state, self.prefix + prefix, self.read)

    def check_all_read(self) -> None:
        """Raises BadInput if the state has entries that the pipeline did not read."""
        left = sorted(set(self.state) - self.read)
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise BadInput(
                f"the checkpoint holds {left[0]}{more}, which this pipeline does not have: the checkpoint is of "
                "another optimizer, model or method. Make the pipeline as it was when the state was saved."
            )


def number(flat: Mapping[str, Any], name: str) -> int:
    """Reads a counter (an integer of 0 or more) from a state. Raises BadInput if it is something else."""
    value = np.asarray(flat[name])
    if value.shape != () or value.dtype.kind not in "iu" or value < 0:
        found = str(value) if value.ndim == 0 else shown(value)
        raise BadInput(f"the checkpoint's {name} is {found}, not a number of 0 or more: it is damaged.")
    return int(value)


def real(flat: Mapping[str, Any], name: str) -> float:
    """Reads a number, which may be NaN or infinite, from a state. Raises BadInput if it is something else."""
    return reals(flat, name, (0,))[0]


def reals(flat: Mapping[str, Any], name: str, axes: tuple[int, ...] = (0, 1)) -> list[float]:
    """Reads a number or a list of numbers from a state. Raises BadInput if the number of axes or the dtype is
    another."""
    value = np.asarray(flat[name])
    real_numbers = jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(value.dtype, jnp.integer)
    if value.ndim not in axes or not real_numbers:
        raise BadInput(f"the checkpoint's {name} is {shown(value)}, not a number: the checkpoint is damaged.")
    return [float(each) for each in np.atleast_1d(value)]


def numbers(flat: Mapping[str, Any], prefix: str) -> list[int]:
    """The numbers n, ascending, of the entries prefix + "n/...". Raises BadInput for an entry without a number."""
    found = {name[len(prefix) :].split("/")[0] for name in flat if name.startswith(prefix)}
    if not all(text.isdecimal() for text in found):
        raise BadInput(f"the checkpoint's entries {prefix}... have {sorted(found)[:5]} where numbers are needed.")
    return sorted(map(int, found))


def sha256(flat: Mapping[str, Any]) -> str:
    """A hash of a state. It covers the path, dtype, shape and bytes of every array, sorted by path."""
    digest = hashlib.sha256()
    for name in sorted(flat):
        value = np.asarray(flat[name])
        digest.update(heading(name, value.dtype, value.shape))
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def heading(name: str, dtype: Any, shape: Sequence[int]) -> bytes:
    """The text before the bytes of an array in `sha256`."""
    return f"{name} {dtype} {list(shape)}\n".encode()


def parameters_sha256(stages: Sequence[Any]) -> str:
    """The sha256 over the bytes of all parameters, sorted by (key path, k).

    If all stages' parameters have different names, as in a network that was cut into stages, the order is that of the
    whole network and does not depend on K.

    Arguments:
        stages: for each stage k = 1..K its Flax collection "params"; an uncut network has one such collection.
    """
    leaves = [(path, k, leaf) for k, params in enumerate(stages, 1) for path, leaf in flatten(params).items()]
    digest = hashlib.sha256()
    for _, _, leaf in sorted(leaves, key=lambda item: item[:2]):
        digest.update(np.ascontiguousarray(jax.device_get(leaf)).tobytes())
    return digest.hexdigest()


def check_state(state: Any) -> dict[str, Any]:
    """A copy of the dictionary `state`. Raises BadInput if it is no dictionary of usable arrays."""
    if not isinstance(state, Mapping):
        raise BadInput(f"restore takes what state() gave, a dictionary of arrays, not a {type(state).__name__}.")
    for name, value in state.items():
        check_usable(f"the state's {name}", value)
    return dict(state)


def check_finite(state: Mapping[str, Any]) -> None:
    """Raises BadInput if weights, statistics or an optimizer's arrays hold a NaN or an infinity."""
    for name, wrong, size in nonfinite_arrays(state, LASTING.match, infinite_counters=True):
        raise BadInput(
            f"{wrong} of {size} numbers of the state's {name} are not finite (NaN or infinity), so training cannot go "
            "on from it. Restore an earlier state. If they belong there, as in a mask, use restore(state, "
            "finite=False)."
        )


def nonfinite_arrays(
    state: Mapping[str, Any], wanted: Callable[[str], object], infinite_counters: bool = False
) -> Iterator[tuple[str, int, int]]:
    """Yields (name, how many of its numbers are not finite, how many numbers) for each array that is not finite.

    Arguments:
        wanted: name -> whether to check the array.
        infinite_counters: whether a single number of an optimizer may be infinite, such as a best loss so far, before
            the first loss.
    """
    for name, value in state.items():
        dtype = value.dtype if hasattr(value, "dtype") else np.result_type(value)
        if wanted(name) and jnp.issubdtype(dtype, jnp.inexact):  # jnp knows bfloat16
            array = np.asarray(value)
            single = infinite_counters and array.ndim == 0 and "opt_state" in name
            wrong = np.isnan(array) if single else ~np.isfinite(array)
            if wrong.any():
                yield name, int(np.count_nonzero(wrong)), array.size


def first_refused_updates(state: Mapping[str, Any]) -> tuple[int, ...]:
    """For each guarded stage (fdg_jax.stages.nonfinite), the number of its first refused update; 0 if there is none.

    Arguments:
        state: what Pipeline.state() returns.
    """
    return tuple(number for _, number in sorted(refused_by_stage(state).items()))


def refused_by_stage(state: Mapping[str, Any]) -> dict[int, int]:
    """{k: number of the first refused update} for the guarded stages in a state, or in one process's part of it."""
    found = {int(re.findall(r"\d+", name)[0]): value for name, value in state.items() if name.endswith("opt_state.bad")}
    return {k: int(number) for k, number in found.items()}


def describe_first_refused(bad: Sequence[int]) -> str:
    """Describes the first refused update in words.

    Arguments:
        bad: for each stage, the number of its first refused update, 0 if there is none; at least one is not 0.

    Returns: the words. If several stages refused an update, the words name the highest stage, because a NaN goes down
        with the cotangents.
    """
    number, k = min((number, -k) for k, number in enumerate(bad, 1) if number)
    return f"stage k={-k} got a gradient that is not finite, for its update {number:,}"

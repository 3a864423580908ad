"""Reads a state while a pipeline is restored from it, and refuses one with missing, unused or non-finite entries."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from fdg_jax.errors import BadInput
from fdg_jax.storage import finite
from fdg_jax.storage.plain import check_usable, shown


class Reading(Mapping[str, Any]):
    """The entries of a state whose names begin with a prefix, by the rest of their names. It notes which were read."""

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
                f"the checkpoint holds {left[0]}{more}, which this pipeline has no place for: it is of another "
                "optimizer, model or method. Make the pipeline as it was when the state was taken."
            )


def check_state(state: Any) -> dict[str, Any]:
    """A copy of the dictionary to restore. Raises BadInput if it is no dictionary of usable arrays."""
    if not isinstance(state, Mapping):
        raise BadInput(f"restore takes what state() gave, a dictionary of arrays, not a {type(state).__name__}.")
    for name, value in state.items():
        check_usable(f"the state's {name}", value)
    return dict(state)


def number(flat: Mapping[str, Any], name: str) -> int:
    """Reads a counter (an integer of 0 or more) from a state. Raises BadInput if it is something else."""
    value = np.asarray(flat[name])
    if value.shape != () or value.dtype.kind not in "iu" or value < 0:
        said = str(value) if value.ndim == 0 else shown(value)
        raise BadInput(f"the checkpoint's {name} is {said}, not a number of 0 or more: it is damaged.")
    return int(value)


def real(flat: Mapping[str, Any], name: str) -> float:
    """Reads a number, which may be NaN or infinite, from a state. Raises BadInput if it is something else."""
    return reals(flat, name, (0,))[0]


def reals(flat: Mapping[str, Any], name: str, axes: tuple[int, ...] = (0, 1)) -> list[float]:
    """Reads a number or a list of numbers from a state. Raises BadInput for other numbers of axes and other dtypes."""
    value = np.asarray(flat[name])
    real_numbers = jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(value.dtype, jnp.integer)
    if value.ndim not in axes or not real_numbers:
        raise BadInput(f"the checkpoint's {name} is {shown(value)}, which holds no number: it is damaged.")
    return [float(each) for each in np.atleast_1d(value)]


def check_finite(state: Mapping[str, Any]) -> None:
    """Raises BadInput where weights, statistics or an optimizer's arrays hold a NaN or an infinity."""
    for name, wrong, size in finite.nonfinite_arrays(state, finite.LASTING.match, infinite_counters=True):
        raise BadInput(
            f"{wrong} of {size} numbers of the state's {name} are not finite (NaN or infinity), so training cannot go "
            "on from it. Restore an earlier state; where they belong there, such as in a mask, restore(state, "
            "finite=False)."
        )

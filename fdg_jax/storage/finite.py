"""Finds arrays of a state that hold NaN or infinity: before a checkpoint is written, and before one is restored."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

# Weights, statistics and the optimizer's state. A state with a NaN in one of these cannot be trained on.
LASTING = re.compile(r"(stage\d+/(state/|weights/|memo/\d+/extra)|run/\.stages\[)")
# Arrays that are used up: messages, memos, gradients in a line or a sum, losses. A guard may still refuse what they
# lead to. (Memos and stashed weights are both: they are used up, and hold weights and statistics.)
PASSING = re.compile(r"^mail/|^stage\d+/(memo|weights|line|sum)/|^run/\.(lines|sums)|^loop/")


def nonfinite_arrays(
    state: Mapping[str, Any], wanted: Callable[[str], object], infinite_counters: bool = False
) -> Iterator[tuple[str, int, int]]:
    """Yields (name, how many of its numbers are not finite, how many numbers) of each such array.

    Arguments:
        wanted: whether an array of that name is looked at.
        infinite_counters: whether a single number of an optimizer may be infinite: the best loss so far, before
            there is any.
    """
    from jax.numpy import inexact, issubdtype  # which know bfloat16

    for name, value in state.items():
        if not wanted(name):
            continue
        if not issubdtype(value.dtype if hasattr(value, "dtype") else np.result_type(value), inexact):
            continue
        array = np.asarray(value)
        single = infinite_counters and array.ndim == 0 and "opt_state" in name
        wrong = np.isnan(array) if single else ~np.isfinite(array)
        if wrong.any():
            yield name, int(np.count_nonzero(wrong)), array.size

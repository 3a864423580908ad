"""The order of the training examples, and random draws from them. Both are the same with every version of NumPy."""

import numpy as np

from fdg_jax.errors import BadInput


def epoch_order(n: int, seed: int, epoch: int) -> np.ndarray:
    """The order of the training examples in an epoch, a function of (seed, epoch).

    It comes from NumPy's RandomState, whose stream will never change. So a run that is resumed with a newer NumPy sees
    the same batches.

    Arguments:
        n: number of examples.
        seed: 0 .. 2**32-1.
        epoch: 0, 1, ...

    Returns: a permutation [n] int32.

    Raises:
        BadInput: the seed is outside that range.
    """
    check_seed(seed)
    return np.random.RandomState([seed, epoch]).permutation(n).astype(np.int32)


def drawn(n: int, size: int, seed: int, step: int) -> np.ndarray:
    """[size] int64: numbers from 0 to n-1, drawn with replacement for the batch after `step`. They are a function of
    the arguments alone, computed by the same RandomState. Raises BadInput as `epoch_order`."""
    check_seed(seed)
    return np.random.RandomState([seed, step]).randint(0, n, size, dtype=np.int64)


def check_seed(seed: int) -> None:
    """Raises BadInput for a seed outside 0 .. 2**32-1, which JAX would truncate to 32 bits or refuse."""
    if not 0 <= seed < 2**32:
        raise BadInput(f"the seed is {seed}, but must be between 0 and {2**32 - 1}.")

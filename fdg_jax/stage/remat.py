"""Which stages recompute their activations instead of keeping them (rematerialisation).

The first stages hold the most stashes: stage k holds 2(K-k). With `--remat 1`, the stashes of stage 1 keep only the
inputs, and each of its backward passes computes the forward pass again. Training stays the same as long as the backward
pass uses the weights of the forward pass. Otherwise the recomputed activations would be those of other weights (that is
FR).
This module needs no JAX.
"""

from collections.abc import Sequence

from fdg_jax.errors import BadInput


def parse(remat: str | Sequence[int], K: int) -> frozenset[int]:
    """Reads a value of `--remat`.

    Arguments:
        remat: "none", "all", stage numbers as text ("1,2"), or a sequence of numbers.
        K: number of stages.

    Returns: the stages that it names.

    Raises:
        BadInput: it is none of these, or a number is outside 1..K.
    """
    if remat in ("none", "all"):
        return frozenset(range(1, K + 1) if remat == "all" else ())
    try:
        stages = [int(k) for k in (remat.split(",") if isinstance(remat, str) else remat)]
    except (TypeError, ValueError):
        raise BadInput(f"remat {remat!r} is neither none, all nor stage numbers as 1,2. There are 1 to {K}.") from None
    wrong = [k for k in stages if not 1 <= k <= K]
    if wrong:
        raise BadInput(f"remat {remat!r}: there is no stage k={wrong[0]}. With K={K} use numbers from 1 to {K}.")
    return frozenset(stages)


def check(stages: frozenset[int], other: Sequence[str]) -> None:
    """Refuses to recompute activations at other weights than they had.

    Arguments:
        stages: those that recompute.
        other: for k = 1..K, the option that makes a backward pass use other weights than the forward pass; "" if none
            does.

    Raises:
        BadInput: a stage is in both.
    """
    for k in sorted(stages):
        if other[k - 1]:
            raise BadInput(
                f"remat cannot compute the activations of stage k={k} again: with {other[k - 1]} its backward pass has "
                "other weights than they were computed with. Leave one of the two out."
            )

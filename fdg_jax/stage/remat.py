"""Which stages compute their activations again instead of remembering them (rematerialisation).

The first stages hold most memos, 2(K-k) of them: `--remat 1` keeps of each only the input, for a second forward pass
of stage 1 in every backward pass. The training is the same, as long as the backward pass is taken at the weights of
the forward pass; otherwise the activations, too, would be those of the other weights (that is FR). No JAX here.
"""

from collections.abc import Sequence

from fdg_jax.errors import BadInput


def parse(remat: str | Sequence[int], K: int) -> frozenset[int]:
    """The stages that `remat` names: "none", "all", or numbers k in 1..K, as text ("1,2") or as they are."""
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
    """Refuses to compute activations again at other weights than they had. other: per stage k = 1..K, whose weights its
    backward pass is taken at if not those of its forward pass; "" if they are."""
    for k in sorted(stages):
        if other[k - 1]:
            raise BadInput(
                f"remat cannot compute the activations of stage k={k} again: with {other[k - 1]} its backward pass has "
                "other weights than they were computed with. Leave one of the two out."
            )

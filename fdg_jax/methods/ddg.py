"""DDG (Huo et al. 2018): backward passes are decoupled, forward passes are not. Stage k's gradients are K-k batches
late.

`--weights stashed`, the default, is the formula of its paper: the gradient is taken at the weights of the batch's own
forward pass. Neither released code computes that. DDG's own code and that of the FDG authors update the weights in
place and then go back through the graph of the old forward pass. So old activations meet the newest weights: that is
`--weights current`. The two differ where K-k is not 0.
"""

from fdg_jax.methods.interface import Method
from fdg_jax.schedule import Op, Schedule, Tick, chain, check_K, existing_ops


def forward_locked(K: int, name: str = "ddg") -> Schedule:
    """Tick t: batch t goes forward through all stages; then every stage k goes backward on batch t-(K-k), all at once.

        K = 3:  t=1        2            3               4
          k=1   F1         F2           F3B1            F4B2
          k=2      F1         F2B1         F3B2            F4B3
          k=3         F1B1        F2B2        F3B3            F4B4

    Arguments:
        K: number of stages.
        name: the method's.

    Raises:
        BadInput: K is below 1.
    """
    check_K(K)

    def tick(t: int, last: int | None = None) -> Tick:
        ops = [Op("F", k, t) for k in range(1, K + 1)] + [Op("B", k, t - (K - k)) for k in range(1, K + 1)]
        return existing_ops(ops, last)

    behind = tuple(K - k for k in range(1, K + 1))
    return Schedule(name, K, tick, behind, lambda batches: batches + K - 1 if batches else 0, chain(K))


METHOD = Method(
    name="ddg",
    summary="decoupled parallel back-propagation with delayed gradients (Huo et al. 2018): delay K-k, forward-locked",
    schedule=forward_locked,
    takes=("weights",),
    delay_line=True,
)

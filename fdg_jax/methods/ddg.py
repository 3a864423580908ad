"""DDG (Huo et al. 2018): backward passes are decoupled, but forward passes are not. Stage k's gradients are K-k
batches late.

    θ_k^{t+1} = θ_k^t - γ_t g_k^d(θ^d)        d = t - (K-k)

`--weights stashed`, the default, is the formula of DDG's paper: the gradient is taken at the weights of the batch's own
forward pass. The released codes of the DDG and FDG authors compute something else: they update the weights in place,
and then run the backward pass through the graph of the old forward pass. So they combine old activations with the
newest weights, which is `--weights current`. The two settings differ for k < K.

The same training has other names. With stashed weights it is PipeDream's 1F1B with weight stashing (Narayanan et al.
2019), so `--method pipedream` is an alias. With --weights current and --accumulate 8 it is PACI (2606.07881). With
--one-version and --accumulate M >= K it is PipeDream-2BW (Narayanan et al. 2021): all M gradients of an update are
taken at one version of the weights, and every stage is late by one update. The weights are those of 2BW, but the memory
differs: here a stage holds up to M gradients, while 2BW keeps a second copy of the weights.
"""

import dataclasses
from typing import Literal

from fdg_jax.errors import BadInput
from fdg_jax.methods.interface import Method
from fdg_jax.options.fields import option
from fdg_jax.schedule import Accumulation, Op, Schedule, Tick, chain, check_accumulation, check_K, existing_ops


@dataclasses.dataclass(frozen=True)
class Options:
    """DDG's own options. DDG also takes beta and weights."""

    accumulate: int = option(
        1,
        "fdg and ddg: update a stage after every M backward passes. The staleness in updates falls to about 2(K-k)/M "
        "with fdg (called ADL) and (K-k)/M with ddg (called PACI if --weights current). The learning-rate schedule "
        "still counts batches.",
        metavar="M",
        inside="[1, inf)",
    )
    accumulation: Literal["sum", "mean"] = option(
        "sum",
        "Whether an update uses the sum of the M gradients (as ADL) or their mean (as one batch M times as large).",
    )
    one_version: bool = option(
        False,
        "ddg: PipeDream-2BW. All M >= K gradients of an update are taken at the same, last but one version of the "
        "weights, so every stage is late by one update.",
    )


def forward_locked(
    K: int, name: str = "ddg", accumulate: int = 1, accumulation: Accumulation = "sum", one_version: bool = False
) -> Schedule:
    """Tick t: batch t goes forward through all stages. Then all stages k go backward at the same time, on batch
    t-(K-k).

        K = 3:  t=1        2            3               4
          k=1   F1         F2           F3B1            F4B2
          k=2      F1         F2B1         F3B2            F4B3
          k=3         F1B1        F2B2        F3B3            F4B4

    Arguments:
        K: number of stages.
        name: the method's name.
        accumulate: M, the backward passes per update.
        accumulation: whether an update uses the "sum" or the "mean" of the accumulated gradients.
        one_version: whether stage k waits M-(K-k) further backward passes before it uses a gradient. Then gradients are
            M backward passes late, and all M gradients of an update are taken at one version of the weights.

    Raises:
        BadInput: K or accumulate is below 1, or accumulate is less than K with one_version.
    """
    check_K(K)
    check_accumulation(accumulate, accumulation)
    if one_version and accumulate < K:
        fact = f"one_version with accumulate={accumulate} and K={K}: stage 1's gradients are K-1 backward passes late"
        raise BadInput(f"{fact}, so one_version needs accumulate >= K. Use --accumulate {K} or more.")

    def tick(t: int, last: int | None = None) -> Tick:
        ops = [Op("F", k, t) for k in range(1, K + 1)] + [Op("B", k, t - (K - k)) for k in range(1, K + 1)]
        return existing_ops(ops, last)

    late = tuple(K - k for k in range(1, K + 1))
    waits = tuple(accumulate - n for n in late) if one_version else ()
    delays = (accumulate,) * K if one_version else late
    ticks = lambda batches: batches + K - 1 if batches else 0  # noqa: E731
    return Schedule(name, K, tick, delays, ticks, chain(K), accumulate, accumulation, waits=waits)


METHOD = Method(
    name="ddg",
    summary="decoupled parallel back-propagation with delayed gradients (Huo et al. 2018): delay K-k, locked "
    "forward passes; with stashed weights it is PipeDream",
    schedule=forward_locked,
    options=Options,
    takes=("beta", "weights"),
    delay_line=True,
)

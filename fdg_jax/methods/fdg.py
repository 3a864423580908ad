"""FDG, the paper's method (Algorithm I). No stage waits within a tick; stage k's gradients are 2(K-k) ticks late.

    θ_k^{t+1} = θ_k^t - γ_t β^{K-k} g_k^d(θ_k^d)        d = t - 2(K-k), in batches of stage k (Eq. 14, 17)

In a tick every stage below K runs the backward pass with the newest gradient from above, updates its weights, and runs
the forward pass on the newest activations from below. Stage K runs forward and backward on the same batch. The gradient
in stage k belongs to the batch of 2(K-k) ticks ago. With `--weights stashed` it is taken at the weights of that batch's
forward pass, which the stage has kept; with `--weights current`, at the newest weights.

docs/reproducing.md lists everything that the paper leaves open. These choices concern the method itself:

- Algorithm I runs the backward pass first. One of the gradients in between has already been used when the forward pass
  runs, so gradients are 2(K-k)-1 updates late. Figure 1 and the theorem run the forward pass first, which gives 2(K-k).
- Stage K computes the loss, so neither delay nor β applies to it. Algorithm I as printed has both for every stage.
- The gradient is multiplied by β before weight decay and momentum.
- The learning rate γ belongs to batch d instead of batch t, so a change of it reaches stage k 2(K-k) updates later.
"""

import dataclasses
from typing import Literal

from fdg_jax.errors import BadInput
from fdg_jax.methods.interface import Method
from fdg_jax.options.fields import option
from fdg_jax.schedule import Accumulation, Op, Schedule, Tick, chain, check_accumulation, check_K, existing_ops

Order = Literal["backward-first", "forward-first"]


@dataclasses.dataclass(frozen=True)
class Options:
    """FDG's own options. FDG also takes beta and weights."""

    order: Literal["backward-first", "forward-first"] = option(
        "backward-first",
        "What a stage does first at a tick. backward-first: as the paper's Algorithm I and "
        "experiments (staleness 2(K-k)-1 updates); forward-first: as its Figure 1 and theorem (2(K-k)).",
    )
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


def fdg(
    K: int, order: Order = "backward-first", accumulate: int = 1, accumulation: Accumulation = "sum", name: str = "fdg"
) -> Schedule:
    """Algorithm I: at tick t, stage k goes forward on batch t-k+1 and backward on batch t-2K+k+1.

    Stage K runs forward and then backward on the same batch, so `order` does not affect it. Gradients are 2(K-k) ticks
    late. If the backward pass comes first, one of the gradients in between has already been used when the forward pass
    runs, so the staleness is 2(K-k)-1 updates. If the forward pass comes first, the staleness is 2(K-k).

    Arguments:
        K: number of stages.
        order: "backward-first" (Algorithm I) or "forward-first" (the theorem).
        accumulate: backward passes per update; more than 1 is ADL.
        accumulation: whether an update uses the "sum" or the "mean" of the accumulated gradients.
        name: the method's name.

    Returns: the schedule.

    Raises:
        BadInput: K or accumulate is below 1, or the value of order or accumulation is unknown.
    """
    check_K(K)
    if order not in ("backward-first", "forward-first"):
        raise BadInput(f"order={order!r} is not known. Use backward-first (the paper's) or forward-first.")
    check_accumulation(accumulate, accumulation)

    def tick(t: int, last: int | None = None) -> Tick:
        ops: list[Op] = []
        for k in range(1, K + 1):
            forward, backward = Op("F", k, t - k + 1), Op("B", k, t - 2 * K + k + 1)
            pair = (forward, backward) if k == K or order == "forward-first" else (backward, forward)
            ops += pair
        return existing_ops(ops, last)

    early = 1 if order == "backward-first" else 0
    delays = tuple(2 * (K - k) - early if k < K else 0 for k in range(1, K + 1))
    ticks = lambda batches: batches + 2 * (K - 1) if batches else 0  # noqa: E731
    return Schedule(name, K, tick, delays, ticks, chain(K), accumulate, accumulation)


METHOD = Method(
    name="fdg",
    summary="fully decoupled learning with delayed gradients (Algorithm I)",
    schedule=fdg,
    options=Options,
    takes=("beta", "weights"),
    delay_line=True,
)

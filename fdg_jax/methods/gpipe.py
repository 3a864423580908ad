"""GPipe (Huang et al. 2019): a batch is split into micro-batches, which go through the stages one after the other. The
gradient is BP's, but stages idle while the pipeline fills and drains (the bubble).

    θ_k^{t+1} = θ_k^t - γ_t (n_1/n g_k^{t,1}(θ^t) + ... + n_M/n g_k^{t,M}(θ^t))        n_m of n examples: part m

The sum of the micro-batches' gradients, each weighted by its fraction of the examples, is the gradient of the whole
batch. Only a batch norm gives another result, because it sees one micro-batch at a time.
Deviations: activations are kept, not recomputed. The backward passes come in the order of the forward passes (the
bubble is the same).
"""

import dataclasses

from fdg_jax.errors import BadInput
from fdg_jax.methods.interface import Method
from fdg_jax.options.fields import option
from fdg_jax.schedule import Address, Messages, Op, Schedule, Tick, chain, check_K, existing_ops


@dataclasses.dataclass(frozen=True)
class Options:
    """GPipe's options."""

    micro_batches: int = option(
        4,
        "gpipe: number M of micro-batches in a batch. Stages idle (K-1)/(M+K-1) of the time. BatchNorm sees one part.",
        metavar="M",
        inside="[1, inf)",
        use="1 (plain BP) or more, e.g. 4 K",
    )


def gpipe(K: int, micro_batches: int = 4) -> Schedule:
    """Tick t: micro-batches (t-1)M+1..tM go forward through all stages, then backward. Then each stage updates once.

    Arguments:
        K: number of stages.
        micro_batches: M, the number of parts of a batch.

    Returns: the schedule.

    Raises:
        BadInput: K or M is below 1.
    """
    check_K(K)
    M = micro_batches
    if not isinstance(M, int) or M < 1:
        raise BadInput(f"micro_batches={M!r} must be a whole number. Use 1 (plain BP) or more, e.g. 4 K.")

    def tick(t: int, last: int | None = None) -> Tick:
        parts, stages = range((t - 1) * M + 1, t * M + 1), range(1, K + 1)
        up = [Op("F", k, part) for part in parts for k in stages]
        down = [Op("B", k, part) for part in parts for k in reversed(stages)]
        return existing_ops(up + down, None if last is None else M * last)

    messages = gpipe_messages(K) if M > 1 else chain(K)
    return Schedule("gpipe", K, tick, (0,) * K, lambda batches: batches, messages, accumulate=M, micro_batches=M)


def gpipe_messages(K: int) -> Messages:
    """BP's messages. In addition, a cotangent of each micro-batch's loss enters at stage K. Its value is the
    micro-batch's share of the batch, by examples or by their weights."""
    ordinary = chain(K)

    def takes(op: Op) -> tuple[Address, ...]:
        return (Address("dy", K, op.batch),) if op.kind == "B" and op.k == K else ordinary.takes(op)

    return ordinary._replace(takes=takes, enters=lambda part: (*ordinary.enters(part), Address("dy", K, part)))


METHOD = Method(
    name="gpipe",
    summary="GPipe (Huang et al. 2019): synchronous micro-batches, BP's gradient, bubble (K-1)/(M+K-1)",
    schedule=gpipe,
    options=Options,
    same_for_every_K=True,
)

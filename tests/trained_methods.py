"""A pipeline of any method, trained on a few batches."""

from functools import cache
from typing import NamedTuple

import jax
import numpy as np
from small import batches, close, fed, pipeline
from stages_of_layers import ROUNDING


def trained(K, data, **options):
    """(the drained pipeline, its first variables, its first engine's stages' own state)."""
    ours = pipeline(K, data[0], **options)
    stages = ours.engine.stages.values()
    start = jax.device_get((ours.params, [stage.layout.unpack_now(stage.state) for stage in stages]))
    fed(ours, data)
    return ours, *start


def agree(ours, truth, tolerance=ROUNDING):
    variables, losses, staleness = truth[:3]
    for mine, true in zip(ours.params, variables, strict=True):
        chosen = {name: true[name] for name in mine}
        close(mine, chosen, **tolerance)
    np.testing.assert_allclose([m.loss for m in ours.losses(wait=True)], losses, **tolerance)
    assert ours.staleness == staleness


class Seen(NamedTuple):
    """What a drained pipeline told of itself; mail: the messages that nobody has taken."""

    sha256: str
    losses: list
    staleness: list
    expected: tuple
    updates: list
    mail: list


@cache
def seen(method, K, **options) -> Seen:
    """Of 9 batches, each of which goes through a `preprocess` as well. Raises where a transfer was implicit."""
    data = batches(9)
    ours = pipeline(K, data[0], method=method, preprocess=lambda x, step: x + 0 * step, **options)
    with jax.transfer_guard("disallow"):
        fed(ours, data)
        losses = ours.losses(wait=True)
    mail = list(ours.engine.loop.mail)
    return Seen(ours.parameters_sha256(), losses, ours.staleness, ours.schedule.staleness, ours.updates, mail)

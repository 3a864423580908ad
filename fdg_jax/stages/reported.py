"""Numbers that modules sow as "metrics" in training. They travel to stage K beside its inputs and join the metrics of
the loss there, so that only stage K reports.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fdg_jax.errors import BadInput

Tree = Any
METRICS = "metrics"  # the collection whose sown values are reported
Metrics = Mapping[str, jax.Array]


class Reported(NamedTuple):
    """The inputs or outputs of a stage, with the metrics sown so far.

    x: the inputs or outputs.
    metrics: {name: [batch, 2]}, the sum of the numbers sown under this name, and their count. All rows are equal. There
        is a row for each example because the first axis of every message is the batch.
    """

    x: Tree
    metrics: Metrics


def taken(x: Tree) -> tuple[Tree, Metrics]:
    """(inputs or outputs, the metrics sown so far)."""
    return (x.x, x.metrics) if isinstance(x, Reported) else (x, {})


def with_sown(y: Tree, metrics: Metrics, sown: Tree, batch: int) -> Tree:
    """Adds sown metrics to outputs: `metrics` of the stages below, and the collection `sown` of this stage. batch: the
    number of examples. Raises BadInput if a sown value is not a number."""
    found = dict(metrics)
    for path, value in jax.tree_util.tree_leaves_with_path(sown):
        name = [each.key for each in path if isinstance(each, jax.tree_util.DictKey)][-1]
        if jnp.ndim(value):
            fact = f"a metric is one number, but an array {list(jnp.shape(value))} was sown as {name!r}"
            raise BadInput(f"{fact}. Sow its mean, say.")
        one = jnp.stack([jnp.asarray(value, jnp.float32), jnp.float32(1)])
        found[name] = found.get(name, 0) + jnp.broadcast_to(one, (batch, 2))
    return Reported(y, found) if found else y


def joined(report: Tree, metrics: Metrics) -> Tree:
    """The result of a loss, with the means of the sown metrics added to its metrics."""
    if not metrics:
        return report
    loss, own = report if isinstance(report, tuple | list) else (report, {})
    means = {name: value[:, 0].mean() / value[:, 1].mean() for name, value in metrics.items()}
    return loss, {**means, **own}

"""Data-parallel pipelines of small networks, and what is the same of two of them."""

import jax
import pytest
from small import pipeline

Ks = [2, *(pytest.param(K, marks=pytest.mark.slow) for K in (3, 4))]  # such a test does little but compile
NORMS = ["local", "sync"]
SIZE = 24  # which 2, 3 and 4 divide


def replicated(K, example, **options):
    return pipeline(K, example, method="data_parallel", **options)


def losses(ours):
    return [m.loss for m in ours.losses(wait=True)]


def statistics(ours):
    """Of every stage the running statistics, as they lie there: for local batch norms [K, ...]."""
    return [stage.state.extra for stage in ours.engine.stages.values()]


def devices_of(tree):
    """The numbers of devices that the leaves of a tree are cut over (1: whole on each)."""
    return {leaf.size // leaf.addressable_shards[0].data.size for leaf in jax.tree.leaves(tree)}

"""Schedules as integers, without JAX: which stage does what at which tick, and how fast that can be."""

from fdg_jax.schedule.core import (
    Accumulation,
    Address,
    Messages,
    Op,
    Schedule,
    Tick,
    bp,
    chain,
    check_accumulation,
    check_K,
    existing_ops,
)

__all__ = [
    "Accumulation",
    "Address",
    "Messages",
    "Op",
    "Schedule",
    "Tick",
    "bp",
    "chain",
    "check_K",
    "check_accumulation",
    "existing_ops",
]

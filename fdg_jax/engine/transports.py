"""Chooses how messages get from stage to stage: within this process, or also between processes."""

from collections.abc import Sequence
from typing import Any

from fdg_jax.arrays import cotangent
from fdg_jax.engine.interface import Problem
from fdg_jax.schedule import Address, Op
from fdg_jax.stages.functions import Spec
from fdg_jax.stages.shapes import examples, with_examples
from fdg_jax.transport.across_processes import AcrossProcesses
from fdg_jax.transport.devices import all_here
from fdg_jax.transport.in_process import InProcess

Tree = Any


def transport(problem: Problem) -> InProcess | AcrossProcesses:
    """Makes the transport: between processes if a stage is in another process, else within this one."""
    schedule, specs = problem.schedule, problem.specs
    if all_here(problem.places):
        return InProcess(problem.places)

    def shapes(address: Address, sender: Op, n: int) -> Tree:
        return with_examples(message_shapes(address, sender, specs), n, examples(specs[0].x))

    return AcrossProcesses(problem.places, shapes, window=(schedule.ticks(1) + 1) * schedule.micro_batches)


def message_shapes(address: Address, sender: Op, specs: Sequence[Spec]) -> Tree:
    """The shapes and dtypes of a message, for a batch of the same shapes as the example batch.

    Arguments:
        address: the message's address.
        sender: the operation that sends it.
        specs: the specs of the stages.
    """
    spec = specs[sender.k - 1]
    if sender.kind == "F":  # direct feedback methods send the error at the outputs (a cotangent) from a forward pass
        return spec.y if address.what == "x" else cotangent(spec.outputs)
    return cotangent(spec.x)

"""Chooses how messages get from stage to stage: within this process, or also between processes."""

from typing import Any

from fdg_jax.engine.interface import Problem
from fdg_jax.engine.message_shapes import message_shapes, with_examples
from fdg_jax.schedule import Address, Op
from fdg_jax.transport.across_processes import AcrossProcesses
from fdg_jax.transport.devices import all_here
from fdg_jax.transport.in_process import InProcess
from fdg_jax.transport.interface import Transport

Tree = Any


def transport(problem: Problem) -> Transport:
    """The transport for where the stages are."""
    schedule, specs = problem.schedule, problem.specs
    if all_here(problem.places):
        return InProcess(problem.places)

    def shapes(address: Address, sender: Op, n: int) -> Tree:
        return with_examples(message_shapes(address, sender, specs), n)

    return AcrossProcesses(problem.places, shapes, window=(schedule.ticks(1) + 1) * schedule.micro_batches)

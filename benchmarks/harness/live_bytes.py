"""Counts the bytes of the arrays that exist while a pipeline trains, and computes the prediction for them."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax

from benchmarks.harness.hooks import Call, is_operation
from fdg_jax.engine import memory
from fdg_jax.engine.host_engine import HostEngine


def buffers() -> dict[tuple[Any, int], int]:
    """Bytes of every buffer of this process's arrays, by (device, address)."""
    arrays = jax.block_until_ready(jax.live_arrays())
    pieces = [piece for array in arrays for piece in array.addressable_shards]
    return {(piece.device, piece.data.unsafe_buffer_pointer()): piece.data.nbytes for piece in pieces}


class Watch:
    """Finds the largest number of bytes of arrays on each device. `hook` counts arrays and stashes before every
    operation.

    Only arrays made after the watch are counted, so make it before the pipeline. of_before: whether earlier arrays are
    counted too.
    """

    def __init__(self, of_before: bool = False) -> None:
        # The earlier arrays are kept alive, so that no new array gets the address of one.
        self.others = [] if of_before else jax.live_arrays()
        self.known = set() if of_before else set(buffers())
        self.most, self.stashes = Counter[Any](), Counter[int]()

    def look(self) -> None:
        now = Counter[Any]()
        for (device, address), size in buffers().items():
            if (device, address) not in self.known:
                now[device] += size
        self.most |= now

    def hook(self, engine: HostEngine) -> Callable:
        """For `hooks.around`."""

        def watched(call: Call, dispatch: Callable[[], Any]) -> Any:
            if not is_operation(call):
                return dispatch()
            self.look()
            given = dispatch()
            self.stashes |= Counter({call.k: len(engine.stages[call.k].stashes)})
            return given

        return watched


def predicted(engine: HostEngine) -> int:
    """Bytes of the arrays of all devices. For each device, this is the most that its stages hold together at one
    moment."""
    devices = {k: stage.place.device for k, stage in engine.stages.items()}
    now, most = Counter[int](), Counter[Any]()
    for k, moment in memory.over_time(engine):
        now[k] = moment.total
        together = sum(size for other, size in now.items() if devices[other] is devices[k])
        most |= Counter({devices[k]: together})
    return most.total()

"""One process of a pipeline in several processes: it trains with the others on request, and can record its operations.

The processes join with `fdg_jax.join_processes`, like a program that `python -m fdg_jax.launch` starts. Everything else
is as in `bench_worker`.
"""

import math
import os
import threading
import time
from typing import Any

import jax
import numpy as np

import fdg_jax
from benchmarks.harness import bench_worker, message_counts, serving, side_specs
from benchmarks.harness.recording import Recording, lateness, quick_threads
from fdg_jax.training import job as jobs
from fdg_jax.training.processes import JoinedPeers
from fdg_jax.transport.across_processes import copy, put
from fdg_jax.transport.devices import is_here
from fdg_jax.transport.notices import Notices

LEAVING_SECONDS = 5  # for the others to leave as well
LATE_TRIES = 10
PAUSE_SECONDS = 0.15  # before a message is sent alone: longer than the time of a message


class Trainer(bench_worker.Trainer):
    """The stages of this process."""

    def prepare_cpu(self, side: side_specs.Side) -> None:
        """Joins the other processes. Each process has one core, so no operation is split over threads."""
        jobs.prepare_cpu(one_core=True)
        fdg_jax.join_processes(os.environ[serving.COORDINATOR], int(os.environ[serving.RANK]), side.K, side.K)
        self.peers = JoinedPeers(int(os.environ[serving.RANK]), side.K, math.inf, Notices())  # else each has all stages

    def recorded(self, batches: int) -> dict[str, Any]:
        """Trains on so many batches and records every operation and message.

        Returns: `ended`, each dispatch of this process with the time when its end was seen; `counted`, its messages;
            `predicted`, the messages of all processes, from their shapes; `late`, the delays in seconds with which a
            watcher sees an end; processor seconds; and the window's times.
        """
        before = os.times()
        with message_counts.counting(self.engine) as counted, quick_threads():
            recording = Recording(self.engine)
            window = self.run(batches)
            ended, after = recording.stop(), os.times()
            late = lateness(LATE_TRIES)
        seconds = {"user_seconds": after.user - before.user, "system_seconds": after.system - before.system}
        predicted = message_counts.predicted(self.engine)
        return {**window, **seconds, "ended": ended, "late": late, "counted": counted, "predicted": predicted}

    def messages(self, tries: int) -> dict[str, Any]:
        """Sends messages with the sizes of those in a tick, each `tries` times. Only one message is on its way at a
        time.

        Returns: `messages`, for each kind [what, k, to, bytes, this process's role ("sent", "arrived" or neither), the
            times in this process].
        """
        places, found = self.engine.problem.places, list[list[Any]]()
        kinds = {each[:3]: each.size for each in message_counts.predicted(self.engine)}
        for (what, k, to), size in sorted(kinds.items()):
            if what not in (message_counts.LOSS, message_counts.REFUSED):
                target = next(place.device for place in places if place.device.process_index == to)
                found.append([what, k, to, size, *sent_alone(places[k - 1].device, target, size, tries)])
        return {"messages": found}

    def leave(self) -> None:
        """Leaves the other processes, which leave at the same time. Does not wait long for a process that does not
        leave."""
        timer = threading.Timer(LEAVING_SECONDS, os._exit, (0,))
        timer.daemon = True
        timer.start()
        jax.distributed.shutdown()


def sent_alone(source: Any, target: Any, size: int, tries: int) -> tuple[str, list[float]]:
    """Sends `size` bytes. When they have arrived, a few bytes are sent back. See `Trainer.messages`."""
    like, answer = jax.ShapeDtypeStruct((size,), np.uint8), jax.ShapeDtypeStruct((1,), np.uint8)
    sends, takes = is_here(source), is_here(target)
    content = put(np.zeros(size, np.uint8), source) if sends else None
    times = []
    for _ in range(tries):
        if sends:
            time.sleep(PAUSE_SECONDS)  # by then the receiver has asked for the message, as in a training
            jax.block_until_ready(content)
            times.append(time.perf_counter())
        arrived = copy(content, like, source, target)
        if takes:
            jax.block_until_ready(arrived)
            times.append(time.perf_counter())
        back = copy(put(np.zeros(1, np.uint8), target) if takes else None, answer, target, source)
        jax.block_until_ready(back)
    return "sent" if sends else "arrived" if takes else "", times

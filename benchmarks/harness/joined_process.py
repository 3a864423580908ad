"""One process of a pipeline of several: it trains with the others when asked to, and can note what it does meanwhile.

The processes join by `fdg_jax.join_processes`, which a program does that is started by `python -m fdg_jax.launch`. All
else is that of `bench_worker`.
"""

import os
import threading
from typing import Any

import jax

import fdg_jax
from benchmarks.harness import bench_worker, message_counts
from benchmarks.harness.block_shares import ONE_THREAD
from benchmarks.harness.joined import COORDINATOR
from benchmarks.harness.ranks import RANK, pin
from benchmarks.harness.recording import Recording, lateness, quick_threads
from benchmarks.harness.serving import serve
from benchmarks.harness.side_specs import Side
from fdg_jax.engine.host_engine import HostEngine
from fdg_jax.machine import compile_cache

LEAVING_SECONDS = 5  # for the others to leave as well


class Trainer(bench_worker.Trainer):
    """The stages of this process."""

    def prepare_cpu(self, side: Side) -> None:
        """Joins the others. On its one core no operation is split over threads, as in a process for all stages."""
        given = os.environ.get("XLA_FLAGS", "")
        if ONE_THREAD.partition("=")[0] not in given:
            os.environ["XLA_FLAGS"] = f"{given} {ONE_THREAD}".strip()
        fdg_jax.join_processes(os.environ[COORDINATOR], int(os.environ[RANK]), side.K, side.K)

    def recorded(self, batches: int) -> dict[str, Any]:
        """Trains on so many batches and notes every operation and message.

        Returns: `ended` (what was dispatched here, each with the time when its end was seen), `counted` (its messages),
        `predicted` (the messages of all processes, from their shapes), processor seconds and the window's times.
        """
        engine = self.job.pipeline.engine
        assert isinstance(engine, HostEngine)
        before = os.times()
        with message_counts.counting(engine) as counts, quick_threads():
            recording = Recording(engine)
            window = self.run(batches)
            ended = recording.stop()
        after = os.times()
        return {
            **window,
            "user_seconds": after.user - before.user,
            "system_seconds": after.system - before.system,
            "ended": ended,
            "counted": [each._asdict() for each in counts.values()],
            "predicted": [each._asdict() for each in message_counts.predicted(engine)],
        }

    def lateness(self, tries: int) -> dict[str, Any]:
        """By how many seconds a watcher sees an end late."""
        with quick_threads():
            return {"late": lateness(tries)}


def leave() -> None:
    """Leaves the other processes, which leave at the same time, without waiting long for one that does not."""
    timer = threading.Timer(LEAVING_SECONDS, os._exit, (0,))
    timer.daemon = True
    timer.start()
    jax.distributed.shutdown()


if __name__ == "__main__":
    pin()
    compile_cache.enable()  # as the training command does
    code = serve(Trainer)
    if code == 0:
        leave()
    os._exit(code)

"""Lets one thread at a time call a pipeline. After a call that was cut off within a tick, it refuses further calls."""

import threading
from typing import Any

from fdg_jax.errors import BadInput, first_line
from fdg_jax.transport.devices import check_no_mesh

BUSY = (
    "two threads use this pipeline at the same time. Only one call of step, train, drain, state or restore may run at "
    "a time: put a threading.Lock around these calls."
)
INTERRUPTED = (
    "the pipeline was interrupted in the middle of a step, so its stages have processed different batches. Call "
    "restore(state) with an earlier state, or init."
)


class CallGuard:
    """A context in which one thread works with an engine. It costs the host well under a microsecond.

    A plain lock would stay locked if Ctrl-C came between taking the lock and the first line under it. So the guard
    records which thread owns it. It accepts the next call of the same thread, and calls of other threads once the owner
    has ended.
    """

    def __init__(self, engine: Any):
        self.engine = engine
        self._owner: dict[str, int] = {}  # {"thread": its number} within a call; setdefault is atomic
        self._entered = 0  # batches before the call

    def __enter__(self) -> None:
        self.take()
        self._entered = self.engine.entered
        if self.engine.within_tick:
            self.release()
            self.check_whole()

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if error is not None and self.engine.entered != self._entered:  # a second call would train the batch twice
            self.engine.within_tick = True
        self.release()
        if isinstance(error, RuntimeError) and "deleted" in str(error):
            raise BadInput(
                f"an array of a batch was deleted or donated while the batch was in flight ({first_line(error)}) "
                "Give the pipeline arrays that nobody donates, and restore an earlier state."
            ) from error

    def take(self) -> None:
        """Begins a call, even if an earlier one was cut off. Raises BadInput if another live thread is within a call,
        or within jax.set_mesh."""
        self.check_alone(self._owner.setdefault("thread", threading.get_ident()))
        self._owner["thread"] = threading.get_ident()

    def release(self) -> None:
        """Ends a call."""
        self._owner.clear()

    def check_alone(self, owner: int | None) -> None:
        """Raises BadInput within jax.set_mesh, or if `owner` is the number of another live thread.

        owner: None means that no thread is within a call. It must not be looked up among the threads: a thread that is
            being started has the number None, too.
        """
        check_no_mesh()
        if owner is None or owner == threading.get_ident():
            return
        if any(thread.ident == owner for thread in threading.enumerate()):
            raise BadInput(BUSY)

    def check_whole(self) -> None:
        """Raises BadInput if another thread is within a call, or if a call was cut off."""
        self.check_alone(self._owner.get("thread"))
        if self.engine.within_tick:
            raise BadInput(INTERRUPTED)

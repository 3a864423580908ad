"""TensorBoard's curves. Points are written directly, without tensorboardX's SummaryWriter: its thread dies when the
disk is full, and then every call that adds a number waits for ever."""

import os
import sys
import time
import types
from collections.abc import Mapping
from pathlib import Path

from fdg_jax import durable


def kind_of(curves: Mapping[str, float | None]) -> str:
    """The kind of the curves that get a point together: "train" of train/learning_rate."""
    return next(iter(curves)).split("/")[0]


class Scalars:
    """Curves in files below `path`, from after batch `step` on; none where `path` is None. If they
    cannot be written, the curves end with a warning, and the run goes on.

    newest: of each kind of curves, the batch of the newest point that is there already. A loss is read late, so after a
    resume it may come once more for a batch up to `step`.
    """

    def __init__(self, path: Path | None, step: int, newest: Mapping[str, int] = types.MappingProxyType({})):
        self.writer, self.folder = None, path
        self.there = {kind: min(batch, step) for kind, batch in newest.items()}
        self.lost: OSError | None = None  # what another thread met while it flushed
        if path is None:
            return
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog  # type: ignore

        try:
            durable.make_folder(path)
            self.writer = EventsWriter(str(path / "events"), f".{os.getpid()}")
        except OSError as error:
            self.warn(error)
            return
        if step:  # TensorBoard then forgets what another session wrote of later steps
            log = SessionLog(status=SessionLog.START)
            self.write(Event(wall_time=time.time(), step=step + 1, session_log=log))

    def add(self, step: int, values: Mapping[str, float | None]) -> None:
        """A point of each curve; None: no point."""
        if self.writer is None or step <= self.there.get(kind_of(values), 0):
            return
        from tensorboardX.proto.event_pb2 import Event  # type: ignore
        from tensorboardX.proto.summary_pb2 import Summary  # type: ignore

        points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items() if value is not None]
        self.write(Event(wall_time=time.time(), step=step, summary=Summary(value=points)))

    def write(self, event) -> None:
        assert self.writer is not None
        try:
            if self.lost is not None:
                raise self.lost
            self.writer.write_event(event)
            self.writer.flush()
        except OSError as error:
            self.warn(error)
            self.writer = None

    def warn(self, error: OSError) -> None:
        fact = f"TensorBoard's curves end here, they cannot be written: {error.strerror}"
        print(f"WARNING: {fact}. metrics.jsonl goes on.", file=sys.stderr, flush=True)

    def flush(self) -> None:
        """Brings the points so far to the disk. Another thread may call it; errors are reported at the next point."""
        if self.writer is None or self.folder is None:
            return
        try:
            for file in self.folder.glob(f"*.{os.getpid()}"):  # of this process; one, unless the run went back
                durable.flush_file(file)
            durable.flush_folder(self.folder)
        except OSError as error:
            self.lost = error

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()

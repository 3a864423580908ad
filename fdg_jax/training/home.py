"""The run directory while its run is under way. Somebody may delete it meanwhile, rename it, or begin another run in
its place. The training need not end by that, and its weights need not be lost."""

import contextlib
import os
from pathlib import Path

from fdg_jax.errors import BadInput, reason
from fdg_jax.runs import locking
from fdg_jax.runs.checkpoints import SaveFailed, stored
from fdg_jax.runs.run_files import CHECKPOINTS, CONFIG, METRICS, SUMMARY
from fdg_jax.storage import durable
from fdg_jax.training.record import Record


class Gone(SaveFailed):
    """The run directory is not there, or it is somebody else's, so nothing can be saved."""


class Home:
    """The directory is told from another one of the same name by its inode. No other gets that inode, as the lock on it
    (fdg_jax.runs.locking) keeps it open.

    tensorboard: whether the run has curves there."""

    def __init__(self, path: Path, tensorboard: bool):
        self.path, self.tensorboard = path, tensorboard
        self.ours = inode(path)
        self.config = (path / CONFIG).read_bytes() if (path / CONFIG).is_file() else None
        self.locks = contextlib.ExitStack()
        self.left: Gone | None = None  # why there is another directory, until the run's files are in it

    def close(self) -> None:
        self.locks.close()

    def lost(self) -> Gone | None:
        """What has happened to the directory; None where it is there, or where that cannot be told."""
        try:
            now = inode(self.path)
        except OSError:
            return None
        if now == self.ours:
            return None
        if now is None:
            return Gone(f"The run directory {self.path} is gone: it was deleted or renamed.")
        return Gone(f"The run directory {self.path} is gone, and another one is in its place.")

    def keep(self, record: Record, anew: bool) -> str | None:
        """Before a save: sees that everything else is there that a resume needs. Returns what was missing and is there
        again. anew: the directory itself is made again, too. Raises SaveFailed, and Gone where it stays away."""
        gone = self.lost()
        if gone and not anew:
            raise gone
        try:
            if gone:
                self.make(gone)
                self.left = gone
            if self.left:
                record.move(self.path, self.tensorboard)
                self.complete()
                told, self.left = f"{self.left} It is made anew, and has config.json, metrics.jsonl and what", None
                return f"{told} is saved from now on"
            return self.complete()
        except OSError as error:
            gone = self.left or gone
            raise SaveFailed(f"{gone or ''} Nothing can be written to {self.path}: {reason(error)}.".strip()) from None

    def make(self, gone: Gone) -> None:
        """Raises Gone where another run is there, or another process that is about to begin one."""
        if any((self.path / name).exists() for name in (CONFIG, METRICS, SUMMARY)) or stored(self.path / CHECKPOINTS):
            raise Gone(f"{gone} It holds another run, so nothing is written there.")
        durable.make_folder(self.path)
        try:
            self.locks.enter_context(locking.lock(self.path))
        except BadInput as held:
            raise Gone(f"{gone} Nothing is written there: {held}") from None
        self.ours = inode(self.path)

    def complete(self) -> str | None:
        """Without config.json nobody could resume."""
        if self.config is None or (self.path / CONFIG).exists():
            return None
        durable.write(self.path / CONFIG, self.config)
        return f"{self.path / CONFIG} was gone. It was written again"


def inode(path: Path) -> tuple[int, int] | None:
    """Which folder it is, whatever its name; None where there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino

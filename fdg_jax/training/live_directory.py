"""The run directory of a run that is training. Somebody may delete it meanwhile, rename it, or begin another run in
its place. That need not end the training, and the weights need not be lost."""

import contextlib
import os
from pathlib import Path

from fdg_jax.errors import BadInput, reason
from fdg_jax.runs import locking
from fdg_jax.runs.checkpoints import SaveFailed, stored
from fdg_jax.runs.run_files import CHECKPOINTS, CONFIG, METRICS, SUMMARY
from fdg_jax.storage import durable
from fdg_jax.training.record import Record


class DirectoryGone(SaveFailed):
    """The run directory is not there any more, or another one is in its place, so nothing can be saved."""


class LiveDirectory:
    """A locked run directory with its config.json.

    It is recognised by its inode, not by its name. No other directory can get that inode, as the lock on it
    (fdg_jax.runs.locking) keeps it open.

    Arguments:
        path: the run directory.
        tensorboard: whether the run has curves there.
    """

    def __init__(self, path: Path, tensorboard: bool):
        self.path, self.tensorboard = path, tensorboard
        self.ours = inode(path)
        self.config = (path / CONFIG).read_bytes() if (path / CONFIG).is_file() else None
        self.locks = contextlib.ExitStack()
        self.unmoved: DirectoryGone | None = None  # why the directory was made again, until the run's files are in it

    def close(self) -> None:
        self.locks.close()

    def missing(self) -> DirectoryGone | None:
        """Returns what has happened to the directory; None if it is there, or if that cannot be determined."""
        try:
            now = inode(self.path)
        except OSError:
            return None
        if now == self.ours:
            return None
        if now is None:
            return DirectoryGone(f"The run directory {self.path} is gone: it was deleted or renamed.")
        return DirectoryGone(f"The run directory {self.path} is gone, and another one is in its place.")

    def is_ours(self) -> bool:
        """Whether it is still this run's, as far as that can be told."""
        return self.missing() is None

    def prepare_save(self, record: Record, recreate: bool) -> str | None:
        """Before a checkpoint: makes sure that everything else is there that a resume needs.

        Arguments:
            recreate: whether the directory itself is made again, too.
        Returns: a sentence on what was missing and is there again; None if nothing was missing.
        Raises: SaveFailed, and DirectoryGone if the directory is not made again.
        """
        gone = self.missing()
        if gone and not recreate:
            raise gone
        try:
            if gone:
                self.recreate(gone)
                self.unmoved = gone
            if self.unmoved:
                record.move(self.path, self.tensorboard)
                self.restore_config()
                gone, self.unmoved = self.unmoved, None
                return f"{gone} It is made again, with config.json, metrics.jsonl and what is saved from now on"
            return self.restore_config()
        except OSError as error:
            gone = self.unmoved or gone
            raise SaveFailed(f"{gone or ''} Nothing can be written to {self.path}: {reason(error)}.".strip()) from None

    def recreate(self, gone: DirectoryGone) -> None:
        """Makes it again. Raises DirectoryGone if another run is in its place, or is about to begin there."""
        if any((self.path / name).exists() for name in (CONFIG, METRICS, SUMMARY)) or stored(self.path / CHECKPOINTS):
            raise DirectoryGone(f"{gone} It holds another run, so nothing is written there.")
        durable.make_folder(self.path)
        try:
            self.locks.enter_context(locking.lock(self.path))
        except BadInput as held:
            raise DirectoryGone(f"{gone} Nothing is written there: {held}") from None
        self.ours = inode(self.path)

    def restore_config(self) -> str | None:
        """Writes config.json, which a resume needs, again if it is missing. Returns a sentence if so."""
        if self.config is None or (self.path / CONFIG).exists():
            return None
        durable.write(self.path / CONFIG, self.config)
        return f"{self.path / CONFIG} was gone. It was written again"


class OthersDirectory:
    """The run directory in a process that writes nothing there but its parts of checkpoints: process 0 looks after it.

    Its members are those of `LiveDirectory`.
    """

    def __init__(self, path: Path):
        self.path, self.ours = path, inode(path)

    def close(self) -> None: ...

    def missing(self) -> None: ...

    def is_ours(self) -> bool:
        """Whether it is still this run's, as far as that can be told."""
        try:
            return inode(self.path) == self.ours
        except OSError:
            return True

    def prepare_save(self, record: Record, recreate: bool) -> None: ...

    def restore_config(self) -> None: ...


def inode(path: Path) -> tuple[int, int] | None:
    """(device, inode) of a folder, which identify it whatever its name is; None if there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino

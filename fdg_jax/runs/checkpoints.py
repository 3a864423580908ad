"""Checkpoints of a training loop: the pipeline's exact state and the loop's own few numbers, one folder per step.

A thread writes them while training goes on, and flushes them to the disk. The newest are kept, and the best one if that
is wanted. A damaged one (fdg_jax.storage.manifest) is set aside with a warning, and the one before it is used. One that
cannot be read at the moment is left as it is.
"""

import contextlib
import errno
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from fdg_jax.errors import BadInput, reason
from fdg_jax.storage import durable, finite, quiet
from fdg_jax.storage.manifest import REPLACED, Damaged

LOOP, DAMAGED = "loop/", "damaged-"
REMAINDER = re.compile(r"step-.*\.orbax-checkpoint-tmp")
MOST_LOOKS, LOOK_SECONDS = 100, 0.1


class SaveFailed(Exception):
    """A checkpoint could not be written. The earlier ones are unchanged."""


class NotFinite(Exception):
    """The state contains NaN or infinity, or an update was refused, so it is not saved.

    step: the batch after which it was taken. lasting: whether later batches are affected, too.
    """

    def __init__(self, fact: str, step: int, lasting: bool = True):
        super().__init__(fact)
        self.step, self.lasting = step, lasting


def folder(root: Path, step: int) -> Path:
    """The folder of a checkpoint."""
    return root / f"step-{step:09d}"


class Saver:
    """Writes one checkpoint at a time in the background.

    root: the folder of the checkpoints. about: for the manifest. keep: how many of the newest to keep.
    best: the step of one more to keep, once it is there.
    flush: called in the thread before a checkpoint gets its name; what the checkpoint refers to must then be on the
        disk.
    """

    def __init__(self, root: Path, about: Mapping[str, Any], keep: int, flush: Callable[[], None] = lambda: None):
        self.root, self.about, self.keep, self.flush = root, about, keep, flush
        self.run = os.stat(root.parent)
        self.best: int | None = None
        self.thread: Thread | None = None
        self.step = -1  # of the newest asked for
        self.saves = 0  # how many were asked for
        self.failure: Exception | None = None

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        loop: Mapping[str, Any],
        refused: Sequence[int] | None = None,
        best: bool = False,
    ) -> None:
        """Begins to write a checkpoint. Waits for an earlier one first.

        Arguments:
            step: the batches that have entered.
            state: Pipeline.snapshot().
            loop: numbers and arrays of the training loop.
            refused: for each stage, the number of the first refused update that is expected in the state
                (fdg_jax.stage.nonfinite); NotFinite is raised for any other. None: accept whatever there is.
            best: whether to keep this one.
        """
        self.wait()
        self.step, self.saves = step, self.saves + 1
        thread = Thread(target=self.write, args=(step, state, loop, refused, best), name=f"checkpoint {step}")
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads for us
            self.failure = not_written(step, error)
        else:
            self.thread = thread

    def has_failed(self) -> bool:
        """Whether a checkpoint has failed since the last `wait`. Does not wait."""
        return self.failure is not None and (self.thread is None or not self.thread.is_alive())

    def wait(self) -> None:
        """Waits until nothing is being written. Raises SaveFailed or NotFinite if a checkpoint has failed."""
        if self.thread is not None:
            self.thread.join()
        self.thread, failure, self.failure = None, self.failure, None
        if failure is not None:
            self.step = -1
            raise failure

    def close(self) -> None:
        """Waits for the checkpoint under way, so that nothing is left half written. Raises nothing."""
        if self.thread is not None:
            self.thread.join()

    def write(
        self, step: int, state: Mapping[str, Any], loop: Mapping[str, Any], refused: Sequence[int] | None, best: bool
    ) -> None:
        """The thread: writes a checkpoint and records a failure."""
        with quiet.orbax():
            try:
                self.write_now(step, state, loop, refused, best)
            except NotFinite as error:
                self.failure = error
            except Exception as error:  # of Orbax, too, which wraps what the system says
                self.failure = not_written(step, error)
            if isinstance(self.failure, SaveFailed):
                self.sweep()
                quiet.forget_tasks()

    def write_now(
        self, step: int, state: Mapping[str, Any], loop: Mapping[str, Any], refused: Sequence[int] | None, best: bool
    ) -> None:
        """Writes a checkpoint. Raises NotFinite, and whatever Orbax and the system raise."""
        import jax

        from fdg_jax.stage import nonfinite
        from fdg_jax.storage import checkpoint

        content = jax.device_get({**state, **{LOOP + name: value for name, value in loop.items()}})
        check_finite(content, step, losses=refused is not None)
        check_refused(nonfinite.refused_by_stage(content), refused, step)
        self.make_root()
        self.flush()
        check_room(self.root, sum(np.asarray(value).nbytes for value in content.values()))
        checkpoint.save(folder(self.root, step), content, self.about)
        self.best = step if best else self.best
        self.prune()

    def sweep(self) -> None:
        """Removes what a checkpoint that failed has left."""
        sweep(self.root, looks=10)

    def is_gone(self) -> bool:
        """Whether the run directory is not there any more, or another one is in its place."""
        return not durable.is_same_folder(self.root.parent, self.run)

    def make_root(self) -> None:
        """Makes the folder of the checkpoints, in the run directory of the beginning only. Raises OSError."""
        if self.is_gone():
            fact = f"the run directory {self.root.parent} is gone: it was deleted, renamed or replaced"
            raise FileNotFoundError(errno.ENOENT, fact)
        if not self.root.exists():
            self.root.mkdir(exist_ok=True)
            durable.flush_folder(self.root.parent)

    def prune(self) -> None:
        """Removes all but the newest and the best.

        It renames them first, to names that `sweep` knows: so a power cut leaves no half that looks like a whole one.
        """
        best = None if self.best is None else folder(self.root, self.best)
        spare = [old for old in stored(self.root)[: -self.keep] if old != best]
        aside = [old.with_name(f".{old.name}.old") for old in spare]
        try:
            for old, new in zip(spare, aside, strict=True):
                old.rename(new)
            if spare:
                durable.flush_folder(self.root)
        except OSError:  # the next one removes them
            return
        for old in aside:
            shutil.rmtree(old, ignore_errors=True)


def check_finite(content: Mapping[str, Any], step: int, losses: bool) -> None:
    """Raises NotFinite for an array with NaN or infinity, a stage's own first. losses: checks unread losses, too."""

    def checked(name: str) -> bool:
        return not name.startswith(LOOP) or (losses and name.startswith(f"{LOOP}unread/"))

    found = [(finite.PASSING.search(name) is not None, name) for name, *_ in finite.nonfinite_arrays(content, checked)]
    if found:
        passing, name = min(found)
        fact = f"after batch {step:,} {readable(name)} is not finite, so there is no checkpoint of it"
        raise NotFinite(fact, step, lasting=not passing)


def check_refused(found: Mapping[int, int], expected: Sequence[int] | None, step: int) -> None:
    """Raises NotFinite for a refused update that nobody has reported yet.

    Arguments:
        found: for each guarded stage k, the number of the first refused update in a state.
        expected: those that are expected, in the order of k; None: any.
        step: of the state.
    """
    from fdg_jax.stage import nonfinite

    now = tuple(found[k] for k in sorted(found))
    if expected is not None and any(now) and now != tuple(expected):
        raise NotFinite(
            f"{nonfinite.describe_first_refused(now)}, so there is no checkpoint after batch {step:,}", step
        )


def readable(name: str) -> str:
    """The name of an array of a state in words: extra/batch_stats/block001/norm1/var of stage k=1."""
    place, _, rest = name.partition("/state/")
    keys = "/".join(re.findall(r"\w+", rest or name))
    return f"{keys} of {place.replace('stage', 'stage k=')}" if rest else keys


def check_room(root: Path, needed: int) -> None:
    """Raises OSError if the disk has no room for so many bytes, before any is written."""
    free = shutil.disk_usage(root).free
    needed = math.ceil(1.05 * needed) + 2**20  # the manifest, and what a file system adds
    if free < needed:
        fact = f"it needs {needed / 1e6:,.3f} MB, {free / 1e6:,.3f} MB are free"
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} ({fact})")


def not_written(step: int, error: BaseException) -> SaveFailed:
    """The error for a checkpoint that could not be written."""
    return SaveFailed(f"the checkpoint after batch {step:,} could not be written: {reason(error)}.")


def sweep(root: Path, looks: int = 1) -> None:
    """Removes what a killed process left. looks: how often in a row to find nothing, as Orbax's threads still write."""
    clean = looks - 1
    for _ in range(MOST_LOOKS):
        left = remainders(root)
        clean = 0 if left else clean + 1
        if clean == looks:
            return
        for path in left:
            if path.name.endswith(REPLACED):  # its process ended before the other checkpoint had the name
                with contextlib.suppress(OSError):
                    durable.put_back(path, path.with_name(path.name.removeprefix(".").removesuffix(REPLACED)))
            shutil.rmtree(path, ignore_errors=True)
        time.sleep(LOOK_SECONDS)


def remainders(root: Path) -> list[Path]:
    """Folders that are no whole checkpoints; none if the folder cannot be listed, which is reported when it is read."""
    try:
        names = os.listdir(root)
    except OSError:
        return []
    return [root / name for name in names if name.startswith(".step-") or REMAINDER.match(name)]


def listed(root: Path, beginning: str = "") -> list[Path]:
    """Checkpoints with a name that begins so, oldest first. Raises OSError if the folder cannot be listed.

    Path.glob of newer Pythons would show such a folder as one without checkpoints.
    """
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        if root.is_symlink():  # to a disk that is away
            raise
        return []
    steps = {name: re.fullmatch(f"{beginning}step-([0-9]{{9,}})", name) for name in names}
    found = {name: int(step[1]) for name, step in steps.items() if step}
    return [root / name for name in sorted(found, key=lambda name: found[name])]


def stored(root: Path) -> list[Path]:
    """Whole checkpoints, oldest first; none if they cannot be listed."""
    try:
        return listed(root)
    except OSError:
        return []


def load_newest(root: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]] | None:
    """Loads the newest whole checkpoint and sets damaged ones aside.

    Returns: (state, loop, about); None if there is no checkpoint.

    Raises:
        BadInput: all are damaged, or one cannot be read. One that is not known to be damaged is never skipped.
    """
    try:
        found, damaged = listed(root), listed(root, DAMAGED)
    except OSError as error:
        raise BadInput(f"the checkpoints in {root} cannot be listed: {reason(error)}. Nothing was changed.") from None
    put_aside = set(damaged)
    for path in reversed(found):
        try:
            return load(path)
        except Damaged as error:
            aside = path.with_name(DAMAGED + path.name)
            done = f"Put aside as {aside.name}"
            try:
                shutil.rmtree(aside, ignore_errors=True)
                durable.rename(path, aside)
                put_aside.add(aside)
            except OSError as failed:
                done = f"It cannot be put aside ({failed.strerror})"
                damaged.append(path)
            print(f"warning: {error} {done}; trying the one before.", file=sys.stderr, flush=True)
    if found or damaged:
        count = len(put_aside | set(damaged))
        where = "were put aside" if count == len(put_aside) else "are there"
        raise BadInput(
            f"no checkpoint in {root} is whole; {count} damaged ones {where}. Delete these to start the run from the "
            f"beginning, or start a new one in another --run-dir."
        )
    return None


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(state, loop, about) of a checkpoint. Raises BadInput if it is damaged or cannot be read."""
    from fdg_jax.storage import checkpoint

    content, about = checkpoint.load(path)
    loop = {name[len(LOOP) :]: content.pop(name) for name in list(content) if name.startswith(LOOP)}
    return dict(content), loop, about

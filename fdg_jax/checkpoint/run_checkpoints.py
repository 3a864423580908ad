"""The checkpoints of a run: the pipeline's exact state and the loop's own few numbers, one folder per step.

A thread writes them while training goes on, and flushes them to the disk. The newest checkpoints are kept and, on
request, the best one. A damaged checkpoint (fdg_jax.checkpoint.manifest) is set aside with a warning, and the
checkpoint before it is used. A checkpoint that cannot be read at the moment is not changed.

The processes of a training write a checkpoint together, into a folder that all of them see. Each process writes the
state of its own stages. When all have sealed their parts, process 0 renames the folder, which is the commit. No process
begins the next checkpoint before the commit, so all processes know whether this checkpoint has succeeded.
"""

import errno
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fdg_jax import durable
from fdg_jax.checkpoint import folder
from fdg_jax.checkpoint import state as states
from fdg_jax.checkpoint.manifest import Damaged
from fdg_jax.errors import BadInput, reason

LOOP, DAMAGED = "loop/", "damaged-"
SWEEPS, SWEEP_SECONDS = 10, 0.1  # repeated after a failed checkpoint, because Orbax's threads still write


class SaveFailed(Exception):
    """A checkpoint could not be written. The earlier ones are unchanged."""


class NotFinite(Exception):
    """The state contains NaN or infinity, or an update was refused, so it is not saved.

    step: the batch after which the state was taken. lasting: whether later batches are affected, too.
    """

    def __init__(self, fact: str, step: int, lasting: bool = True):
        super().__init__(fact)
        self.step, self.lasting = step, lasting


class Processes:
    """The processes of a training, if it runs in one process. For several processes, see fdg_jax.training.processes.

    process: the number of this process, from 0. processes: how many there are.
    """

    process, processes = 0, 1

    def all_gather(self, value: Any, name: str = "") -> list[Any]:
        """Sends a JSON value to all processes, and waits for the values of all processes.

        Arguments:
            value: this process's value.
            name: the name of this exchange, if a thread makes it; other exchanges are numbered.

        Returns: the values of the processes 0, 1, ...
        """
        return [value]


def path_of(root: Path, step: int) -> Path:
    """The folder of a checkpoint."""
    return root / f"step-{step:09d}"


class Saver:
    """Writes one checkpoint at a time in the background. In several processes, all must save the same checkpoints.

    root: the folder of the checkpoints. about: further entries of the manifest. keep: how many of the newest
        checkpoints to keep.
    best: the step of the best checkpoint written so far, which is kept, too; None if there is none.
    flush: is called in the thread before a checkpoint gets its name. It brings the files that the checkpoint refers to
        to the disk.
    peers: the processes of the training; None: only this process.
    """

    def __init__(
        self,
        root: Path,
        about: Mapping[str, Any],
        keep: int,
        flush: Callable[[], None] = lambda: None,
        peers: Processes | None = None,
    ):
        self.root, self.about, self.keep, self.flush, self.peers = root, about, keep, flush, peers or Processes()
        self.run = os.stat(root.parent)
        self.best: int | None = None
        self.writing: Future[None] | None = None  # the newest checkpoint
        self.step = -1  # of the newest call of `save`
        self.saves = 0  # number of calls of `save`

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        loop: Mapping[str, Any],
        refused: Sequence[int] | None = None,
        best: bool = False,
    ) -> None:
        """Begins to write a checkpoint. Waits for an earlier checkpoint first.

        Arguments:
            step: the batches that have entered.
            state: Pipeline.snapshot(); with several processes, this process's part.
            loop: numbers and arrays of the training loop.
            refused: for each stage, the number of the first refused update that is expected in the state
                (fdg_jax.stages.nonfinite). Any other number raises NotFinite. None: any number is accepted.
            best: whether this is the best checkpoint so far, to be kept.
        """
        self.wait()
        self.step, self.saves = step, self.saves + 1
        thread = ThreadPoolExecutor(1, "checkpoint")
        self.writing = thread.submit(self.write, step, state, loop, refused, best)
        thread.shutdown(wait=False)  # it ends with this checkpoint: nothing is left over after the last one

    def has_failed(self) -> bool:
        """Whether a checkpoint has failed since the last `wait`. Does not wait."""
        return self.writing is not None and self.writing.done() and self.writing.exception() is not None

    def wait(self) -> None:
        """Waits until nothing is being written. Raises SaveFailed or NotFinite if a checkpoint has failed."""
        self.close()
        writing, self.writing = self.writing, None
        if writing and (failure := writing.exception()):
            self.step = -1
            raise failure

    def close(self) -> None:
        """Waits for the checkpoint under way, so that nothing is left half written. Raises nothing."""
        if self.writing:
            wait([self.writing])

    def write(
        self, step: int, state: Mapping[str, Any], loop: Mapping[str, Any], refused: Sequence[int] | None, best: bool
    ) -> None:
        """The thread: writes a checkpoint. Raises SaveFailed, NotFinite."""
        folder.quiet_orbax()
        try:
            self.write_now(step, state, loop, refused)
        except NotFinite:
            raise
        except Exception as error:  # also one of Orbax, which wraps the system's errors
            if self.peers.process == 0:
                sweep(self.root, SWEEPS)
            raise not_written(step, error) from error
        self.best = step if best else self.best
        if self.peers.process == 0:
            self.prune()

    def write_now(
        self, step: int, state: Mapping[str, Any], loop: Mapping[str, Any], refused: Sequence[int] | None
    ) -> None:
        """Writes a checkpoint, or fails in all processes. Raises NotFinite, and the errors of Orbax and the system."""
        process, path, name = self.peers.process, path_of(self.root, step), f"checkpoint {self.saves}"
        self.peers.all_gather(None, f"{name} begun by")  # process 0 has removed earlier remainders
        of_loop = {LOOP + key: value for key, value in loop.items()} if process == 0 else {}
        part: dict[str, Any] = {}

        def check() -> tuple[int, list[tuple[int, int]]]:
            """(bytes of this process's part, (k, first refused update) of each stage in it)."""
            part.update(jax.device_get({**state, **of_loop}))
            check_finite(part, step, losses=refused is not None)
            size = sum(np.asarray(value).nbytes for value in part.values())
            return size, list(states.refused_by_stage(part).items())

        found = self.on_all(check, f"{name} of", step)
        check_refused({k: number for _, by_stage in found for k, number in by_stage}, refused, step)
        self.on_all(lambda: self.make_ready(sum(size for size, _ in found)), f"{name} has room at", step)
        if self.peers.processes == 1:
            folder.save(path, part, self.about)
            return
        sealed = self.on_all(lambda: folder.save_part(path, process, part), f"{name} written by", step)
        commit = (lambda: folder.commit_parts(path, sealed, self.about)) if process == 0 else (lambda: None)
        self.on_all(commit, f"{name} committed by", step)

    def on_all(self, make: Callable[[], Any], name: str, step: int) -> list[Any]:
        """Calls `make` in each process. Returns all results, as JSON has them; raises the first error in every
        process."""
        if self.peers.processes == 1:
            return [make()]
        made = failed = None
        try:
            made = make()
        except NotFinite as error:
            failed = [str(error), error.lasting]
        except Exception as error:  # also one of Orbax, which wraps the system's errors
            failed = [f"{reason(error)}, in process {self.peers.process}", None]
        found = self.peers.all_gather([made, failed], name)
        text, lasting = next((failed for _, failed in found if failed), ["", None])
        if text and lasting is not None:
            raise NotFinite(text, step, lasting)
        if text:
            raise OSError(errno.EIO, text)
        return [made for made, _ in found]

    def make_ready(self, needed: int) -> None:
        """Makes the folder of the checkpoints, unless the run directory was replaced, and flushes the files that
        checkpoints refer to.
        needed: bytes that all processes will write. Raises OSError, before anything is written."""
        if self.is_gone():
            fact = f"the run directory {self.root.parent} is gone: it was deleted, renamed or replaced"
            raise FileNotFoundError(errno.ENOENT, fact)
        if not self.root.exists():
            self.root.mkdir(exist_ok=True)
            durable.flush_folder(self.root.parent)
        self.flush()
        check_room(self.root, needed)

    def is_gone(self) -> bool:
        """Whether the run directory no longer exists, or was replaced by another directory."""
        return not durable.is_same_folder(self.root.parent, self.run)

    def prune(self) -> None:
        """Removes all checkpoints except the newest and the best.

        It first gives them names that `sweep` removes. So a power cut leaves no incomplete checkpoint that looks
        complete.
        """
        best = None if self.best is None else path_of(self.root, self.best)
        spare = [old for old in stored(self.root)[: -self.keep] if old != best]
        aside = [old.with_name(f".{old.name}.old") for old in spare]
        try:
            for old, new in zip(spare, aside, strict=True):
                old.rename(new)
            if spare:
                durable.flush_folder(self.root)
        except OSError:  # the next call removes them
            return
        for old in aside:
            shutil.rmtree(old, ignore_errors=True)


def check_finite(content: Mapping[str, Any], step: int, losses: bool) -> None:
    """Raises NotFinite if an array has a NaN or infinity. The exception names an array with a lasting effect, if there
    is one. losses: whether to check unread losses, too."""

    def checked(name: str) -> bool:
        return not name.startswith(LOOP) or (losses and name.startswith(f"{LOOP}unread/"))

    found = [(states.PASSING.search(name) is not None, name) for name, *_ in states.nonfinite_arrays(content, checked)]
    if found:
        passing, name = min(found)
        fact = f"{readable(name)} is not finite after batch {step:,}, so no checkpoint was written for that batch"
        raise NotFinite(fact, step, lasting=not passing)


def check_refused(found: Mapping[int, int], expected: Sequence[int] | None, step: int) -> None:
    """Raises NotFinite for a refused update that nobody has reported yet.

    Arguments:
        found: for each guarded stage k, the number of the first refused update in a state.
        expected: the expected numbers, in the order of k; None: accept any.
        step: the batch after which the state was taken.
    """
    now = tuple(found[k] for k in sorted(found))
    if expected is not None and any(now) and now != tuple(expected):
        raise NotFinite(f"{states.describe_first_refused(now)}, so there is no checkpoint after batch {step:,}", step)


def readable(name: str) -> str:
    """The name of an array of a state in words: extra/batch_stats/block001/norm1/var of stage k=1."""
    place, _, rest = name.partition("/state/")
    keys = "/".join(re.findall(r"\w+", rest or name))
    return f"{keys} of {place.replace('stage', 'stage k=')}" if rest else keys


def check_room(root: Path, needed: int) -> None:
    """Raises OSError, before anything is written, if the disk has no room for `needed` bytes."""
    free = shutil.disk_usage(root).free
    needed = math.ceil(1.05 * needed) + 2**20  # the manifest, and what a file system adds
    if free < needed:
        fact = f"it needs {needed / 1e6:,.3f} MB, but {free / 1e6:,.3f} MB are free"
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} ({fact})")


def not_written(step: int, error: BaseException) -> SaveFailed:
    """The error for a checkpoint that could not be written."""
    return SaveFailed(f"the checkpoint after batch {step:,} could not be written: {reason(error)}.")


def sweep(root: Path, times: int = 1) -> None:
    """Removes what a failed checkpoint, or a killed process, has left. If the folder cannot be listed, nothing is
    removed, and the next reader of the folder reports the error."""
    for turn in range(times):
        time.sleep(SWEEP_SECONDS if turn else 0)
        try:
            left = [name for name in os.listdir(root) if name.startswith(".step-")]
        except OSError:
            left = []
        for name in left:
            shutil.rmtree(root / name, ignore_errors=True)


def listed(root: Path, beginning: str = "") -> list[Path]:
    """Checkpoints whose names begin with `beginning`, oldest first. Raises OSError if the folder cannot be listed.

    Path.glob of newer Pythons would treat a folder that cannot be listed as one without checkpoints.
    """
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        if root.is_symlink():  # a link to a disk that is not mounted
            raise
        return []
    found = [name for name in names if re.fullmatch(f"{beginning}step-[0-9]{{9,}}", name)]
    return [root / name for name in sorted(found, key=step_of)]


def step_of(name: str) -> int:
    """The number of batches after which a checkpoint of that name was written."""
    return int(name.rpartition("-")[2])


def stored(root: Path) -> list[Path]:
    """Complete checkpoints, oldest first; none if the folder cannot be listed."""
    try:
        return listed(root)
    except OSError:
        return []


def load_newest(root: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]] | None:
    """Loads the newest undamaged checkpoint and sets damaged checkpoints aside.

    Returns: (state, loop, about); None if there is no checkpoint.

    Raises:
        BadInput: all checkpoints are damaged, or a checkpoint cannot be read. A checkpoint is skipped only if it is
            proven to be damaged.
    """
    try:
        found, aside = listed(root), listed(root, DAMAGED)
    except OSError as error:
        raise BadInput(f"the checkpoints in {root} cannot be listed: {reason(error)}. Nothing was changed.") from None
    for path in reversed(found):
        try:
            return load(path)
        except Damaged as error:
            print(f"warning: {error} {put_aside(path)}; trying the checkpoint before it.", file=sys.stderr, flush=True)
    if damaged := {step_of(path.name) for path in (*found, *aside)}:
        raise BadInput(
            f"all checkpoints in {root} are damaged ({len(damaged)}). Delete them to start the run from the "
            f"beginning, or start a new run in another --run-dir."
        )
    return None


def put_aside(path: Path) -> str:
    """Renames a damaged checkpoint. Returns a text on what was done."""
    aside = path.with_name(DAMAGED + path.name)
    try:
        shutil.rmtree(aside, ignore_errors=True)
        durable.rename(path, aside)
    except OSError as error:
        return f"It cannot be put aside ({error.strerror})"
    return f"Put aside as {aside.name}"


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(state, loop, about) of a checkpoint. Raises BadInput if it is damaged or cannot be read."""
    content, about = folder.load(path)
    loop = {name[len(LOOP) :]: content.pop(name) for name in list(content) if name.startswith(LOOP)}
    return dict(content), loop, about

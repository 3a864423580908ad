"""Checkpoints that the processes of one training write together: each writes what its own stages need.

    step-000000020/process0/{arrays, manifest.json}, process1/..., manifest.json

The folder of the checkpoints is one that all processes see. When all have sealed their parts, process 0 writes the
manifest above them and gives the whole its name, which is the commit. Nobody goes on to the next checkpoint before
that, so all of them learn what became of it.
"""

import errno
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fdg_jax.errors import reason
from fdg_jax.runs.checkpoints import LOOP, NotFinite, Saver, check_finite, check_refused, check_room, folder


class Others(Protocol):
    """The processes of a training (fdg_jax.training.peers)."""

    process: int

    def share(self, value: Any, name: str = "") -> list[Any]:
        """Tells all processes a value, and returns that of each."""
        ...


class SharedSaver(Saver):
    """A Saver in every process. All of them have to ask for the same checkpoints.

    Arguments:
        peers: the processes. The others are as those of `Saver`.
    """

    def __init__(
        self,
        root: Path,
        about: Mapping[str, Any],
        keep: int,
        peers: Others,
        flush: Callable[[], None] = lambda: None,
    ):
        super().__init__(root, about, keep, flush)
        self.peers = peers

    def write_now(
        self, step: int, state: Mapping[str, Any], loop: Mapping[str, Any], refused: Sequence[int] | None, best: bool
    ) -> None:
        """Writes this process's part, and makes the checkpoint whole or fails in all processes."""
        import jax

        from fdg_jax.stage import nonfinite
        from fdg_jax.storage import checkpoint

        name = f"checkpoint {self.saves}"  # the same in all processes
        self.peers.share(None, f"{name} begun by")  # so process 0 is no longer removing what another one has left
        of_loop = {LOOP + key: value for key, value in loop.items()} if self.peers.process == 0 else {}
        part: dict[str, Any] = {}

        def checked() -> tuple[int, list[tuple[int, int]]]:
            """(bytes of this process's part, (k, first refused update) of each stage in it)."""
            part.update(jax.device_get({**state, **of_loop}))
            check_finite(part, step, losses=refused is not None)
            size = sum(np.asarray(value).nbytes for value in part.values())
            return size, list(nonfinite.refused_by_stage(part).items())

        found = self.of_all(checked, f"{name} of", step)
        check_refused({k: number for _, by_stage in found for k, number in by_stage}, refused, step)
        self.of_all(lambda: self.make_ready(sum(size for size, _ in found)), f"{name} has room at", step)
        path = folder(self.root, step)
        sealed = self.of_all(lambda: checkpoint.save_part(path, self.peers.process, part), f"{name} written by", step)
        self.of_all(lambda: self.commit(step, sealed), f"{name} committed by", step)
        self.best = step if best else self.best
        if self.peers.process == 0:
            self.prune()

    def of_all(self, make: Callable[[], Any], name: str, step: int) -> list[Any]:
        """What each process makes, as JSON has it. Raises the first error of any process in all of them."""
        made = failed = None
        try:
            made = make()
        except NotFinite as error:
            failed = [str(error), error.lasting]
        except Exception as error:  # of Orbax, too, which wraps what the system says
            failed = [f"{reason(error)}, in process {self.peers.process}", None]
        found = self.peers.share([made, failed], name)
        text, lasting = next((failed for _, failed in found if failed), ["", None])
        if text and lasting is not None:
            raise NotFinite(text, step, lasting)
        if text:
            raise OSError(errno.EIO, text)
        return [made for made, _ in found]

    def make_ready(self, needed: int) -> None:
        """Before any process writes: looks for room for the parts of all, in bytes. Raises OSError."""
        self.make_root()
        self.flush()
        check_room(self.root, needed)

    def commit(self, step: int, sealed: Sequence[tuple[int, str]]) -> None:
        """In process 0, makes the parts a checkpoint."""
        from fdg_jax.storage import checkpoint

        if self.peers.process == 0:
            checkpoint.commit_parts(folder(self.root, step), sealed, self.about)

    def sweep(self) -> None:
        """Process 0 removes what a checkpoint that failed has left in all of them."""
        if self.peers.process == 0:
            super().sweep()

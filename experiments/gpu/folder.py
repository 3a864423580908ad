"""What is kept from one call to the next: a folder of results, of run directories, and of nothing that is large.

results/<part>.jsonl is there if and only if the part is finished. It is written whole or not at all, so neither a kill
nor a power cut leaves a part that is half done. results/<check>.failed.jsonl tells of a check that failed.
"""

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fdg_jax.errors import BadInput
from fdg_jax.runs import locking
from fdg_jax.storage import durable

Line = Mapping[str, Any]
CHOSEN = "chosen.json"


def lines_of(file: Path) -> list[dict[str, Any]]:
    """The lines of a file of results; [] if it is not there."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []


def write_lines(file: Path, lines: Sequence[Line]) -> None:
    """Writes a file of results, whole or not at all."""
    durable.write(file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())


class Folder:
    """path: the folder. rows: where the run directories are. scratch: emptied at the beginning and at the end."""

    def __init__(self, path: Path):
        self.path = path.resolve()
        self.results, self.rows, self.scratch = (self.path / name for name in ("results", "rows", "scratch"))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Makes the folder and keeps other processes out of it. Raises BadInput."""
        with locking.held(self.path, "--folder"):
            shutil.rmtree(self.scratch, ignore_errors=True)
            durable.make_folder(self.results)
            self.rows.mkdir(exist_ok=True)
            try:
                yield
            finally:
                shutil.rmtree(self.scratch, ignore_errors=True)

    def choose(self, chosen: Mapping[str, Any]) -> None:
        """Keeps what results depend on, and refuses to go on with something else."""
        file = self.path / CHOSEN
        if not file.is_file():
            durable.write(file, (json.dumps(chosen) + "\n").encode())
            return
        before = json.loads(file.read_text(encoding="utf-8"))
        changed = [
            f"{name} is {chosen[name]}, was {before.get(name)}" for name in chosen if before.get(name) != chosen[name]
        ]
        if changed:
            fact = f"{self.path} was begun with other choices: {'; '.join(changed)}"
            raise BadInput(f"{fact}. Give the same ones again, or another --folder.")

    def file(self, part: str, failed: bool = False) -> Path:
        return self.results / f"{part}{'.failed' if failed else ''}.jsonl"

    def done(self, part: str) -> bool:
        return self.file(part).is_file()

    def lines(self, part: str, failed: bool = False) -> list[dict[str, Any]]:
        """The results of a part; [] if there are none."""
        return lines_of(self.file(part, failed))

    def line(self, part: str) -> dict[str, Any]:
        """The result of a part that has one line; {} if it is not finished."""
        return next(iter(self.lines(part)), {})

    def finish(self, part: str, lines: Sequence[Line]) -> None:
        write_lines(self.file(part), lines)
        self.file(part, failed=True).unlink(missing_ok=True)

    def fail(self, part: str, lines: Sequence[Line]) -> None:
        write_lines(self.file(part, failed=True), lines)

    def place(self, name: str) -> Path:
        """A new path for something that is thrown away at the end."""
        self.scratch.mkdir(exist_ok=True)
        found = sum(1 for _ in self.scratch.iterdir())
        return self.scratch / f"{name}-{found}"

    def bytes(self) -> int:
        """The size of all files that stay."""
        sizes = 0
        for file in self.path.rglob("*"):
            with contextlib.suppress(OSError):
                sizes += file.stat().st_size if file.is_file() and self.scratch not in file.parents else 0
        return sizes

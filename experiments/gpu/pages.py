"""What was measured on GPUs, kept in the repository: lines of finished parts, and the page that is made of them."""

from collections.abc import Sequence
from pathlib import Path

from experiments.gpu.folder import Folder, Line, lines_of, write_lines
from experiments.harness import markdown
from fdg_jax.errors import BadInput
from fdg_jax.storage import durable

LINES, PAGE = "gpu.jsonl", "gpu.md"
WORDS = (
    "**The sides of a speed** are those of `python -m benchmarks.images_per_second`, all on one GPU: `delay-line` is "
    "FDG, K = 2, many batches a dispatch (`lax.scan`), and `bp:engine=delay-line` BP in the same way; `bp` and `fdg` "
    "are dispatched batch by batch, FDG's stages sharing the GPU; `torch` is BP in PyTorch, and `torch:graph=on` the "
    "same as one CUDA graph. Each side is a process; they take turns, and the middle of n windows is shown. "
    "Ours have XLA's deterministic kernels, PyTorch the ones that it chooses."
)


def collect(folder: Folder, results: Path) -> list[Path]:
    """Adds the finished parts of a folder to the results, or replaces those of the same device that are no newer.

    Returns: the two files that were written. Raises BadInput for a folder without a finished part.
    """
    found = [line for file in sorted(folder.results.glob("*.jsonl")) for line in lines_of(file)]
    found = [line for line in found if line.get("passed", True)]
    if not found:
        raise BadInput(f"{folder.path} holds no finished part. `python -m experiments.gpu --minutes M` makes them.")
    old, new = by_part(lines_of(results / LINES)), by_part(found)
    newer = {part: lines for part, lines in old.items() if lines[-1]["time"] > new.get(part, lines)[-1]["time"]}
    every = [line for lines in (old | new | newer).values() for line in lines]
    every.sort(key=lambda line: (line["device"], line["time"]))
    durable.make_folder(results)
    write_lines(results / LINES, every)
    durable.write(results / PAGE, page(every).encode())
    return [results / LINES, results / PAGE]


def by_part(lines: Sequence[Line]) -> dict[tuple[str, str], list[Line]]:
    """The lines of each device and part."""
    found: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        found.setdefault((line["device"], line["part"]), []).append(line)
    return found


def page(lines: Sequence[Line]) -> str:
    """Markdown: a table for every device."""
    parts = [
        "# What was measured on GPUs",
        "Written by `.venv/bin/python -m experiments.gpu collect` from what `.venv/bin/python -m experiments.gpu "
        "--minutes M` has finished. [One command for a GPU](../gpu/README.md) says what each part is.",
    ]
    for device in dict.fromkeys(line["device"] for line in lines):
        of_it = [line for line in lines if line["device"] == device]
        rows = [(line["part"], line["says"], line["time"][:10]) for line in of_it]
        parts += [f"## {device}", markdown.table(("part", "result", "date"), rows), made(of_it)]
    return "\n\n".join([*parts, WORDS]) + "\n"


def made(lines: Sequence[Line]) -> str:
    """The versions and commits of one device's lines."""
    commits = markdown.either(markdown.short(line["commit"]) for line in lines)
    versions = markdown.either(f"Python {line['python']}, JAX {line['jax']}" for line in lines)
    return f"Run with {versions}; commit {commits}."

"""The measurements on GPUs that are kept in the repository: lines of finished steps, and the page made from them."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from experiments.gpu.loop import Folder, Line, lines_of, write_lines
from experiments.gpu.settings import FULL
from experiments.harness import markdown
from fdg_jax import durable
from fdg_jax.errors import BadInput

LINES, PAGE = "gpu.jsonl", "gpu.md"
HEAD = (
    "# Measurements on GPUs",
    "Written by `.venv/bin/python -m experiments.gpu collect` from what `.venv/bin/python -m experiments.gpu "
    "--minutes M` has finished. [One command for a GPU](../gpu/README.md) says what each part is.",
)
WORDS = (
    "**The sides of a speed** are those of `python -m benchmarks.images_per_second`: processes that run in turns on "
    "one GPU. A cell is the median of n windows. `delay-line`, and every side above except PyTorch's, is FDG with K = "
    "2 and many batches per dispatch (`lax.scan`). `bp:engine=delay-line` is BP, dispatched in the same way. `bp` and "
    "`fdg` are dispatched batch by batch; FDG's stages share the GPU. `torch` is BP in PyTorch; `torch:graph=on`, "
    "called PyTorch above, is the same as one CUDA graph. Untuned sides, and all sides of `speed-` parts, use "
    "--xla_gpu_deterministic_ops. Seeds together are one program; their speed is the sum."
)


def seeds_side(n: int) -> str:
    """The name of the side in which n seeds train together."""
    return f"{n} seed{'s' * (n > 1)} together"


def collect(folder: Folder, results: Path) -> list[Path]:
    """Adds the finished steps of a folder to the results. They replace older results of the same steps and device.

    Returns: the two files that were written. Raises BadInput for a folder without a finished step.
    """
    found = [line for file in sorted(folder.results.glob("*.jsonl")) for line in lines_of(file)]
    found = [line for line in found if line.get("passed", True)]
    if not found:
        raise BadInput(f"{folder.path} holds no finished part. `python -m experiments.gpu --minutes M` makes them.")
    kept = dict[tuple[str, str], list[Line]]()
    for source in (lines_of(results / LINES), found):
        for key, lines in groupby(source, lambda line: (line["device"], line["part"])):
            new = list[Line](lines)
            if key not in kept or kept[key][-1]["time"] <= new[-1]["time"]:
                kept[key] = new
    every = sorted((line for lines in kept.values() for line in lines), key=lambda line: (line["device"], line["time"]))
    durable.make_folder(results)
    write_lines(results / LINES, every)
    durable.write(results / PAGE, page(every).encode())
    return [results / LINES, results / PAGE]


def page(lines: Sequence[Line]) -> str:
    """Markdown: a table for every device, with the versions and commits of its lines."""
    sides = [*FULL.sides, *map(seeds_side, FULL.seeds)]
    found = [line for line in lines if line["part"] in ("flags", "seeds") and "images_per_second" in line]
    speeds = {line["side"]: line for line in found}
    table = [(side, f"{speeds[side]['images_per_second']:,.0f}" if side in speeds else "not measured",
              speeds[side]["device"] if side in speeds else "") for side in sides]  # fmt: skip
    parts = [*HEAD, f"## {FULL.model}, batch {FULL.batch_size}", markdown.table(("side", "images/s", "device"), table)]
    for device in dict.fromkeys(line["device"] for line in lines):
        of_it = [line for line in lines if line["device"] == device]
        rows = [(line["part"], line["says"], line["time"][:10]) for line in of_it]
        commits = markdown.either(markdown.short(line["commit"]) for line in of_it)
        versions = markdown.either(f"Python {line['python']}, JAX {line['jax']}" for line in of_it)
        made = f"Run with {versions}; commit {commits}."
        parts += [f"## {device}", markdown.table(("part", "result", "date"), rows), made]
    return "\n\n".join([*parts, WORDS]) + "\n"

"""The effect of another machine on `corrections_images`: the table's final runs of BP and FDG are repeated on a GPU.

A GPU sums in another order than a CPU, so the runs differ from the first batches on. They are other samples of the same
training. Their errors should differ from the CPU's by no more than seeds differ.
"""

import sys
from collections.abc import Mapping

from experiments import corrections_images
from experiments.harness import markdown, result_files
from experiments.harness.run_table import RESULTS, Lines, Table
from experiments.harness.table_command import main
from experiments.tuning import arms
from experiments.tuning.arms import Part
from experiments.tuning.images import FOUR, OF_BP

PARTS = (OF_BP, FOUR._replace(arms=FOUR.arms[:1]))  # one arm each
HEADS = (
    "arm", "n on a GPU", "on a CPU: by seed", "mean", "on a GPU: by seed", "mean",
    "GPU minus CPU, by seed: mean (95% interval)", "command",
)  # fmt: skip


def of_cpu() -> Lines:
    """The lines of `corrections_images`, which have the options of the runs."""
    return result_files.entries(corrections_images.TABLE, RESULTS)


def row(gpu: Lines, cpu: Lines, part: Part) -> list[str]:
    (arm,) = part.arms
    on_cpu, on_gpu = (corrections_images.values(lines, part, arm) for lines in (cpu, gpu))
    _, mean, _, by_seed = on_cpu.cells(len(part.seeds), {})
    n, gpu_mean, _, gpu_by_seed = on_gpu.cells(len(part.seeds), {})
    *_, command = part.how_made(cpu, arm)
    return [arm.label, n, by_seed, mean, gpu_by_seed, gpu_mean, on_gpu.minus(on_cpu).told(), command]


def blocks(gpu: Lines) -> Mapping[str, str]:
    return {"table": markdown.table(HEADS, (row(gpu, of_cpu(), part) for part in PARTS))}


TABLE = Table("images_on_gpu", arms.final_runs(PARTS, of_cpu()), blocks)

if __name__ == "__main__":
    sys.exit(main(TABLE))

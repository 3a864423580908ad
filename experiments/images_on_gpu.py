"""What another machine changes in `corrections_images`: BP and FDG of its final runs, trained once more on a GPU.

A GPU sums in another order than a CPU, and from the first batches on the runs part. So these are other samples of the
same training, and their errors should be those of the CPU within what seeds differ in.
"""

import sys
from collections.abc import Sequence

from experiments import corrections_images
from experiments.harness import markdown, result_files
from experiments.harness.intervals import Interval, by_seed_paragraph, carries, interval, paired
from experiments.harness.run_table import RESULTS, Lines, Run, Table, command, shown
from experiments.harness.table_command import main
from experiments.tuning.arms import Arm, Part
from experiments.tuning.images import FOUR, OF_BP

ARMS = ((OF_BP, OF_BP.arms[0]), (FOUR, FOUR.arms[0]))
HEADS = ("arm", "n on a GPU", "on a CPU: by seed", "mean", "on a GPU: by seed", "mean", "command")
WORDS = (
    "**Equal in both:** the options, a seed's first weights, order and augmentation, full float32 products, and the "
    "cuts between the stages. **Different:** the machine, the versions, the forms of narrow convolutions, and many "
    "batches a dispatch on the GPU.",
)


def of_cpu() -> Lines:
    """The lines of `corrections_images`, from which the options of the runs are read."""
    return result_files.entries(corrections_images.TABLE, RESULTS)


def runs_of(part: Part, arm: Arm, cpu: Lines) -> tuple[Run, ...]:
    choice = part.choice(cpu, arm)
    return () if choice is None else tuple(part.final_run(arm, choice, seed) for seed in part.seeds)


def errors(lines: Lines, part: Part, arm: Arm) -> dict[int, float]:
    return dict(corrections_images.values(lines, part, arm).by_seed)


def row(gpu: Lines, cpu: Lines, part: Part, arm: Arm) -> list[str]:
    cells, found = [], [errors(lines, part, arm) for lines in (cpu, gpu)]
    for each in found:
        mean = interval(list(each.values()))
        by_seed = ", ".join(f"{seed}: {error:.2f}" for seed, error in each.items())
        cells += [by_seed, f"{mean.mean:.2f}" if mean else ""]
    line = shown(command(runs_of(part, arm, cpu)[0], None, None)).replace("--seed 0", "--seed S")
    return [arm.label, str(len(found[1]) or ""), *cells, f"`{line}`"]


def answer(found: Sequence[Interval | None]) -> str:
    """Whether a difference is seen, and how large one would have to be; "" without two seeds."""
    known = [each for each in found if each and each.deviation is not None]
    if not known:
        return ""
    seen = sum(not each.low <= 0 <= each.high for each in known)
    half = max((each.high - each.low) / 2 for each in known)
    told = f"a difference is seen in {seen} of {len(known)} arms" if seen else "no difference is seen"
    return f"**The answer:** {told}; with so few seeds one below {half:.1f} points need not show."


def document(gpu: Lines) -> str:
    cpu = of_cpu()
    differences = [paired(errors(gpu, part, arm), errors(cpu, part, arm)) for part, arm in ARMS]
    said = [
        carries(f"{arm.label}, GPU minus CPU", interval(list(found.values())))
        for (_, arm), found in zip(ARMS, differences, strict=True)
    ]
    parts = [
        "**The question.** Does it matter for [the table of corrections](corrections_images.md) that some of its runs "
        f"were made on a GPU? {len(gpu)} of {len(TABLE.runs)} runs are finished. Test error in percent.",
        markdown.table(HEADS, (row(gpu, cpu, part, arm) for part, arm in ARMS)),
        by_seed_paragraph(said),
        answer([interval(list(found.values())) for found in differences]),
        f"**On the GPU.** {markdown.origin(gpu)}",
        corrections_images.repeat_on_gpu(gpu),
        *WORDS,
    ]
    return "\n\n".join(part for part in parts if part)


TABLE = Table(
    name="images_on_gpu",
    summary="BP and FDG of corrections_images once more on a GPU: what another machine changes",
    title="BP and FDG of the table of corrections, on a CPU and on a GPU",
    runs=tuple(run for part, arm in ARMS for run in runs_of(part, arm, of_cpu())),
    document=document,
)

if __name__ == "__main__":
    sys.exit(main(TABLE))

"""What another machine changes in `corrections_images`: BP and FDG of its final runs, trained once more on a GPU.

A GPU sums in another order than a CPU, and from the first batches on the runs part. So these are other samples of the
same training, and their errors should be those of the CPU within what seeds differ in.
"""

import sys
from collections.abc import Sequence

from experiments import corrections_images
from experiments.harness import markdown, result_files
from experiments.harness.intervals import Interval, by_seed_paragraph, carries, interval, paired
from experiments.harness.run_table import RESULTS, Lines, Table
from experiments.harness.table_command import main
from experiments.tuning import arms
from experiments.tuning.arms import Part
from experiments.tuning.images import FOUR, OF_BP
from experiments.tuning.verdicts import Values

PARTS = (OF_BP, FOUR._replace(arms=FOUR.arms[:1]))  # one arm each
HEADS = ("arm", "n on a GPU", "on a CPU: by seed", "mean", "on a GPU: by seed", "mean", "command")
WORDS = (
    "**Equal in both:** the options, a seed's first weights, order and augmentation, full float32 products, and the "
    "cuts between the stages. **Different:** the machine, the versions, the forms of narrow convolutions, and many "
    "batches a dispatch on the GPU.",
)


def of_cpu() -> Lines:
    """The lines of `corrections_images`, from which the options of the runs are read."""
    return result_files.entries(corrections_images.TABLE, RESULTS)


def errors(lines: Lines, part: Part) -> Values:
    return corrections_images.values(lines, part, part.arms[0])


def row(gpu: Lines, cpu: Lines, part: Part) -> list[str]:
    _, mean, _, by_seed = arms.measured(part, errors(cpu, part), digits=2)
    n, gpu_mean, _, gpu_by_seed = arms.measured(part, errors(gpu, part), digits=2)
    *_, line = arms.how_made(part, cpu, part.arms[0])
    return [part.arms[0].label, n, by_seed, mean, gpu_by_seed, gpu_mean, line]


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
    labels = [part.arms[0].label for part in PARTS]
    found = [interval(list(paired(errors(gpu, part).by_seed, errors(cpu, part).by_seed).values())) for part in PARTS]
    parts = [
        "**The question.** Does it matter for [the table of corrections](corrections_images.md) that some of its runs "
        f"were made on a GPU? {len(gpu)} of {len(TABLE.runs)} runs are finished. Test error in percent.",
        markdown.table(HEADS, (row(gpu, cpu, part) for part in PARTS)),
        by_seed_paragraph([carries(f"{label}, GPU minus CPU", one) for label, one in zip(labels, found, strict=True)]),
        answer(found),
        f"**On the GPU.** {markdown.origin(gpu)}",
        corrections_images.repeat_on_gpu(gpu),
        *WORDS,
    ]
    return "\n\n".join(part for part in parts if part)


TABLE = Table(
    name="images_on_gpu",
    summary="BP and FDG of corrections_images once more on a GPU: what another machine changes",
    title="BP and FDG of the table of corrections, on a CPU and on a GPU",
    runs=arms.final_runs(PARTS, of_cpu()),
    document=document,
)

if __name__ == "__main__":
    sys.exit(main(TABLE))

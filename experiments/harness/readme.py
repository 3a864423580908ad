"""Writes the README's two tables of results (between `<!-- NAME -->` and `<!-- end -->`) and docs/results.md anew.

    .venv/bin/python -m experiments.harness.readme
"""

import re
from collections.abc import Mapping

from experiments import corrections_images, corrections_text, decisive
from experiments.decision.rules import BP, SCALED, SHRUNK, STALE
from experiments.harness import markdown, result_files
from experiments.harness.intervals import MIN_SEEDS, Seeds
from experiments.harness.run_table import RESULTS, ROOT, Lines
from experiments.tuning import images, texts, tokens

README, PAGE = ROOT / "README.md", ROOT / "docs" / "results.md"
NOT_RUN = "not run"
# Row -> (its arm on images, its arm on text); "": no arm.
ROWS = {
    "FDG": ("fdg", "fdg"),
    "FDG, `--beta 0.3`": ("beta", ""),
    "PipeDream, half as stale: `--method pipedream`": ("", "ddg"),
    "`--correct rate`": ("rate", "rate"),
    "`--correct anticipate` (spike compensation)": ("spike", "spike"),
    "`--optimizer nadam`": ("nadam", "nadam"),
    "`--optimizer rotation`": ("rotation", "rotation"),
    "`--optimizer muon`": ("", "fdg-muon"),
    "`--optimizer muon --correct anticipate --prediction linear`": ("", "linear-muon"),
    "the row above, on PipeDream's schedule": ("", "linear-ddg-muon"),
}
# The rows that the README has.
FEW = (
    "FDG", "`--correct rate`", "`--correct anticipate` (spike compensation)", "`--optimizer nadam`",
    "`--optimizer rotation`", "`--optimizer muon --correct anticipate --prediction linear`",
    "the row above, on PipeDream's schedule",
)  # fmt: skip


def told(difference: Seeds, digits: int) -> str:
    """A mean difference, with its interval if there are enough seeds."""
    return difference.told(digits) if len(difference.by_seed) >= MIN_SEEDS else NOT_RUN


def length(lines: Lines) -> str:
    """Test errors of BP and FDG by the length of a run."""
    bp = {part.epochs: decisive.seeds(lines, part, BP) for part in decisive.SMALL}
    rows = [["BP: nothing is late", *(f"{own.mean:.2f}" for own in bp.values())]]
    for arm in (STALE, SHRUNK):
        minus = [decisive.seeds(lines, part, arm).minus(bp[part.epochs]) for part in decisive.SMALL]
        rows.append([f"{decisive.LABELS[arm]}, minus BP", *(told(each, 2) for each in minus)])
    return markdown.table(("test error, %", *(f"{epochs} epochs" for epochs in bp)), rows)


def on_images(lines: Lines, name: str) -> str:
    """An arm on images minus BP with the same optimizer, in points."""
    own_bp = images.OWN_BP.get(name)
    bp = corrections_images.of_name(lines, images.FOUR, "bp")
    bp = corrections_images.values(lines, images.OWN_BPS, own_bp) if own_bp else bp
    return told(corrections_images.of_name(lines, images.FOUR, name).minus(bp), 2)


def on_text(lines: Lines, name: str) -> str:
    """An arm on text minus BP with the same optimizer (NAdam: AdamW), in nats per byte."""
    part, arm = tokens.named(texts.EIGHT, name)
    return told(tokens.values(lines, part, arm).minus(tokens.of_name(lines, part, arm.reference)), 3)


def corrections(of_images: Lines, of_text: Lines, arms: Mapping[str, tuple[str, str]]) -> str:
    """The remaining cost of late gradients with each correction and optimizer."""
    heads = ("row minus BP with the same optimizer", "images: test error, points", "text: test loss, nats per byte")
    rows = (
        [row, on_images(of_images, a) if a else NOT_RUN, on_text(of_text, b) if b else NOT_RUN]
        for row, (a, b) in arms.items()
    )
    return markdown.table(heads, rows)


def over_bp(side: str) -> str:
    """A side's images/s on two cores, divided by BP's on one core, for each network of the benchmark's page."""
    page = (ROOT / "benchmarks" / "results" / "several_processes.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith(f"| `{side}` | 2")]
    return " and ".join(cells[6].partition(" ")[0] for cells in rows)


def blocks() -> dict[str, str]:
    """The tables and figures by name."""
    lines, of_images, of_text = (
        result_files.entries(each.TABLE, RESULTS) for each in (decisive, corrections_images, corrections_text)
    )
    short, long = decisive.SMALL[0], decisive.SMALL[-1]

    def minus_bp(part: decisive.Part, arm: str) -> str:
        return told(decisive.seeds(lines, part, arm).minus(decisive.seeds(lines, part, BP)), 2)

    return {
        "length": length(lines),
        "corrections": corrections(of_images, of_text, ROWS),
        "few": corrections(of_images, of_text, {row: ROWS[row] for row in FEW}),
        "fdg_short": minus_bp(short, STALE),
        "fdg_long": minus_bp(long, STALE),
        "shrunk_long": minus_bp(long, SHRUNK),
        "control_long": minus_bp(long, SCALED),
        "verdict": decisive.verdicts(lines)["overall"],
        "spike_images": on_images(of_images, "spike"),
        "fdg_images": on_images(of_images, "fdg"),
        "fdg_text": on_text(of_text, "fdg"),
        "muon_text": on_text(of_text, "fdg-muon"),
        "muon_linear_text": on_text(of_text, "linear-muon"),
        "muon_linear_ddg_text": on_text(of_text, "linear-ddg-muon"),
        "goal": corrections_text.goal(of_text),
        "fdg_speed": over_bp("fdg"),
        "ddp_speed": over_bp("torch-ddp"),
        "pipe_speed": over_bp("torch-pipeline"),
    }


def readme(found: Mapping[str, str]) -> str:
    """The README with its two tables filled in from the results."""
    text = README.read_text(encoding="utf-8")
    for name in ("length", "few"):
        marked = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text = re.sub(marked, lambda match, name=name: f"{match[1]}{found[name]}\n{match[2]}", text, flags=re.S)
    return text


if __name__ == "__main__":
    made = blocks()
    README.write_text(readme(made), encoding="utf-8")
    PAGE.write_text(markdown.filled("results", made), encoding="utf-8")

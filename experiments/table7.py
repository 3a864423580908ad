"""Table 7: images per second and the speedup over BP, with one GPU per stage for K = 2, 3 and 4.

This table has no training runs: `benchmarks.images_per_second` measures speeds and adds its lines to
benchmarks/results. The speedups that the paper prints are compared with those that follow from its images per second.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.paper_speeds import SPEEDS, Speed
from benchmarks.harness.report import DISTURBED_PERCENT
from experiments.harness import markdown
from experiments.harness.run_table import PYTHON, ROOT, Lines, Table
from experiments.harness.table_command import main
from fdg_jax.errors import BadInput

# FDG's speedup according to the text of the section.
TEXT = {
    ("WRN-28-10", 2): 1.88, ("WRN-28-10", 3): 2.72, ("WRN-28-10", 4): 3.20,
    ("ResNet-101", 2): 1.68, ("ResNet-101", 3): 2.1, ("ResNet-101", 4): 2.3,
}  # fmt: skip
MODELS = {"WRN-28-10": "wrn28_10_fdg"}  # networks for images of CIFAR's size, as in the benchmark
DATA = {"WRN-28-10": "CIFAR-10", "ResNet-101": "ImageNet"}
RESULTS = ROOT / "benchmarks" / "results"
HEADS = (
    "network (data)", "K", "method", "paper: images/s", "paper: GPUs busy %", "paper: speedup over BP",
    "ours: images/s", "ours: over BP on one", "n (windows)", "command",
)  # fmt: skip


BP = {speed.network: speed.images_per_second for speed in SPEEDS if speed.method == "BP"}


def speedup(speed: Speed) -> str:
    """The printed speedup; in brackets other values, from the text and from the table's own images per second."""
    if not speed.speedup:
        return ""
    text = TEXT.get((speed.network, speed.K)) if speed.method == "FDG" else None
    ratio = float(speed.images_per_second) / float(BP[speed.network])
    rest = [f"text: {text:g}"] if text is not None and text != float(speed.speedup) else []
    if f"{ratio:.2f}" != speed.speedup:
        rest.append(f"{speed.images_per_second} / {BP[speed.network]} = {ratio:.2f}")
    return f"{speed.speedup} ({'; '.join(rest)})" if rest else speed.speedup


def measured(folder: Path) -> dict[tuple[str, int, str], Mapping[str, Any]]:
    """{(model, K, method): the benchmark's newest line that compares with BP}; empty if nothing was measured."""
    found = {}
    for file in sorted(folder.glob("*.jsonl")):
        try:
            lines = [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()]
            ours = [line for line in lines if line["benchmark"] == "images_per_second" and line["baseline"] == "bp"]
            found |= {(line["model"], line["K"], line["method"]): line for line in ours if plain(line)}
        except (ValueError, TypeError, KeyError) as error:
            raise BadInput(f"{file} cannot be read ({error!r}). Correct or delete that line.") from None
    return found


def plain(line: Mapping[str, Any]) -> bool:
    """Whether a line was measured as by `command`: one device per stage, the authors' cut, a quiet machine."""
    sides, cut = ("bp", "ddg", "fr", "dgl", "fdg"), line["K"] == 1 or line["split"] == "paper"
    as_asked = line["side"] in sides and line["cores"] == line["K"] and line["batch_size"] == 128 and not line["xla"]
    return as_asked and cut and line["others_percent"] <= DISTURBED_PERCENT


def command(speed: Speed) -> str:
    """The command that measures a cell; only for CIFAR, since the benchmark's images have CIFAR's size."""
    if speed.network not in MODELS:
        return ""
    sides = "bp" if speed.method == "BP" else f"bp {speed.method.lower()}"
    flags = f"--model {MODELS[speed.network]} --batch-size 128 --K {speed.K} --split paper --sides {sides}"
    return f"`{PYTHON} -m benchmarks.images_per_second {flags}`"


def row(speed: Speed, found: Mapping[tuple[str, int, str], Mapping[str, Any]]) -> list[str]:
    line = found.get((MODELS.get(speed.network, ""), speed.K, speed.method.lower()))
    ours = [f"{line['images_per_second']:.1f}", f"{line['ratio']:.2f}", str(line["windows"])] if line else [""] * 3
    about = [f"{speed.network} ({DATA[speed.network]})", str(speed.K), speed.method]
    return [*about, speed.images_per_second, speed.busy.replace(",", ", "), speedup(speed), *ours, command(speed)]


def blocks(lines: Lines) -> Mapping[str, str]:
    found = measured(RESULTS)
    used = [line for (model, _, _), line in found.items() if model in MODELS.values()]
    where = markdown.either(f"{line['cpu']}, {line['machine_cores']} cores" for line in used)
    return {"table": markdown.table(HEADS, (row(speed, found) for speed in SPEEDS)), "machines": where or "(none yet)"}


TABLE = Table("table7", (), blocks)

if __name__ == "__main__":
    sys.exit(main(TABLE))

"""What the README shows is what there is, and the schedule that docs/explorer.md shows in its stead."""

import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

from experiments import corrections_images
from experiments.harness import result_files
from experiments.harness.run_table import RESULTS
from experiments.tuning import images, verdicts

ROOT = pathlib.Path(__file__).parent.parent
README, EXPLORER = (ROOT / "README.md").read_text(), (ROOT / "docs" / "explorer.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def run(program: str) -> str:
    settings = {**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"}  # most of the time is compiling
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, env=settings, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_host_loop_shown_is_the_host_loop():
    shown = next(block for block in blocks("python") if block.startswith("takes, gives"))
    assert textwrap.indent(shown, " " * 8) in (ROOT / "fdg_jax/engine/host_loop.py").read_text()


def test_the_method_shown_is_a_method():
    shown = next(block for block in blocks("python") if "METHOD = " in block)
    ticks = "print([METHOD.schedule(3).tick(t) == methods.find('ddg').schedule(3).tick(t) for t in range(1, 12)])"
    assert run(f"{shown}\nfrom fdg_jax import methods\n{ticks}").strip() == str([True] * 11)


def test_the_correction_shown_divides_updates_by_the_root_of_the_staleness():
    shown = next(block for block in blocks("python") if "CORRECTION = " in block)
    used = "c = CORRECTION.make(Late(1, 4, 4)).around(optax.sgd(1.0))\nprint(float(c.update(3.0, c.init(3.0))[0]))"
    assert run(f"{shown}\n{used}").strip() == "-1.5"


def test_the_program_shown_runs_and_learns():
    shown = next(block for block in blocks("python") if "fdg_jax.Pipeline(" in block)
    losses = (
        "found = pipeline.losses(wait=True)\nprint([one.step for one in found] == [*range(1, 65)], pipeline.losses())"
    )
    out = run(shown + losses)
    error, staleness, updates = re.search(r"error_percent=([\d.]+).*(\[.*?\]) (\[.*?\])", out).groups()
    assert float(error) < 10 and staleness == "[1, 0]" and updates == "[64, 64]"
    assert "`pipeline.losses()` lists those of all batches finished since its last call" in README
    assert out.splitlines()[-1] == "True []"


@pytest.mark.parametrize("K", [1, 2, 3, 5])
def test_the_staleness_of_a_stage_is_what_the_readme_says(K):
    from fdg_jax.methods.fdg import fdg

    assert "2(K-k)-1 times for k < K and 0 times for k = K" in README
    assert fdg(K).staleness == tuple(2 * (K - k) - 1 if k < K else 0 for k in range(1, K + 1))


def test_the_schedule_shown_as_text_is_what_the_command_draws():
    from fdg_jax.methods.fdg import fdg
    from fdg_jax.schedule.drawing import render

    for line in render(fdg(3), 7).splitlines():
        assert line in EXPLORER


def test_every_module_that_the_readme_runs_can_be_run():
    modules = set(re.findall(r"python -m ((?:fdg_jax|benchmarks|experiments)[\w.]*)", README))
    assert {"benchmarks.timeline", "benchmarks.simulate", "fdg_jax"} <= modules
    for module in modules:
        file = ROOT / module.replace(".", "/")
        assert file.with_suffix(".py").exists() or (file / "__main__.py").exists(), module


def test_every_file_the_readme_links_to_exists():
    for target in re.findall(r"\]\((?!https:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_what_came_out_is_what_the_decisive_experiments_page_says():
    page = (ROOT / "experiments/results/decisive.md").read_text()
    row = r"^\| ResNet-8, 16x16 \| (\d+) \| [\d,]+ \| (.*?) \| 5 \| ([\d.]+) \| .*? \| .*? \| (.*?) ?\|"  # all 5 seeds
    found = {(arm, epochs): (error, minus_bp) for epochs, arm, error, minus_bp in re.findall(row, page, re.M)}
    (header,) = re.findall(r"^\| test error %, .*? \| (\d+) epochs \| (\d+) epochs \| (\d+) epochs \|$", README, re.M)
    shown = {}
    for arm, *cells in re.findall(r"^\| ((?:BP|FDG).*?) \| (.*?) ?\| (.*?) ?\| (.*?) ?\|$", README, re.M):
        for epochs, cell in zip(header, cells, strict=True):
            if cell:
                error, _, minus_bp = cell.partition("; ")
                shown[arm, epochs] = error, minus_bp
    assert shown == found
    assert len(shown) == 13
    (verdict,) = re.findall(r"by the registered rules: (\w+)", page)
    assert f"the verdict on the paper's claim is *{verdict}*" in " ".join(README.split())


ARMS = {  # a row of the README -> (its arm on the page of images, its arm and optimizer on that of text)
    "BP: nothing is late": ("BP, SGD", ""),
    "FDG": ("FDG, β = 1", "FDG, adamw"),
    "FDG, `--beta 0.3`": ("FDG, β", ""),
    "PipeDream (`--method pipedream`), half as stale": ("", "DDG, which is PipeDream (half as stale), adamw"),
    "`--correct rate`: updates divided by their staleness": (
        "rates by staleness, or PipeMare's T1",
        "rates by staleness, adamw",
    ),
    "`--correct anticipate --prediction last`: forward at weights one update ahead": (
        "anticipate, last update",
        "anticipate, last update, adamw",
    ),
    "`--correct anticipate --prediction linear`: as many updates ahead as it is late": (
        "anticipate, linear",
        "anticipate, linear, adamw",
    ),
    "`--correct anticipate`: spike compensation, as far ahead as momentum alone would go": (
        "anticipate, spike compensation",
        "anticipate, spike, adamw",
    ),
    "`--optimizer nadam`: asynchronous Nesterov": ("asynchronous Nesterov (NAdam)",) * 2,
    "`--optimizer muon`": ("", "FDG, muon"),
    "`--optimizer muon --correct rate`": ("", "rates by staleness, muon"),
    "`--optimizer muon --correct anticipate --prediction linear`": ("", "anticipate, linear, muon"),
    "`--optimizer rotation`: basis rotation": ("basis rotation",) * 2,
    "`--optimizer rotation --correct anticipate --prediction linear`": ("", "basis rotation, anticipate, linear"),
    "the same with `--method pipedream`": ("", "basis rotation, DDG, anticipate, linear"),
    "`--method pipedream --optimizer muon --correct anticipate --prediction linear`": (
        "",
        "DDG, anticipate, linear, muon",
    ),
}
OWN_BP = (("asynchronous Nesterov (NAdam)", "BP, NAdam"), ("basis rotation", "BP, basis rotation"))


def rows_below(header: str) -> list[list[str]]:
    """The cells of the README's table whose header begins so."""
    (table,) = re.findall(rf"^\| {re.escape(header)}.*\n\|[-|]+\n((?:\|.*\n)+)", README, re.M)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_what_helps_is_what_the_two_pages_of_corrections_say():
    images = (ROOT / "experiments/results/corrections_images.md").read_text()
    text = (ROOT / "experiments/results/corrections_text.md").read_text()
    errors = re.findall(r"^\| (?:any|4) \| (.*?) \| 3 \| ([\d.]+) \| .*? \| .*? \|.*?\| (-?\d+%)? ?\|", images, re.M)
    shown_images = {arm: f"{error}, {closed}" if closed else error for arm, error, closed in errors}
    mean = {arm: error for arm, error, _ in errors}
    shown_images |= {arm: f"{mean[arm]}; BP with it {mean[own]}" for arm, own in OWN_BP if {arm, own} <= mean.keys()}
    above = r"^\| transformer8x64 \| 8 \| (.*?) \| 3 \| [\d.]+ \| [\d.]+ \| .*? \| \+([\d.]+) \("
    shown_text = {**dict(re.findall(above, text, re.M)), "": ""}
    rows = rows_below("three seeds, mean")
    assert [name for name, *_ in rows] == list(ARMS)
    for name, on_images, on_text in rows:
        arm, of_text = ARMS[name]
        assert not arm or f" | {arm} | " in images
        assert on_images == shown_images.get(arm, "")  # blank until it has three seeds
        assert on_text == ("0" if arm == "BP, SGD" else shown_text.get(of_text, ""))


def test_at_two_stages_no_correction_with_sgd_errs_surely_less_than_fdg():
    lines = result_files.entries(corrections_images.TABLE, RESULTS)
    errors = {
        arm.name: corrections_images.values(lines, images.TWO, arm)
        for arm in images.TWO.arms
        if arm.name not in images.OWN_BP
    }
    assert len(errors) == 10 and all(len(found.by_seed) == 3 for found in errors.values())
    stale = errors.pop("fdg")
    found = {name: verdicts.less(own, stale, corrections_images.POINTS).word for name, own in errors.items()}
    assert verdicts.HOLDS not in found.values(), found
    less = {name: own.minus(stale).interval() for name, own in errors.items()}
    assert [name for name, minus in less.items() if minus.low > 0] == ["gap-aware"]

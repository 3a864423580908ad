"""The programs that the README and the pages show are run where the pages say that they go."""

import itertools
import re
import runpy
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from cifar_processes import printed
from small import batches, pipeline

from experiments.harness import markdown, readme
from fdg_jax import methods, transport
from fdg_jax.engine import host_engine
from fdg_jax.schedule.running import validate

ROOT = Path(__file__).resolve().parent.parent


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of every block of a page."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.S | re.M)


def shown(page: str, word: str) -> str:
    """The one program of a page that has that word."""
    (found,) = [text for language, text in blocks(page) if language == "python" and word in text]
    return found


# The README


def test_the_method_shown_works(tmp_path):
    (tmp_path / "shown.py").write_text(shown("README.md", "METHOD = "))
    names = runpy.run_path(str(tmp_path / "shown.py"))
    assert all(names["METHOD"].schedule(3).tick(t) == methods.find("ddg").schedule(3).tick(t) for t in range(1, 12))


@pytest.mark.slow
def test_the_program_shown_runs_and_learns():
    out = printed("-c", shown("README.md", "fdg_jax.Pipeline("))
    error, staleness, updates = re.search(r"error_percent=([\d.]+).*(\[.*?\]) (\[.*?\])", out).groups()
    assert float(error) < 10 and staleness == "[1, 0]" and updates == "[64, 64]"


@pytest.mark.slow
def test_the_loop_shown_is_late_and_learns():
    loss, *stages = printed("-c", shown("docs/late.md", "late.optimizer(")).splitlines()
    assert float(loss) < 0.5 and [re.search(r"staleness=(\d)", line)[1] for line in stages] == ["3", "1", "0"]


def test_rendering_the_results_changes_nothing():
    found = readme.blocks()
    assert readme.readme(found) == readme.README.read_text()
    assert markdown.filled("results", found) == readme.PAGE.read_text()


# Pages


@pytest.mark.slow
def test_the_pieces_of_the_tutorial_are_a_program_that_prints_what_it_says(tmp_path):
    page, errors = blocks("docs/tutorial.md"), re.compile(r"([\d.]+)% errors")
    (tmp_path / "tutorial.py").write_text("\n\n".join(text for language, text in page if language == "python"))
    out = printed("tutorial.py", cwd=tmp_path)
    pairs = itertools.pairwise(page)
    said = "".join(text for (before, _), (language, text) in pairs if (before, language) == ("python", ""))
    assert errors.sub("", out) == errors.sub("", said)
    pairs = [*zip(map(float, errors.findall(out)), map(float, errors.findall(said)), strict=True)]
    assert len(pairs) == 5 and all(abs(found - told) < 6 for found, told in pairs)  # points, on any processor


RECIPES = [text for language, text in blocks("docs/from-your-network.md") if language == "python"]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, len(RECIPES)))
def test_the_recipes_train(number, tmp_path):
    for library in ("haiku", "equinox"):
        if f"import {library}" in RECIPES[number]:
            pytest.importorskip(library)
    (tmp_path / "recipe.py").write_text(f"{RECIPES[0]}\n{RECIPES[number]}")
    runpy.run_path(str(tmp_path / "recipe.py"))


@pytest.mark.slow
def test_the_program_for_several_processes_trains_in_two_and_its_state_goes_on_in_one(tmp_path):
    file, of_run = ROOT / "examples" / "several_processes.py", ("--K", "2", "--run-dir", str(tmp_path / "run"))
    out = printed("-m", "fdg_jax.launch", "--processes", "2", "--", str(file), *of_run)
    lines = [line.removeprefix("[0] ") for line in out.splitlines() if line.startswith("[0] ")]
    assert "[1]" not in out and len(lines) == 1
    found = re.search(r"error_percent=([\d.]+).*\) \[1, 0\] [0-9a-f]{64}$", lines[0])
    assert found and float(found[1]) < 10
    assert printed(str(file), *of_run, "--resume", "auto").splitlines() == lines


# docs/extending.md


@pytest.fixture
def put(tmp_path, monkeypatch):
    """put(package, name, text): makes the text the file `name`.py of a folder that is searched as the package is."""

    def write(package, name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
        monkeypatch.delitem(sys.modules, f"{package.__name__}.{name}", raising=False)

    return write


def test_the_schedule_shown_is_the_one_of_ddg(put):
    put(methods, "shown_ddg", shown("docs/extending.md", "def forward_locked"))
    shown_ddg = import_module("fdg_jax.methods.shown_ddg").METHOD
    for K in (1, 2, 5):
        own, ours = shown_ddg.schedule(K), methods.find("ddg").schedule(K)
        validate(own, 3 * K)
        assert [own.tick(t, None) for t in range(1, 20)] == [ours.tick(t, None) for t in range(1, 20)]
        assert (own.delays, own.ticks(7)) == (ours.delays, ours.ticks(7))


@pytest.mark.slow
def test_the_transport_shown_rounds_what_goes_between_stages_and_nothing_else(put, monkeypatch):
    put(transport, "in_bfloat16", shown("docs/extending.md", "class InBfloat16"))

    def losses():
        seen = batches(6)
        made = pipeline(2, seen[0])
        for batch in seen:
            made.step(batch)
        return np.array([each.loss for each in made.losses(wait=True)])

    exact = losses()
    monkeypatch.setattr(host_engine, "InProcess", import_module("fdg_jax.transport.in_bfloat16").InBfloat16)
    rounded = losses()
    np.testing.assert_allclose(rounded, exact, rtol=0.02)  # 8 bits of mantissa are 0.4% of every activation
    assert (rounded != exact).any()

"""Runs beside one another: the numbers are theirs, and seeds are grouped."""

import json
from pathlib import Path

import made_up_runs
import pytest

from experiments.harness.run_table import Run
from fdg_jax import compare
from fdg_jax.errors import BadInput
from fdg_jax.report import comparison, results

RESULTS = Path(__file__).resolve().parent.parent / "experiments" / "results"


def made(folder, name="a", error: float | None = 31.25, **flags):
    run = Run(name, {"method": "fdg", "K": 2, "seed": 0, "beta": 1.0, **flags})
    return made_up_runs.make(folder, run, error, note="")


def compared(*paths):
    return comparison.compare([run for path in paths for run in results.read(path)])


def test_runs_that_differ_in_their_seed_are_one_row_with_median_and_range(tmp_path):
    paths = [made(tmp_path, f"s{i}", error, seed=i) for i, error in enumerate((30.0, 32.0, 31.0))]
    found = compared(*paths, made(tmp_path, "bp", 40.0, method="bp", K=1))
    assert [group.name for group in found.groups] == ["fdg, K=2", "bp, K=1"]
    assert [row[1] for row in found.rows] == ["3", "1"]
    column = found.heads.index("test error % at the end")
    assert [row[column] for row in found.rows] == ["31.00 (30.00 to 32.00)", "40.00"]
    assert found.groups[1].differs == {"method": "bp", "K": 1} and found.common["momentum"] == 0.9


def test_a_row_is_compared_with_the_first_one_seed_by_seed(tmp_path):
    first = [made(tmp_path, f"a{i}", error, seed=i) for i, error in enumerate((30.0, 32.0, 31.0))]
    others = [made(tmp_path, f"b{i}", error, seed=i, beta=0.5) for i, error in enumerate((31.0, 34.0, 34.0))]
    found = compared(*first, *others, made(tmp_path, "bp", 40.0, method="bp", K=1))
    # 1, 2, 3 points: deviation 1, 4.30265 / sqrt(3) = 2.48
    name = "Against fdg, K=2: fdg, K=2, beta=0.5 has 1.00 times the images/s"
    said = f"{name} and +2.00 (-0.48 to +4.48) points of test error; bp, K=1 has 1.00 times the images/s"
    assert found.verdict == f"{said} and +10.00 points of test error (1 seed)."
    assert comparison.text(found).endswith(found.verdict)


@pytest.mark.parametrize("other", [{"steps": 100}, {"text": "code.py"}])
def test_runs_of_another_length_or_text_are_another_row(other, tmp_path):
    found = compared(made(tmp_path, "a"), made(tmp_path, "b", 40.0, seed=1, **other))
    assert [row[1] for row in found.rows] == ["1", "1"] and found.groups[1].differs == other


def test_an_unfinished_run_is_compared_by_what_is_known(tmp_path):
    found = compared(made(tmp_path, "a", None), made(tmp_path, "b", beta=0.5))
    assert [row[1] for row in found.rows] == ["1, 1 unfinished", "1"]
    last = made_up_runs.events(5)[-1]["test_error_percent"]
    assert found.rows[0][2] == f"{last:.2f}" and found.rows[0][found.heads.index("images/s")] == "-"


def test_a_results_file_gives_the_numbers_of_its_lines(tmp_path):
    lines_of_file = [json.loads(line) for line in (RESULTS / "paper-3-epochs.jsonl").read_text().splitlines()]
    found = compared(RESULTS / "paper-3-epochs.jsonl")
    assert sum(len(group.runs) for group in found.groups) == len(lines_of_file)
    for group in found.groups:
        differs = {name: group.differs[name] for name in ("method", "K", "beta")}
        errors = [line["test_error_percent"] for line in lines_of_file
                  if {name: line["options"][name] for name in differs} == differs]  # fmt: skip
        assert [run.final["test_error_percent"] for run in group.runs] == errors and len(errors) == 3
        for run in group.runs:
            of_run = next(line for line in lines_of_file if line["name"] == run.name)
            assert [point.value for point in run.losses] == of_run["training_curve"]["train_loss"]
            last = run.errors[-1]
            assert (last.batches, last.examples, last.value) == (1173, 150000, of_run["test_error_percent"])
            assert last.seconds == pytest.approx(150_000 / of_run["images_per_second"])


def test_time_goes_by_the_speeds_of_the_lines_and_ends_by_the_speed_of_the_run():
    clock = results.clock_of([(10, None), (20, 10.0), (30, 5.0)], 1, 20.0)  # 0.5, 1 and 2 s, scaled to 1.5 s in all
    assert [clock(n) * 7 / 3 for n in (0, 10, 20, 25, 30)] == pytest.approx([0, 0.5, 1.5, 2.5, 3.5])
    assert clock(50) == pytest.approx(1.5 + 1)
    assert results.clock_of([(10, None)], 1, None)(5) is None


@pytest.mark.parametrize(("content", "said"), [
    ("", "is empty"),
    *((line, "line 1 is not the result") for line in ("{}", "nonsense", "[1]", '{"options": {}, "name": "x"}')),
])  # fmt: skip
def test_what_is_no_results_file_is_refused(tmp_path, content, said):
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(BadInput, match=said):
        results.read(tmp_path / "x.jsonl")


def test_the_command_prints_writes_and_refuses(tmp_path, capsys):
    path = made(tmp_path, "a")
    assert compare.main([str(path), "--html", str(tmp_path / "x.html")]) == 0
    out = capsys.readouterr().out
    assert "31.25" in out and out.splitlines()[0] == str(tmp_path / "x.html")
    assert (tmp_path / "x.html").read_text().startswith("<!DOCTYPE html>")
    for words, said in (
        ([str(tmp_path)], "has no config.json, so it is no run directory"),
        ([str(tmp_path / "nowhere")], "is neither a directory nor a *.jsonl file"),
        ([str(path), "--html", str(tmp_path / "no" / "x.html")], "cannot be written: No such file"),
        (["--html", str(tmp_path / "a.jsonl"), str(path)], "a.jsonl is not a name that ends in .html"),
    ):
        assert compare.main(words) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "a.jsonl").exists()

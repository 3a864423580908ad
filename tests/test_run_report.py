"""The report of a run: one page with its curves, also of a run that has not ended."""

import shlex

import numpy as np
import pytest
from stored_runs import stored_run

from fdg_jax import cli, methods
from fdg_jax.config import FIELDS, Config
from fdg_jax.recipe import paper_schedule
from fdg_jax.report import report_page, results
from fdg_jax.runs import run_files
from fdg_jax.training.job import learning_rates
from fdg_jax.training.record import Record


def test_a_report_is_one_page_with_its_curves_in_it_also_of_an_unfinished_run(tmp_path):
    stored_run(tmp_path, model="resnet8", K=2, beta=0.5)
    config = run_files.read_json(tmp_path / "config.json")
    resumed = [{"batch": 7}, {"batch": 9}, {"batch": 0}]
    changed = {"devices": ["cpu:0", "cpu:1"], "note": "digits <not> CIFAR", "resumed": resumed}
    run_files.write_json(tmp_path / "config.json", {**config, **changed})
    report_page.write(tmp_path)
    assert "Training loss over epochs: nothing measured." in (tmp_path / "report.html").read_text()
    log = Record(50, 1, 1, np.ones(50))
    log.open(tmp_path, tensorboard=False)
    for step in range(1, 200):
        rates = {"learning_rate": 0.1, "images_per_second": 9.0}
        log.write({"step": step, "epoch": step / 50, "train_loss": 3 / step, **rates})
    log.write({"step": 199, "epoch": 3.98, "test_loss": 0.1, "test_error_percent": 12.34})
    log.close()
    report_page.write(tmp_path)
    page = (tmp_path / "report.html").read_text()
    late = "stages 1 to 2 are late by this number of updates: 1, 0"
    for part in ("12.34%", "FDG with K=2, β=0.5", "digits &lt;not&gt; CIFAR", "not finished", late):
        assert part in page
    assert "Times resumed from a checkpoint: 2. Times begun anew, because there was no checkpoint yet: 1." in page
    assert "src=" not in page and "http" not in page.replace("http-equiv", "") and page.count("<link") == 1
    assert page.count('<svg class="chart"') == 4 and page.count('<svg class="schedule"') == 1
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def told(**changed) -> dict:
    """A config as a run writes it, with 10 batches an epoch."""
    values, written = {name: getattr(Config(), name) for name in FIELDS}, {"note": "", "devices": ["cpu:0"]}
    return {**values, "warmup": "off", "train_size": 320, "batch_size": 32, "epochs": 8, **written, **changed}


@pytest.mark.parametrize("changed", [
    {}, {"warmup": "on"}, {"warmup": "on", "epochs": 300}, {"accumulate": 3, "warmup": "on"},
    pytest.param({"epochs": 1}, marks=pytest.mark.slow),
    pytest.param({"epochs": 1, "train_size": 32, "warmup": "on"}, marks=pytest.mark.slow),
    {"learning_rate": 0.005, "warmup": "on"}, pytest.param({"train_size": 321}, marks=pytest.mark.slow),
])  # fmt: skip
def test_the_learning_rates_marked_are_those_of_the_schedule(changed):
    config = told(**changed)
    per_epoch = -(-config["train_size"] // 32)
    schedule = paper_schedule(config["learning_rate"], config["epochs"], per_epoch, config["warmup"] == "on")
    true = learning_rates(schedule, config["epochs"] * per_epoch, config["accumulate"])
    marked = np.zeros_like(true)
    for epoch, rate in report_page.learning_rates(config):
        marked[round(epoch * per_epoch) :] = rate
    np.testing.assert_allclose(marked, true, rtol=1e-6)  # the schedule's are float32


@pytest.mark.parametrize(("method", "K"), [
    ("fdg", 1), ("fdg", 3), ("fdg", 9), ("bp", 3), ("gpipe", 3), ("dni", 3), ("data_parallel", 2),
])  # fmt: skip
def test_the_schedule_is_drawn_and_its_lateness_is_the_schedules(method, K):
    late = methods.find(method).schedule(K).staleness
    page = report_page.page(told(method=method, K=K, split="x", asked=told()), [], {})
    drawn = page.partition('<svg class="schedule"')[2].partition("</svg>")[0]
    assert bool(drawn) is (method != "data_parallel" and K <= 8)
    assert (f"1 to {K} are late by this number of updates: {', '.join(map(str, late))}." in page) is (max(late) > 0)
    if drawn:
        assert all(f">F{batch}<" in drawn for batch in (1, 2, 3) if method != "gpipe") and f">stage {K}<" in drawn
        assert (f"{max(late)} update{'s' * (max(late) > 1)} late. The dots count" in drawn) is (max(late) > 0)


@pytest.mark.parametrize("words", [
    "--K 3 --beta 0.5 --warmup on --no-drain", "--method gpipe --micro-batches 2 --seed 4",
    "--method ddg --correct shrink --beta 0.3 --weight-decay 1e-05",
])  # fmt: skip
def test_the_command_asks_for_the_same_run(words):
    asked, _ = cli.parse(shlex.split(words), "cifar")
    values = {name: getattr(asked, name) for name in FIELDS if name != "resume"}
    first, *rest = shlex.split(results.command({**values, "asked": values}))
    assert [first, *rest[:2]] == ["python", "-m", "fdg_jax.experiments.cifar"]
    assert cli.parse(rest[2:], "cifar")[0] == asked
    text = {**values, "dataset": "text", "asked": {**values, "dataset": "text"}}
    assert results.command(text).startswith("python -m fdg_jax.experiments.language_model --")
    settled = {**values, "dataset": "digits", "train_size": 1438, "asked": {**values, "train_size": 3000}}
    again = results.command({**settled, "xla_flags": " --a=b --c"})
    assert again.startswith("XLA_FLAGS='--a=b --c' python -m ") and "--dataset digits --train-size 1438" in again


def test_what_was_refused_is_shown(tmp_path):
    stored_run(tmp_path, K=2)
    run_files.add_incident(tmp_path, 1234, "stage k=2 refused <b>update</b> 7.")
    with (tmp_path / "incidents.jsonl").open("a") as file:
        file.write('nonsense\n[1]\n{"step": "x", "fact": "y"}\n{"step": 5, "fact": "gone back"}\n')
    (tmp_path / "stalls.jsonl").write_text("{}\n{}\n")
    report_page.write(tmp_path)
    page = (tmp_path / "report.html").read_text()
    said = "<p>After batch 1,234: stage k=2 refused &lt;b&gt;update&lt;/b&gt; 7.</p><p>After batch 5: gone back</p>"
    assert said in page and "Stalls of at least 600 s without progress: 2 (stalls.jsonl)." in page

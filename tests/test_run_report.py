"""The report of a run: one page with its curves, also of a run that has not ended."""

import json
import re
import shlex
import time
from unittest import mock

import numpy as np
import pytest
from stored_runs import stored_run

from fdg_jax import methods
from fdg_jax.recipe import paper_schedule
from fdg_jax.report import curves, options_part, report_page, schedule_part, verdict
from fdg_jax.runs import incidents, run_files
from fdg_jax.runs.options import FIELDS, Options
from fdg_jax.runs.run_files import MetricsLog
from fdg_jax.training import command_line
from fdg_jax.training.setup import learning_rates


def test_a_report_is_one_page_with_its_curves_in_it_also_of_an_unfinished_run(tmp_path):
    stored_run(tmp_path, model="resnet8", K=2, beta=0.5)
    config = run_files.read_json(tmp_path / "config.json")
    run_files.write_json(
        tmp_path / "config.json",
        {**config, "devices": ["cpu:0", "cpu:1"], "note": "digits <not> CIFAR", "versions": {}},
    )
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in range(1, 200):
        rate = 0.1 if step < 100 else 0.01
        log.append(
            {
                "step": step,
                "epoch": step / 50,
                "train_loss": 3 / step,
                "learning_rate": rate,
                "images_per_second": 9.0,
            }
        )
    log.append({"step": 199, "epoch": 3.98, "test_loss": 0.1, "test_error_percent": 12.34})
    log.close()
    report_page.write(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page
    assert "12.34%" in page
    assert "FDG with K=2, β=0.5" in page
    assert "digits &lt;not&gt; CIFAR" in page
    assert "not finished" in page
    assert "src=" not in page and "url(" not in page and page.count("<link") == 1  # nothing is fetched
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("K", [2, 4, 8])
@pytest.mark.parametrize("method", ["dgl", "dni", "fdg"])
def test_every_stage_of_a_schedule_is_drawn_at_work_also_where_no_gradient_is_late(method, K):
    defaults = {name: field.default for name, field in FIELDS.items()}
    picture, said = schedule_part.scheduled({**defaults, "method": method, "K": K})
    assert said == schedule_part.told({**defaults, "method": method, "K": K}) and said
    assert all(f">F{batch}<" in picture for batch in (1, 2, 3))
    rows = re.findall(r'class="(?:F|B)[^"]*"[^>]* y="([\d.]+)"', picture)
    assert len(set(rows)) >= K


@pytest.mark.parametrize(("batches", "said"), [
    ([{}], "It was resumed 1 time from a checkpoint, and went on exactly there."),
    ([{"batch": 7}, {"batch": 9}], "It was resumed 2 times from a checkpoint"),
    ([{"batch": 0}], "It was begun anew 1 time, as there was no checkpoint yet."),
])  # fmt: skip
def test_a_report_says_where_a_run_was_resumed(batches, said):
    told = report_page.incident_part({"resumed": batches}, [], 0)
    assert said in told and told.count("It was") == 1


def test_a_report_of_a_run_that_has_not_logged_anything_can_be_made(tmp_path):
    stored_run(tmp_path)
    config = run_files.read_json(tmp_path / "config.json")
    run_files.write_json(tmp_path / "config.json", {**config, "devices": ["cpu:0"], "versions": {}})
    report_page.write(tmp_path)
    assert "nothing yet" in (tmp_path / "report.html").read_text()


def told(**changed) -> dict:
    """A config as a run writes it, with 10 batches an epoch."""
    values = {name: getattr(Options(), name) for name in FIELDS}
    return {**values, "warmup": "off", "train_size": 320, "batch_size": 32, "epochs": 8, **changed}


@pytest.mark.parametrize("changed", [
    {}, {"warmup": "on"}, {"warmup": "on", "epochs": 300}, {"accumulate": 3, "warmup": "on"}, {"epochs": 1},
    {"epochs": 1, "train_size": 32, "warmup": "on"}, {"learning_rate": 0.005, "warmup": "on"}, {"train_size": 321},
])  # fmt: skip
def test_the_learning_rates_marked_are_those_of_the_schedule(changed):
    config = told(**changed)
    per_epoch = -(-config["train_size"] // 32)
    schedule = paper_schedule(config["learning_rate"], config["epochs"], per_epoch, config["warmup"] == "on")
    true = learning_rates(schedule, config["epochs"] * per_epoch, config["accumulate"])
    marked = np.zeros_like(true)
    for epoch, rate in curves.learning_rates(config):
        marked[round(epoch * per_epoch) :] = rate
    np.testing.assert_allclose(marked, true, rtol=1e-6)  # the schedule's are float32


def test_a_learning_rate_is_marked_where_it_begins_and_not_at_the_next_line_that_was_logged():
    axes = [mock.Mock(), mock.Mock()]
    curves.mark_learning_rates(axes, curves.learning_rates(told(warmup="on")), end=7.0)
    for each in axes:
        assert [call.args[0] for call in each.axvline.call_args_list] == [0.1, 4.0, 6.0]  # the fourth is at 7.3
    labels = [(call.args[0], call.args[1][0]) for call in axes[0].annotate.call_args_list]
    assert labels == [("learning rate 0.01", 0), ("0.1", 0.1), ("0.01", 4.0), ("0.001", 6.0)]


@pytest.mark.parametrize(("points", "marked"), [(1, "o"), (2, "o"), (50, "")])
def test_a_curve_of_one_point_can_be_seen(points, marked, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: saved.append(figure))
    event = {"train_loss": 1.0, "learning_rate": 0.1}
    train = [{"epoch": n / 10, **event} for n in range(1, points + 1)]
    curves.draw(told(), train, tmp_path / "x.png")
    assert saved[0].axes[0].lines[0].get_marker() == marked
    assert ("<circle" in curves.charts(told(), train, [])) is bool(marked)


def test_a_note_is_there_only_where_what_it_explains_is_drawn():
    def charted(points):
        train = [{"epoch": n / 100, "train_loss": 1 / n, "learning_rate": 0.1} for n in range(1, points + 1)]
        return curves.charts(told(), train, [])

    assert "Band:" not in charted(200) and "Dashed:" not in charted(200)
    assert "Band:" in charted(500) and "Dashed:" in charted(500)  # the rate drops after epoch 4


def test_learning_rates_are_steps_where_they_change_and_on_a_log_axis_if_they_differ_much():
    points = [(1.0, 0.1), (2.0, 0.1), (3.0, 0.01), (4.0, 0.01), (5.0, 0.001)]
    corners = [(1.0, 0.1), (2.5, 0.1), (2.5, 0.01), (4.0, 0.01), (4.0, 0.001), (5.0, 0.001)]
    assert curves.steps(points, [2.5, 4.0]) == corners and curves.steps(points[:1], []) == points[:1]
    for until, log in ((4, False), (5, True)):
        train = [{"epoch": x, "train_loss": 1.0, "learning_rate": rate} for x, rate in points[:until]]
        drawn = curves.charts(told(), train, []).partition("<b>Learning rate</b>")[2].partition("</svg>")[0]
        heights = [float(each) for each in re.findall(r'<text class="y" x="38" y="([0-9.]+)"', drawn)]
        labels = re.findall(r'<text class="y"[^>]*>([^<]+)<', drawn)
        assert (labels == ["0.001", "0.01", "0.1"]) is log
        if log:
            assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.2)  # drawn to a tenth


def test_running_means_start_again_at_a_new_learning_rate():
    rates = [0.1] * 3 + [0.01] * 3
    found = [{"x": float(n), "learning_rate": rate} for n, rate in zip((1, 2, 3, 10, 20, 60), rates, strict=True)]
    assert curves.running_means(found, "x", 2) == pytest.approx([1, 1.5, 2.5, 10, 15, 40])


DONE = {"epochs": 8, "steps": 80, "seconds": 1.0}


def words_of(losses, errors=(), classes: int | None = 10, summary=DONE, going=None, **more):
    """What is said of a run with so many equal epochs, which has trained all of them; going: of one that has not."""
    per_line = 80 / max(1, len(losses))
    train = [
        {"step": round(i * per_line), "epoch": i * per_line / 10, "train_loss": x, "learning_rate": 0.1}
        for i, x in enumerate(losses, 1)
    ]
    test = [{"step": i, "epoch": float(i), "test_error_percent": x} for i, x in enumerate(errors, 1)]
    config = told(inputs={"classes": classes}, **more)
    if going is not None:
        return " ".join(verdict.learned(config, train, test, going))
    return " ".join(verdict.sentences(config, train, test, summary))


FELL = [2.3 - 0.02 * min(i, 50) for i in range(100)]


def test_it_is_said_whether_a_run_went_well():
    to = "from 2.3 (the first logged line) to 1.3 (the mean of the last tenth of the logged lines). It had come to rest"
    assert to in words_of(FELL)
    assert "still falling at the end: 11% of the fall" in words_of([2.3 - 0.02 * i for i in range(100)])
    assert "It went wrong: the training loss rose from 1" in words_of([1.0 + 0.1 * i for i in range(20)])
    assert "rose a little at the end" in words_of([2.0, 1.5] * 3 + [1.0] * 30 + [1.2] * 4)
    assert "no batch has been logged" in words_of([], summary={})
    said = words_of(FELL, [50.0, 20.0, 25.0])
    assert "gets 25.00% wrong, where guessing gets 90.0% wrong. It had been better: 20.00% after epoch 2" in said
    assert said.endswith("after epoch 2.")  # nothing is known of how many images that is
    assert "it has learned next to nothing" in words_of(FELL, [89.0])
    assert "guessing" not in words_of(FELL, [50.0], classes=None) and "not evaluated" in words_of(FELL)


@pytest.mark.parametrize("unfinished", [
    {"going": True}, {"going": False}, {"summary": {}}, {"epochs": 16},  # the last: --steps ended it half-way
])  # fmt: skip
def test_before_its_end_no_run_is_told_that_it_has_come_to_rest_or_was_trained_too_long(unfinished):
    said = words_of(FELL, [2.5, 9.0], test_size=10_000, **unfinished)
    assert "come to rest:" not in said and "at rest" not in said and "training longer" not in said
    assert "known only after all" in said and "been better: 2.50% after epoch 1." in said
    assert words_of(FELL, [2.5, 9.0], test_size=10_000, lr_schedule="constant").count("had come to rest:") == 1


def test_what_a_run_began_with_stays_the_same_while_it_trains():
    for until in (5, 30, 100):
        assert "from 2.3 (the first logged line)" in words_of(FELL[:until], going=True)


@pytest.mark.parametrize(("better", "images", "block", "sure"), [
    (2.5, 359, None, False),  # 1.2% at 3.06%: a standard error of the difference is 1.3 points
    (0.4, 359, None, True),
    (2.5, 10_000, None, True),  # 0.6 points and 0.24
    (2.55, 359, 64, True),  # tokens are counted, not blocks
    (2.6, 10_000, None, None),
])  # fmt: skip
def test_half_a_point_of_few_test_images_is_not_called_more_than_chance(better, images, block, sure):
    said = words_of([2.0, 1.0], [better, 3.1], test_size=images, block_size=block)
    assert ("so training longer did not help" in said) is bool(sure)
    assert (f"the difference may be chance with {images:,} test images." in said) is (sure is False)
    assert ("had been better" in said) is (sure is not None)


WAITING = ("bp", "data_parallel", "ddg", "dfa", "fa", "fr", "gpipe", "scaled_bp")


@pytest.mark.parametrize("method", methods.names())
def test_the_schedule_is_drawn_and_its_lateness_is_the_schedules(method):
    for K in (1, 3):
        made = methods.find(method).schedule(K)
        shown = schedule_part.scheduled(told(method=method, K=K, split="x"))
        said, most = " ".join(shown.said), max(made.staleness)
        assert (f"gradients are {most} update{'s' * (most > 1)} late" in said) is (most > 0)
        if most:
            assert f"Stage {made.staleness.index(most) + 1} is the most stale" in said
            assert f"{most} update{'s' * (most > 1)} late. The numbers count them." in shown.svg
        assert ("<style" in shown.svg) is False and bool(shown.svg) is (method != "data_parallel")
    said = " ".join(schedule_part.scheduled(told(method=method, K=3)).said)
    assert ("no stage waits" not in said) is (method in WAITING)
    assert ("of unequal ones, the smaller wait for the largest" not in said) is (method in WAITING)


def test_a_schedule_that_nobody_could_read_is_not_drawn():
    shown = schedule_part.scheduled(told(method="fdg", K=9))
    assert not shown.svg and "Stage 1 is the most stale, its gradients are 15 updates late" in shown.said[0]


def test_options_are_those_that_the_run_has():
    fdg = options_part.of_run(told(method="fdg"))
    assert {"beta", "order", "accumulate"} <= fdg.keys()
    assert not {"micro_batches", "aux", "scale", "prediction", "b2", "warmup_steps", "text", "tied", "resume"} & {*fdg}
    gpipe = options_part.of_run(told(method="gpipe", optimizer="adamw", lr_schedule="cosine"))
    assert {"micro_batches", "b2", "warmup_steps"} <= gpipe.keys() and not {"beta", "order", "warmup"} & gpipe.keys()
    assert "beta" in options_part.of_run(told(method="ddg", correct="shrink"))
    corrected = options_part.of_run(told(correct="rate, shrink , anticipate"))
    assert {"beta", "anneal_updates", "prediction"} <= corrected.keys()
    assert not any("{" in options_part.meaning(name) for name in FIELDS)


def test_the_meaning_of_an_option_is_a_whole_sentence():
    for name in FIELDS:
        said = options_part.meaning(name)
        opened, closed = (sum(map(said.count, brackets)) for brackets in ("([", ")]"))  # (0, 1] is an interval
        assert opened == closed and not said.endswith(("Eq.", "Fig.", "e.g.", "i.e."))
    assert options_part.meaning("beta").endswith("are multiplied by beta^(K-k) before weight decay and momentum.")


def test_method_and_K_are_always_among_what_was_chosen_and_beta_is_explained():
    config = told(method="fdg", K=2, beta=0.5)
    assert options_part.chosen({**config, "asked": config}).keys() >= {"method", "K", "beta"}
    default = told()
    assert {"method", "K"} <= options_part.chosen({**default, "asked": default}).keys()
    meaning = "β=0.5: gradients of stage k are multiplied by β^(K-k)."
    assert meaning in verdict.trained(config, {}) and "β" not in verdict.trained({**config, "K": 1}, {})


@pytest.mark.parametrize("words", [
    "--K 3 --beta 0.5 --run-dir 'a b' --warmup on --no-drain", "--method gpipe --micro-batches 2 --seed 4",
    "--method ddg --correct shrink --beta 0.3 --weight-decay 1e-05",
])  # fmt: skip
def test_the_command_asks_for_the_same_run(words):
    asked, _ = command_line.parse(shlex.split(words), "cifar")
    values = {name: getattr(asked, name) for name in FIELDS if name != "resume"}
    first, *rest = shlex.split(options_part.command({**values, "asked": values}))
    assert [first, *rest[:2]] == ["python", "-m", "fdg_jax.experiments.cifar"]
    assert command_line.parse(rest[2:], "cifar")[0] == asked
    text = {**values, "dataset": "text", "asked": {**values, "dataset": "text"}}
    assert options_part.command(text).startswith("python -m fdg_jax.experiments.language_model --")


def test_what_was_refused_is_told(tmp_path):
    stored_run(tmp_path, K=2)
    assert incidents.read(tmp_path) == [] and incidents.stalls(tmp_path) == 0
    report_page.write(tmp_path)
    assert "What was refused" not in (tmp_path / "report.html").read_text()
    incidents.add(tmp_path, 1234, "stage k=2 refused <b>update</b> 7.")
    with (tmp_path / "incidents.jsonl").open("a") as file:
        file.write('nonsense\n[1]\n{"step": "x", "fact": "y"}\n{"step": 5, "fact": "gone back"}\n')
    (tmp_path / "stalls.jsonl").write_text("{}\n{}\n")
    report_page.write(tmp_path)
    page = (tmp_path / "report.html").read_text()
    said = "<p>After batch 1,234: stage k=2 refused &lt;b&gt;update&lt;/b&gt; 7.</p><p>After batch 5: gone back</p>"
    assert said in page
    assert "2 times something made no progress for 600 s" in page and page.count("<h2>What was refused") == 1


@pytest.mark.slow
def test_three_hundred_epochs_are_reported_in_ten_seconds_and_in_five_megabytes(tmp_path):
    stored_run(tmp_path, model="resnet20", K=3, train_size=51_200, epochs=300, warmup="off")
    made = []
    for i in range(1, 120_001):
        rates = {"learning_rate": 0.1 if i <= 60_000 else 0.01, "images_per_second": 200.0 + i % 7}
        made.append({"step": i, "epoch": i / 400, "train_loss": 1.0 + (i % 97) / 97 + 1e3 / (i + 400), **rates})
        if i % 400 == 0:
            made.append({"step": i, "epoch": i // 400, "test_loss": 1.0, "test_error_percent": 60.0 - i / 4000})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in made))
    began = time.monotonic()
    report_page.write(tmp_path)
    assert time.monotonic() - began < 10
    assert (tmp_path / "report.html").stat().st_size < 5e6
    assert "30.00% wrong" in (tmp_path / "report.html").read_text()

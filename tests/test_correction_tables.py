"""The two tables of corrections: grids, choices that are read from results, runs that diverge, and the text itself.

No training happens here.
"""

import json

import pytest
from made_up_runs import make

from experiments import corrections_images, corrections_text
from experiments.harness import result_files, run_table, table_command
from experiments.tuning import corpus, images, texts
from fdg_jax.errors import BadInput

WHENCE = {
    "versions": {"python": "3", "jax": "1", "flax": "2", "optax": "3"},
    "hardware": {"devices": ["cpu:0"], "cpus": 2},
    "git_commits": ["a" * 40],
}
LOST = {"diverged": True, **WHENCE}


def line(run, error=30.0, loss=None):
    """A result line. loss: of a text."""
    made = {"name": run.name, "options": dict(run.flags), "seconds": 360.0, "test_error_percent": error, **WHENCE}
    return made if loss is None else {**made, "test_loss": loss}


def tuned(part, best=0, loss=None):
    """Lines of all tuning runs of a part, with the lowest error at run `best` of each grid."""
    return {
        run.name: line(run, 40.0 - 10 * (i == best), loss and loss - (i == best))
        for arm in part.arms
        for i, run in enumerate(part.grid(arm))
    }


def written(tmp_path, table, lines):
    (tmp_path / f"{table.home}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines.values()))
    return result_files.complete(table, tmp_path)


# Grids and choices


def test_every_arm_has_a_grid_of_one_size_and_the_multiples_of_its_rate_and_differs_in_its_own_flags_only():
    for parts, size in ((images.PARTS, 6), (texts.PARTS, 4)):
        for part, arm in ((each, arm) for each in parts for arm in each.arms):
            runs = part.grid(arm)
            assert len(runs) == len({run.name for run in runs}) == size
            rates = sorted({run.flags["learning_rate"] for run in runs})
            assert rates == pytest.approx([arm.usual_rate * times for times in part.multiples])
            assert {run.flags["seed"] for run in runs} == {0} and all(run.flags["hold_out"] for run in runs)
            own, shared = {*arm.flags, *arm.own[0], "learning_rate"}, {**part.shared, **part.tuned, "seed": 0}
            for run in runs:
                assert {k: v for k, v in run.flags.items() if k not in own} == {
                    k: v for k, v in shared.items() if k not in own
                }


def test_a_final_run_has_the_options_of_the_best_tuning_run(tmp_path):
    best = 5
    table = written(tmp_path, corrections_images.TABLE, tuned(images.FOUR, best))
    ended = [run for run in table.runs if run.name.startswith("final-")]
    assert len(ended) == 3 * len(images.FOUR.arms)
    for arm in images.FOUR.arms:
        chosen = images.FOUR.grid(arm)[best].flags
        (run,) = [run for run in ended if run.name == f"final-K4-{arm.name}-seed1"]
        assert run.flags == {**chosen, "epochs": 5, "hold_out": 0, "seed": 1}
    assert [run.flags["seed"] for run in ended] == sorted(run.flags["seed"] for run in ended)


def test_an_arm_without_its_whole_grid_has_no_choice_and_of_equals_the_first_is_chosen():
    part, arm = images.FOUR, images.FOUR.arms[0]
    runs = part.grid(arm)
    lines = {run.name: line(run, 30.0) for run in runs}
    assert part.choice(lines, arm) == {"learning_rate": 0.05, "momentum": 0.9}
    assert part.choice({name: each for name, each in lines.items() if name != runs[3].name}, arm) is None
    lines[runs[0].name] = LOST
    assert part.choice(lines, arm) == {"learning_rate": 0.1, "momentum": 0.9}
    assert part.choice({run.name: LOST for run in runs}, arm) is None
    on_text = texts.EIGHT.grid(texts.BP)
    found = {run.name: line(run, loss=loss) for run, loss in zip(on_text, (9.0, 8.0, 8.5, 8.0), strict=True)}
    found[on_text[1].name]["test_loss"] = None  # not finite: the largest
    assert texts.EIGHT.choice(found, texts.BP) == {"learning_rate": 0.004}


# The text


def test_the_text_is_the_pinned_one_and_any_other_is_refused(tmp_path, monkeypatch):
    text = corpus.content()
    told = (run_table.ROOT / "experiments" / "corrections.md").read_text() + corrections_text.TABLE.document({})
    assert len(text) == 5_639_682 and f"{len(text):,} bytes" in told and f"sha256 `{corpus.SHA256}`" in told
    pins = (run_table.ROOT / "requirements.txt").read_text()
    assert all(f"\n{name}=={version} " in pins for name, version in corpus.WHEELS.items())
    corpus.write(tmp_path / "below" / "text")
    assert (tmp_path / "below" / "text").read_bytes() == text
    monkeypatch.setattr(corpus, "SHA256", "0" * 64)
    with pytest.raises(BadInput, match=r"have the sha256 69f2e4a56da27704\.\.\., not 0000"):
        corpus.content()
    monkeypatch.setitem(corpus.WHEELS, "optax", "0.0")
    with pytest.raises(BadInput, match=r"needs optax 0\.0, but "):
        corpus.content()


# Runs that have diverged


def test_runs_that_diverged_are_collected_once_and_not_made_again(tmp_path, monkeypatch, capsys):
    """One stopped with the sentence of a loss that is not finite, two ended with a huge loss or none."""
    table = corrections_images.TABLE
    stopped, huge, none, well, full = table.runs[:5]
    for run, loss in ((huge, 3.2e7), (none, None), (well, 1.5)):
        path = make(tmp_path / "runs", run, error=90.0, trained=2)
        summary = json.loads((path / "summary.json").read_text())
        (path / "summary.json").write_text(json.dumps({**summary, "train_loss": loss, "updates": [704]}))
    said = "error: the training loss is nan at batch 7. The run in x has diverged; its report shows where. Lower it."
    for run, last in ((stopped, said), (full, "error: no room left on the disk")):
        make(tmp_path / "runs", run, error=None, trained=2)
        (tmp_path / "runs" / f"{run.name}.log").write_text(f"epoch 2/5\n{last}\n")
    where = ["--runs-dir", str(tmp_path / "runs"), "--results", str(tmp_path)]
    assert table_command.main(table, ["collect", *where]) == 0
    found = result_files.read(result_files.complete(table, tmp_path), tmp_path)
    assert list(found) == [run.name for run in (stopped, huge, none, well)]
    assert [each.get("diverged") for each in found.values()] == [True, True, True, None]
    assert ["test_error_percent" in each for each in found.values()] == [False, False, False, True]
    asked = []
    monkeypatch.setattr(table_command, "run_missing", lambda runs, *_: asked.extend(runs) or 0)
    assert table_command.main(table, ["run", *where, "--only", stopped.name, full.name]) == 0
    assert asked == [full] and "3 diverged" in table.document(found)
    capsys.readouterr()

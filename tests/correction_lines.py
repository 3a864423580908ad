"""Result lines of the tables of corrections, made up."""

import json

from made_up_runs import rows

from experiments.harness import result_files
from experiments.tuning import texts

WHENCE = {
    "versions": {"python": "3", "jax": "1", "flax": "2", "optax": "3"},
    "hardware": {"devices": ["cpu:0"], "cpus": 2},
    "git_commits": ["a" * 40],
}
NOISE = (0.0, 0.1, -0.1)


def line(run, error=30.0, loss=None):
    """A result line. loss: of a text, after its first epoch of 1,000 steps; it falls by 0.1 every epoch."""
    made = {"name": run.name, "options": dict(run.flags), "seconds": 360.0, "test_error_percent": error, **WHENCE}
    if loss is not None:
        epochs, steps = range(run.flags["epochs"]), texts.STEPS_PER_EPOCH
        made["evaluations"] = [{"step": (i + 1) * steps, "test_loss": loss - 0.1 * i} for i in epochs]
        made["test_loss"] = made["evaluations"][-1]["test_loss"]
    return made


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


def tables(text):
    """The rows of each table of a page."""
    by_width = {}
    for cells in rows(text):
        by_width.setdefault(len(cells), []).append(cells)
    return list(by_width.values())


def finals(parts, names, lines):
    """(run, arm, seed) of the final runs of the arms of these names."""
    for part in parts:
        for arm in (each for each in part.arms if each.name in names):
            for seed in part.seeds:
                yield part.final_run(arm, part.choice(lines, arm), seed), arm, seed

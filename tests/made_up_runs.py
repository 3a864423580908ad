"""Run directories without training: what the tables' tests list, collect and render."""

import json
from pathlib import Path

from experiments.harness.run_table import Run
from fdg_jax.config import FIELDS

DATA, SOMEWHERE = "/home/someone/data", "/home/someone/runs"


def config(run: Run, **changed) -> dict:
    asked = {name: field.default for name, field in FIELDS.items() if name != "resume"}
    asked |= {**run.flags, "data_dir": DATA, "run_dir": f"{SOMEWHERE}/{run.name}", "checkpoint_every": 390}
    asked |= changed
    used = {**asked, "train_size": 50000, "split": "5", "window": 10}
    return {
        **used,
        "asked": asked,
        "versions": {"python": "3.11.7", "jax": "0.10.2", "flax": "0.12.8", "optax": "0.2.8"},
        "platform": "Linux-6.1.2-a-b7-x86_64-with-glibc2.36",
        "backend": "cpu",
        "devices": ["cpu:0"] * run.flags["K"],
        "cpus": 2,
        "git_commit": "a" * 40,
        "started": "2026-01-01T00:00:00+00:00",
        "resumed": [{"git_commit": "b" * 40 + "-dirty"}],
    }


def events(epochs: int, lines: int = 40) -> list[dict]:
    """So many logged lines an epoch, and an evaluation after each."""
    made: list[dict] = []
    for i in range(1, lines * epochs + 1):
        rate = 0.1 if i <= 100 else 0.01
        made.append({"step": 10 * i, "epoch": i / lines, "train_loss": 2.0 - i / 400, "learning_rate": rate})
        if i % lines == 0:
            made.append({"step": 10 * i, "epoch": i / lines, "test_loss": 1.0, "test_error_percent": 60.0 - i / 10})
    return made


def make(runs_dir: Path, run: Run, error: float | None = 31.25, trained: int = 5, lines: int = 40, **changed) -> Path:
    """A run directory; error: of a finished run, None of one that was cut off. trained: epochs, lines: of each."""
    path = runs_dir / run.name
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config(run, **changed)))
    (path / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events(trained, lines)))
    if error is not None:
        K = run.flags["K"]
        summary = {
            "method": run.flags["method"], "K": K, "steps": 391 * trained, "epochs": trained, "seconds": 9.5,
            "train_loss": 0.8765,
            "images_per_second": 123.4, "test_error_percent": error, "staleness": list(range(K))[::-1],
        }  # fmt: skip
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def rows(text: str) -> list[list[str]]:
    """The cells of a Markdown table's rows, below its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]

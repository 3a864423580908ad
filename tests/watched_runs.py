"""Run directories as a training leaves them while it goes on, for tests of who watches."""

import json
from pathlib import Path

import made_up_runs

from experiments.harness.run_table import Run
from fdg_jax.runs import live
from fdg_jax.runs.live import Live, LiveStage


def stages(K: int) -> tuple[LiveStage, ...]:
    """Stages of a full pipeline. busy: 90, 80, ... percent."""
    return tuple(
        LiveStage(k, f"B{1000 + k}", 1010 - k, 1000 + k, 7, max(0, 2 * (K - k) - 1), 50.0, 100.0 - 10 * k, 600)
        for k in range(1, K + 1)
    )


def make(folder: Path, K: int = 3, error: float | None = None, trained: int = 2, **changed) -> Path:
    """A run directory without live.json. error: of a finished run; None: it goes on."""
    run = Run("run", {"method": "fdg", "K": K, "seed": 0})
    options = {"note": "", "warmup": "off", "model": "resnet8", "epochs": 4, **changed}
    return made_up_runs.make(folder, run, error, trained, **options)


def say(run: Path, doing: str = "training", **more) -> Path:
    """Writes live.json, by this process unless something else is said. Returns the run."""
    known = {"step": 1010, "steps": 1564, "train_loss": 0.5, "per_second": 1234.0, "seconds_left": 75.0}
    said = Live(doing, **{**known, "stages": stages(3), **{n: v for n, v in more.items() if n in Live._fields}})
    live.write(run, said)
    path = run / live.file_of(said.process)
    path.write_text(json.dumps({**json.loads(path.read_text()), **{n: v for n, v in more.items() if n != "stages"}}))
    return run

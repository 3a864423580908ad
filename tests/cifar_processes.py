"""The training command in processes of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHORT = (
    "--model resnet8 --dataset digits --train-size 112 --batch-size 32 --epochs 2 --learning-rate 0.05 --log-every 2"
)
# Of runs that are compared with no others, or with others of these settings: compiling is most of their time.
QUICK = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}


def command(*words: str, cwd: Path | None = None, environment: dict[str, str] | None = None) -> subprocess.Popen:
    """The command in a process of its own. PYTHONPATH, because a test may run in another directory."""
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **(environment or {})}
    return subprocess.Popen(
        [sys.executable, "-m", "fdg_jax.experiments.cifar", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd or ROOT,
        env=settings,
    )


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def read(path: Path) -> dict:
    return json.loads(path.read_text())

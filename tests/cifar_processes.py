"""Python, and with it the training command, in processes of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parents[1]
SHORT = (
    "--model resnet8 --dataset digits --train-size 112 --batch-size 32 --epochs 2 --learning-rate 0.05 --log-every 2"
)
# Of runs that are compared with no others, or with others of these settings: compiling is most of their time.
QUICK = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}


def started(*words: str | Path, cwd: Path = ROOT, environment: Mapping[str, str] = QUICK) -> subprocess.Popen:
    """Python with these words. PYTHONPATH, because a test may run in another directory."""
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "COLUMNS": "120", **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *words], **pipes, cwd=cwd, env=settings)


def command(*words: str, cwd: Path = ROOT, environment: Mapping[str, str] = MappingProxyType({})) -> subprocess.Popen:
    """The training command."""
    return started("-m", "fdg_jax.experiments.cifar", *words, cwd=cwd, environment=environment)


def printed(*words: str | Path, cwd: Path = ROOT, environment: Mapping[str, str] = QUICK) -> str:
    """What Python prints with these words. Raises AssertionError where it fails."""
    code, out, err = finish(started(*words, cwd=cwd, environment=environment))
    assert code == 0, out + err
    return out


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def read(path: Path) -> dict:
    return json.loads(path.read_text())

"""What the tests of the benchmarks share."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COMMON = {"K": 2, "model": "resnet8", "batch_size": 4}
TINY = ("--model", "resnet8", "--batch-size", "4")
pins_cores = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no pinning on this system")


def run(*arguments):
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


def rows_of(text):
    return [json.loads(line) for line in text.splitlines()]

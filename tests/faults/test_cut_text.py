"""The file of a text is cut short under a running training: the run ends with one sentence and can go on."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fault_runs import ROOT, newest

from fdg_jax.runs.run_files import read_metrics

SHORT = """--model transformer2x32 --batch-size 8 --block-size 64 --epochs 1000 --log-every 1 --no-tensorboard
    --checkpoint-every 0 --evaluate-every 0"""
TOLD = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}


@pytest.mark.slow
def test_it_ends_with_one_sentence_and_a_checkpoint_and_goes_on_once_the_file_is_whole(tmp_path):
    content = b"The quick brown fox jumps over the lazy dog. " * 400
    text, path, whole = (tmp_path / name for name in ("text.txt", "run", "whole"))
    text.write_bytes(content)
    words = [*SHORT.split(), "--K", "2", "--text", str(text)]
    with subprocess.Popen(program(words, path), **TOLD) as process:
        try:
            until = time.monotonic() + 200
            while not any(event["step"] >= 5 for event in read_metrics(path / "metrics.jsonl")):
                assert process.poll() is None and time.monotonic() < until
                time.sleep(0.05)
            os.truncate(text, 4096)
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1, said
    assert said.count("error:") == 1 and "Traceback" not in said
    assert f"error: {text} was cut short: 4,096 of {len(content):,} bytes are left. The run stopped before" in said
    at = newest(path)
    assert at >= 5 and f"--run-dir {path} --resume" in said
    steps = ["--steps", str(at + 2)]
    done = subprocess.run(program(["--resume", *steps], path), timeout=200, **TOLD)  # it is another text now
    assert done.returncode == 2 and "a run that goes on needs the data it began with" in done.stdout
    text.write_bytes(content)
    for again, run in ((["--resume", *steps], path), ([*words, *steps], whole)):
        done = subprocess.run(program(again, run), timeout=200, **TOLD)
        assert done.returncode == 0, done.stdout
    sums = [json.loads((run / "summary.json").read_text())["final_state_sha256"] for run in (path, whole)]
    assert sums[0] == sums[1]


def program(words: list[str], run: Path) -> list[str]:
    """Every training of this file is a process of its own: the number of a process's devices decides last bits."""
    return [sys.executable, "-m", "fdg_jax.experiments.language_model", *words, "--run-dir", str(run)]


READ_LATER = """
import os, sys, jax
from fdg_jax import data
from fdg_jax.config import Config
from fdg_jax.training.loop import InMemory
text = data.load_text("text", sys.argv[1:], 64)
feed = InMemory(text, Config(dataset="text", batch_size=4096, epochs=1), steps=5)
there = jax.device_put(next(feed.test()))
os.truncate(sys.argv[1], 4096)
print(jax.numpy.sum(there[0].astype("int32")))
"""


def test_a_test_batch_that_a_program_reads_after_the_cut_is_whole(tmp_path):
    """The cut comes between the look at the file's length and the program, in a process that a SIGBUS would end."""
    text = tmp_path / "text.txt"
    text.write_bytes(b"x" * 2_000_000)
    settings = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", READ_LATER, str(text)], cwd=ROOT, env=settings, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) % (64 * ord("x")) == 0 and int(done.stdout) > 0

"""A process that decodes images is killed or stopped: the training obeys signals, leaves a checkpoint and ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fault_runs import ROOT, newest

from fdg_jax.runs.run_files import read_metrics
from tests.image_files import imagenet as write_imagenet

# The command, with images of 128x128: a batch of them is larger than what a pipe holds, so that a worker is nearly
# always in the middle of sending one.
CODE = """
import sys
from fdg_jax.data.streams import imagenet as stream
from fdg_jax.experiments import command, imagenet
stream.SIDE = 128
command.leave(imagenet.main(sys.argv[1:]))
"""
SMALL = "--model resnet8 --K 2 --batch-size 6 --epochs 400 --learning-rate 0.01 --log-every 1 --evaluate-every 0"
OBEYED_SECONDS = 90  # some 10 where the machine is quiet; without care it would be for ever


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_command_leaves_a_checkpoint_and_says_how_to_go_on(number, cache, tmp_path, tell):
    write_imagenet(tmp_path / "images")
    path = tmp_path / "run"
    words = [*SMALL.split(), "--data-dir", str(tmp_path / "images"), "--run-dir", str(path), "--checkpoint-every", "0"]
    settings = {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(cache), "FDG_JAX_LOADER_WORKERS": "1"}
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", CODE, *words], cwd=ROOT, env={**os.environ, **settings}, stdout=said, stderr=said
        )
    try:
        wait_for(lambda: any(event["step"] >= 6 for event in read_metrics(path / "metrics.jsonl")), process)
        worker = worker_of(process.pid)
        os.kill(worker, number)
        if number == signal.SIGSTOP:
            time.sleep(2)
            process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        code = process.wait(2 * OBEYED_SECONDS)
        seconds = time.monotonic() - began
    finally:
        process.kill()
        process.wait()
    text = (tmp_path / "said").read_text()
    tell(f"{number.name} to a worker: exit code {code} after {seconds:.1f} s, checkpoint after batch {newest(path)}")
    assert "Traceback" not in text, text
    assert newest(path) >= 6 and not (path / "summary.json").exists()
    assert f"--run-dir {path} --resume" in text
    assert seconds < OBEYED_SECONDS
    if number == signal.SIGKILL:
        assert code == 1 and f"A checkpoint after batch {newest(path):,} was written. The newest checkpoint is" in text
        assert f"(number {worker}) was ended from outside, killed by SIGKILL" in text
    else:
        assert code == 143 and "stopped by SIGTERM after a checkpoint" in text
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def wait_for(done, process: subprocess.Popen, seconds: float = 200) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)


def worker_of(parent: int) -> int:
    """The process that decodes: a child that was spawned by multiprocessing, and is not its resource tracker."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_text()
                of = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if of == parent and "spawn_main" in words:
                return int(entry.name)
    raise AssertionError("no process decodes images")

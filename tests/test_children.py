"""The supervisor of benchmarks and experiments: what it says of processes that fail, and that none is left behind."""

import os
import signal
import subprocess
import sys

import pytest
from gpu_fakes import until

from benchmarks.harness import children
from benchmarks.harness.children import Child, ChildFailed
from fdg_jax.errors import BadInput

ECHO = "import json, sys\nfor line in sys.stdin: print(json.dumps([json.loads(line)]), flush=True)"


def test_a_process_answers_until_it_ends():
    with Child(["-c", ECHO]) as one, Child(["-c", ECHO]) as other:
        assert one.ask({"run": 1}) == [{"run": 1}] and children.ask_all([one, other], 2) == [[2], [2]]
        one.process.kill()
        with pytest.raises(ChildFailed, match=r"(?s)-c .* ended with exit code -9; its output is above"):
            one.ask(3)
    assert not other.running


def test_a_process_that_fails_says_what_it_said_last(tmp_path):
    with pytest.raises(ChildFailed, match="exit code 3; its last line: no more"):
        children.run("-c", "import sys; sys.exit(print('no more') or 3)", log=tmp_path / "log")
    with pytest.raises(BadInput, match="refused its options"):
        children.run("-c", "import sys; sys.exit(2)")
    refusal = "print('{\"refused\": \"too many\"}')"
    with pytest.raises(BadInput, match="side a: too many"), Child(["-c", refusal], "side a") as one:
        one.answer()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a child that its parent is gone")
def test_a_process_is_stopped_by_its_own_signal_when_its_parent_is_killed(tmp_path):
    child = "import signal, time; signal.signal(signal.SIGUSR1, lambda *_: (open('stopped', 'w'), exit())); "
    child += "open('ready', 'w'); time.sleep(60)"
    parent = "import pathlib, signal, time; from benchmarks.harness import children; "
    parent += "children.ROOT = pathlib.Path.cwd(); "
    parent += f"children.Child(['-c', {child!r}], stop=signal.SIGUSR1); time.sleep(60)"
    env = {**os.environ, "PYTHONPATH": str(children.ROOT)}
    process = subprocess.Popen([sys.executable, "-c", parent], cwd=tmp_path, env=env)
    until(lambda: (tmp_path / "ready").exists(), 30)
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: (tmp_path / "stopped").exists(), 10)

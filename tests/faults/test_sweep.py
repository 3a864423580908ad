"""Several runs by one command, stopped in the middle and gone on with: real processes and a real signal."""

import signal
import time

import pytest
from cifar_processes import QUICK, SHORT, command, finish, read


@pytest.mark.slow
def test_a_sweep_that_is_stopped_goes_on_to_the_results_of_one_that_is_not(tmp_path):
    flags = [*SHORT.split(), "--checkpoint-every", "1", "--evaluate-every", "0", "--sweep", "beta=0.5,1"]

    def begin(name):
        return command(*flags, "--run-dir", str(tmp_path / name), environment=QUICK)

    stopped, deadline = begin("stopped"), time.monotonic() + 120
    while not list((tmp_path / "stopped").glob("beta-*/checkpoints/step-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    stopped.send_signal(signal.SIGINT)
    code, out, err = finish(stopped)
    assert code == 130 and "stopped; the same command continues these runs" in out, err
    assert "beta-1:" not in out and not (tmp_path / "stopped" / "beta-1").exists()
    code, out, err = finish(begin("stopped"))
    assert (code, err) == (0, "") and "beta-0.5: continued" in out and "beta-1: started" in out
    code, out, _ = finish(begin("whole"))
    assert code == 0
    for name in ("beta-0.5", "beta-1"):
        one, other = (read(tmp_path / folder / name / "summary.json") for folder in ("stopped", "whole"))
        assert one["final_state_sha256"] == other["final_state_sha256"]

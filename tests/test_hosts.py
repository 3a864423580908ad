"""Trainings on several hosts: network namespaces of this machine, with addresses of their own and wires to be cut."""

import contextlib
import os
import subprocess
import sys
import time
from itertools import combinations

import pytest
from cifar_processes import QUICK, ROOT, SHORT, read

from benchmarks.harness import hosts
from benchmarks.harness.hosts import Hosts
from fdg_jax.machine.facts import pinned, usable

needs_hosts = pytest.mark.skipif(bool(hosts.missing()), reason=hosts.missing() or "hosts can be made")
PROGRAM = [sys.executable, "-m", "fdg_jax.experiments.cifar"]
SECONDS = 400  # a hang ends
PEER_TIMEOUT, HEARTBEAT = 20, 60  # seconds; docs/several-processes.md
LATE = 10  # seconds until a process looks again whether it is to wait for another
SPARE = 15  # seconds for a busy machine
LONG = [*SHORT.split(), "--epochs", "100000", "--checkpoint-every", "20", "--evaluate-every", "0"]


@contextlib.contextmanager
def trained(there, run, *words):
    """A process on each host, and what they write."""
    processes, files = [], []
    settings = {**os.environ, "JAX_PLATFORMS": "cpu", **QUICK}
    try:
        for number, address in enumerate(there.addresses):
            which = ["--coordinator", f"{there.addresses[0]}:1234", "--processes", str(there.count)]
            which += ["--process-id", str(number), "--address", address]
            files.append((run.parent / f"said by {number}").open("w+"))
            with pinned([usable()[number % len(usable())]]):  # one core each, so that all compute alike
                command = [*there.inside(number), *PROGRAM, *words, "--run-dir", str(run), *which]
                processes.append(
                    subprocess.Popen(command, stdout=files[-1], stderr=subprocess.STDOUT, cwd=ROOT, env=settings)
                )
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for file in files:
            file.close()


def said(run, number):
    return (run.parent / f"said by {number}").read_text()


def alone(run, *words):
    """summary.json of the same run in one process, with as many threads as stages."""
    with pinned(usable()[:2]):
        done = subprocess.run(
            [*PROGRAM, *words, "--run-dir", str(run)], cwd=ROOT, timeout=SECONDS, capture_output=True, text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu", **QUICK},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return read(run / "summary.json")


def ended(processes, seconds):
    """The seconds after which each process ended, from now; None for one that did not."""
    began, found = time.monotonic(), dict.fromkeys(range(len(processes)))
    while None in found.values() and time.monotonic() - began < seconds:
        for number, process in enumerate(processes):
            if found[number] is None and process.poll() is not None:
                found[number] = time.monotonic() - began
        time.sleep(0.05)
    return list(found.values())


@needs_hosts
@pytest.mark.slow
@pytest.mark.parametrize("K", [2, 3])
def test_a_training_on_hosts_of_their_own_ends_with_the_bits_of_one_process(K, tmp_path):
    words = [*SHORT.split(), "--K", str(K), "--beta", "0.5"]
    run = tmp_path / "several"
    with Hosts(K) as there, trained(there, run, *words) as processes:
        for number, process in enumerate(processes):
            assert process.wait(SECONDS) == 0, said(run, number)
    one, several = alone(tmp_path / "one", *words), read(run / "summary.json")
    for name in ("final_parameters_sha256", "final_state_sha256", "train_loss", "test_loss"):
        assert several[name] == one[name], name


def in_training(run, processes, step=40):
    """Waits until everything is compiled and a training well under way."""
    until = time.monotonic() + SECONDS
    while not any(int(path.name[5:]) >= step for path in (run / "checkpoints").glob("step-*")):
        assert time.monotonic() < until and not any(process.poll() for process in processes), said(run, 0)
        time.sleep(0.05)


@needs_hosts
@pytest.mark.slow
@pytest.mark.parametrize("pair", list(combinations(range(3), 2)), ids=str)
def test_a_cut_between_any_two_hosts_ends_the_training_with_the_name_of_one(pair, tmp_path):
    """The third host reaches both, so their heartbeats go on where it has the coordinator."""
    run = tmp_path / "run"
    with (
        Hosts(3) as there,
        trained(there, run, *LONG, "--K", "3", "--peer-timeout", str(PEER_TIMEOUT)) as processes,
    ):
        in_training(run, processes)
        there.cut(*pair)
        after = ended(processes, PEER_TIMEOUT + LATE + SPARE)
        assert None not in after, (after, [said(run, number) for number in range(3)])
        assert all(process.returncode for process in processes)
        errors = [line for number in range(3) for line in said(run, number).splitlines() if line.startswith("error: ")]
    a, b = pair
    expected = [f"process {a} has waited", f"process {b} has waited", f"process {a} has not", f"process {b} has not"]
    assert any(words in line for words in expected for line in errors), errors
    assert any("has ended, or its connection is cut." in line for line in errors), errors

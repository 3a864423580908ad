"""The transport within a process and the one between processes owe the same (tests/transport_contract.py)."""

import json
from pathlib import Path

import pytest
from cifar_processes import printed

CONTRACT = Path(__file__).with_name("transport_contract.py")


def kept_by(processes, K):
    """What each process says that has kept the contract, in order."""
    launch = ["-m", "fdg_jax.launch", "--processes", str(processes), "--"] if processes > 1 else []
    out = printed(*launch, CONTRACT, str(K), environment={})
    said = [json.loads(line[line.index("{") :]) for line in out.splitlines() if '"stages"' in line]
    return sorted(said, key=lambda one: one["process"])


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "K", "stages"), [
    (1, 3, [[1, 2, 3]]),
    (2, 3, [[1, 2], [3]]),
    (3, 3, [[1], [2], [3]]),
])  # fmt: skip
def test_a_transport_keeps_the_contract(processes, K, stages):
    said = kept_by(processes, K)
    assert [one["stages"] for one in said] == stages
    for one in said:  # with three stages each one writes to both others
        assert {k for what, k, _ in one["noted"] if what == "x"} == set(range(1, K + 1)) - set(one["stages"])

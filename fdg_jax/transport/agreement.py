"""Checks that the processes of a pipeline were started with the same settings, before any of them computes."""

import json
from collections.abc import Mapping

import jax
import numpy as np

from fdg_jax.errors import BadInput
from fdg_jax.transport.exchange import Exchange
from fdg_jax.transport.notices import Notices


def check_same(facts: Mapping[str, str]) -> None:
    """Compares the processes' settings. Every process has to call it.

    Arguments:
        facts: the settings by name. What is not among them is not compared.

    Raises:
        BadInput: a process has other settings than process 0. Every process raises the same.
    """
    devices = {device.process_index: device for device in reversed(jax.devices())}  # the first of each process
    wait_for_all(len(devices))
    text = np.frombuffer(json.dumps(dict(facts)).encode(), np.uint8)
    told = Exchange(devices).gather({str(jax.process_index()): text})
    found = [json.loads(told[str(process)].tobytes()) for process in sorted(devices)]
    if difference := first_difference(found):
        raise BadInput(f"{difference} Start all with the same command line, code and versions.")


def wait_for_all(processes: int) -> None:
    """Waits until every process has come here. One that is late lives as long as its heartbeats come; without this wait
    the first exchange of arrays would end after a minute."""
    notices = Notices()
    notices.put(f"here/{jax.process_index()}", "yes")
    for process in range(processes):
        while notices.wait(f"here/{process}", 1.0) is None:
            pass


def first_difference(found: list[dict[str, str]]) -> str:
    """A sentence on the first setting in which a process differs from process 0; "" if they all agree.

    Arguments:
        found: the settings of the processes 0, 1, ...
    """
    first = found[0]
    for process, facts in enumerate(found):
        for name in [*first, *(facts.keys() - first.keys())]:
            ours, theirs = first.get(name, "none"), facts.get(name, "none")
            if ours != theirs:
                return f"process {process} has {name} {theirs}, process 0 has {name} {ours}."
    return ""

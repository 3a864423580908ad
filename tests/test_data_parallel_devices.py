"""The work of data parallelism really lies on K devices, and little travels between them."""

from pathlib import Path

import jax
import pytest
from cifar_processes import printed
from replicas import NORMS, SIZE, devices_of, replicated
from small import batches, fed


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("K", [2, 3])
def test_a_batch_is_spread_over_K_devices_and_weights_are_whole_on_each(K, norm):
    data = batches(3, SIZE)
    ours = replicated(K, data[0], batch_norm=norm)
    messages = []
    for stage in ours.engine.stages.values():

        def recording(kind, batch, given, run=stage.run):
            sent = run(kind, batch, given)
            messages.extend([given, {what: m for what, m in sent.items() if what != "loss"}])
            return sent

        stage.run = recording
    fed(ours, data)
    assert len(messages) == 2 * 2 * K * 3
    assert devices_of(messages) == {K}
    assert {leaf.shape[0] for leaf in jax.tree.leaves(messages)} == {SIZE}
    states = [stage.state for stage in ours.engine.stages.values()]
    everything = jax.tree.leaves(states)
    assert {frozenset(leaf.sharding.device_set) for leaf in everything} == {frozenset(jax.devices()[:K])}
    assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves([(s.params, s.opt_state) for s in states]))
    assert devices_of([s.extra for s in states]) == ({K} if norm == "local" else {1})


LONG_RUN = """
from small import *
data = batches(2, 16)
ours = pipeline(8, data[0], method="data_parallel", batch_norm="sync", read_behind=1000)
for i in range(60):
    ours.step(data[i % 2])
print(ours.evaluate(data * 30).images)
"""


@pytest.mark.slow
def test_as_many_devices_as_threads_do_not_wait_for_each_other_forever():
    """Where the host runs ahead on fewer than 8 cores XLA stops the whole process, so it has one of its own."""
    before = "import fdg_jax.transport.devices as d; d.emulate_cpu(8)\n"
    assert printed("-c", before + LONG_RUN, cwd=Path(__file__).resolve().parent, environment={}) == "960\n"

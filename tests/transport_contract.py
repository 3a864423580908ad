"""What every transport owes (fdg_jax.transport.in_process): tests/test_transport.py runs `transport_contract.py K`.

The launcher adds flags where there are several processes. All of them make the same calls. Each checks what comes out
in it, and prints as JSON which stages it has and which messages it was told of.
"""

import argparse
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fdg_jax
from fdg_jax.errors import BadInput
from fdg_jax.schedule import Address, Op
from fdg_jax.stages.shapes import with_examples
from fdg_jax.transport.across_processes import AcrossProcesses
from fdg_jax.transport.devices import Place, all_here, stage_devices
from fdg_jax.transport.in_process import InProcess

EXAMPLES = {1: 4, 2: 3}  # batch: how many it has; the last one of an epoch has fewer
WINDOW = 8  # batches in flight
SLOW = 3_000  # products of matrices, about a second


def content(n, sender):
    """A message of n examples: a tree of arrays of several dtypes, among them a NaN that is not the usual one."""
    numbers = np.arange(n * 6, dtype=np.float32).reshape(n, 6) * sender / 7
    strange = np.array([0x7FC00123] * n, np.uint32).view(np.float32)
    return {"x": numbers, "rest": (strange, numbers.astype(jnp.bfloat16), numbers.astype(np.int32))}


def bits(tree):
    return [(leaf.dtype.name, leaf.shape, np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(tree)]


def made(K):
    """(the transport for where the stages are, the places of all stages by their number)."""
    places = [Place(device) for device in stage_devices(K)[0]]
    if all_here(places):
        return InProcess(places), dict(enumerate(places, 1))
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), content(1, 1))
    transport = AcrossProcesses(places, lambda address, sender, n: with_examples(like, n), WINDOW)
    return transport, dict(enumerate(places, 1))


def sent(transport, address, sender, value):
    """What `send` returns. The message is on the sender's device, as a stage's program leaves it."""
    if sender is None:
        return transport.send(address, value if address.k in transport.places else None, None)
    mine = transport.places.get(sender.k)
    return transport.send(address, jax.device_put(value, mine.device) if mine else None, sender)


def check_messages(transport, K):
    """Up and down between all neighbours, and from the last stage to the first. They are read after all were sent."""
    arrived = {}
    for batch, n in EXAMPLES.items():
        transport.enter(batch, n)
        ways = [(k, k + 1) for k in range(1, K)] + [(k + 1, k) for k in range(1, K)] + [(K, 1)]
        for sender, taker in ways:
            value = content(n, sender)
            message = sent(transport, Address("x", taker, batch), Op("F", sender, batch), value)
            arrived[batch, sender, taker] = message, value
        for taker in (1, K):
            message = sent(transport, Address("labels", taker, batch), None, content(n, 100))
            arrived[batch, None, taker] = message, content(n, 100)
    for (_, _, taker), (message, value) in reversed(arrived.items()):
        assert (message is not None) == (taker in transport.places)
        if message is not None:
            assert bits(message) == bits(value)
            assert {leaf.device for leaf in jax.tree.leaves(message)} == {transport.places[taker].device}


def check_it_does_not_wait(transport, K):
    """A message is sent while it is still being computed."""
    transport.enter(3, 1)
    mine, value = transport.places.get(1), None
    if mine:
        matrix = jax.device_put(np.eye(256, dtype=np.float32), mine.device)
        slow = jax.jit(lambda m: jax.lax.fori_loop(0, SLOW, lambda _, total: total @ m, m)).lower(matrix).compile()
        rest = jax.device_put(content(1, 1)["rest"], mine.device)
        value = {"x": slow(matrix)[:1, :6], "rest": rest}
    message = transport.send(Address("x", K, 3), value, Op("F", 1, 3))
    if value is not None:
        assert not value["x"].is_ready(), "it was finished before it was sent, or sending has waited for it"
    if message is not None:
        np.testing.assert_array_equal(np.asarray(message["x"]), [[1, 0, 0, 0, 0, 0]])


def check_values(transport, K):
    """What one stage has is told to every process; what they have together is gathered; a refusal is everyone's."""
    for k in range(1, K + 1):
        value = {"loss": np.float32(k / 3), "bad": np.int32(k)}
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), value)
        mine = transport.places.get(k)
        told = transport.tell(k, jax.device_put(value, mine.device) if mine else None, like)
        assert bits(told) == bits(value)
    everything = {f"stage {k}": np.arange(k, dtype=np.int64) for k in range(1, K + 1)}
    gathered = transport.gather({f"stage {k}": everything[f"stage {k}"] for k in transport.places})
    assert {name: array.tolist() for name, array in gathered.items()} == {
        name: array.tolist() for name, array in everything.items()
    }
    transport.agree(None)
    refusal = BadInput("stage K cannot do this. Use another one.")
    with pytest.raises(BadInput, match=str(refusal)):
        transport.agree(refusal if K in transport.places else None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("K", type=int)
    parser.add_argument("--coordinator")
    parser.add_argument("--process-id", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    if given.processes > 1:
        fdg_jax.join_processes(given.coordinator, given.process_id, given.processes, given.K)
    else:
        fdg_jax.emulate_cpu(given.K)
    transport, places = made(given.K)
    assert transport.here.device in [place.device for place in transport.places.values()]
    assert all(transport.places[k].device == places[k].device for k in transport.places)
    noted = []
    transport.watch(lambda what, k, batch, message: noted.append([what, k, batch]))
    check_messages(transport, given.K)
    check_it_does_not_wait(transport, given.K)
    check_values(transport, given.K)
    print(json.dumps({"process": given.process_id, "stages": sorted(transport.places), "noted": noted}))
    if given.processes > 1:
        jax.distributed.shutdown()


if __name__ == "__main__":
    main()

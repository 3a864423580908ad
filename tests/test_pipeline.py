"""What the host loop and the stages promise beside the numbers: places, traces, copies, and that nothing waits."""

import ast
import operator
import pathlib
import time
from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small import CurrentPart, batches, cross_entropy, fed, parts, pipeline, recipe

from fdg_jax.engine import host_loop
from fdg_jax.methods.fdg import fdg
from fdg_jax.stages import functions as pure


def test_the_host_loop_is_one_page_and_imports_only_collections_and_types():
    path = pathlib.Path(host_loop.__file__)
    tree = ast.parse(path.read_text())
    imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert imported <= {"collections", "collections.abc", "typing"}
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.Import)]
    assert len(path.read_text().splitlines()) <= 68


@pytest.mark.slow
def test_each_stages_arrays_lie_on_its_own_device():
    K = 3
    data = batches(2 * K + 2)
    ours = pipeline(K, data[0])
    for batch in data:
        ours.step(batch)
    for k, stage in ours.engine.stages.items():
        mine = {jax.devices()[k - 1]}
        held = [(stash.closure, stash.params, stash.extra, stash.x) for stash in stage.stashes]
        for leaf in jax.tree.leaves((stage.state, held)):
            assert leaf.devices() == mine
    for address, message in ours.engine.loop.mail.items():
        assert all(leaf.devices() == {jax.devices()[address.k - 1]} for leaf in jax.tree.leaves(message))


@pytest.mark.parametrize("order", ["backward-first", pytest.param("forward-first", marks=pytest.mark.slow)])
def test_stage_k_holds_two_times_K_minus_k_stashes(order):
    K = 3
    data = batches(2 * K + 2)
    ours = pipeline(K, data[0], order=order)
    for t, batch in enumerate(data, 1):
        ours.step(batch)
        held = [len(stage.stashes) for stage in ours.engine.stages.values()]
        assert held == [min(max(t - k + 1, 0), 2 * (K - k)) for k in range(1, K + 1)]
    ours.drain()
    assert [len(stage.stashes) for stage in ours.engine.stages.values()] == [0] * K
    assert not ours.engine.loop.mail


def test_one_compilation_per_stage_and_direction(monkeypatch):
    K, data, functions = 2, batches(12), pure.functions

    def counting(*arguments):
        made = functions(*arguments)
        # chex counts a function by its source, which the K stages share: K traces are one a stage.
        once = [chex.assert_max_traces(part, n=K) for part in (made.forward, made.backward)]
        return pure.Functions(*once, made.outputs)

    monkeypatch.setattr("fdg_jax.stages.functions.functions", counting)
    chex.clear_trace_counter()
    ours = pipeline(K, data[0], stages=parts(K, CurrentPart), weights="current")
    fed(ours, data)
    assert ours.updates == [12] * K
    with pytest.raises(AssertionError, match="traced > 2 times"):  # the counter does count
        ours.step((data[0][0][:7], data[0][1][:7]))


def test_weights_are_not_copied_into_closures():
    """A stash's closure holds activations; the weights it refers to are the stage's own arrays."""
    data = batches(6)
    ours = pipeline(2, data[0])
    for batch in data:
        ours.step(batch)
    stage = ours.engine.stages[1]
    weights = {leaf.shape for leaf in jax.tree.leaves(stage.layout.params.shapes)}
    kernel = (8, 12)
    assert kernel in weights
    assert kernel not in {leaf.shape for stash in stage.stashes for leaf in jax.tree.leaves(stash.closure)}
    newest = stage.stashes[-1]
    assert all(map(operator.is_, jax.tree.leaves(newest.params), jax.tree.leaves(stage.state.params)))


@pytest.mark.slow
def test_a_scan_makes_no_implicit_transfer():
    """tests/test_methods.py says so of the host loop."""
    data = batches(12)
    ours = pipeline(3, data[0], engine="scan", preprocess=lambda x, step: x + 0 * step)
    with jax.transfer_guard("disallow"):
        fed(ours, data)
        assert len(ours.losses(wait=True)) == 12


class Slow(nn.Module):
    """About 10 ms of matrix products forward, 20 ms backward, on one core."""

    @nn.compact
    def __call__(self, x):
        for _ in range(6):
            x = jnp.tanh(nn.Dense(768)(x))
        return x


@pytest.mark.slow
def test_the_loop_never_waits_for_a_device():
    """All dispatches of ten ticks return in under a tenth of the time the devices need for them.

    One turn of three has to show it: another process on the core makes a dispatch late now and then, a loop that waits
    is late in every turn.
    """
    x, y = np.ones((512, 768), np.float32), np.zeros(512, np.int32)
    stages, gentle = [Slow(), Slow(), Slow()], optax.sgd(1e-3)
    ours = pipeline(3, (x, y), stages=stages, optimizer=gentle, read_behind=64)
    for _ in range(6):  # compile everything, fill the pipeline
        ours.step((x, y))
    turns = []
    for _ in range(3):
        ours.wait()
        start = time.perf_counter()
        for _ in range(10):  # a CPU device takes 32 dispatches and then blocks by itself
            ours.step((x, y))
        dispatched = time.perf_counter() - start
        ours.wait()
        turns.append((dispatched, time.perf_counter() - start))
        if dispatched < turns[-1][1] / 10:
            return
    raise AssertionError(f"seconds of dispatching, of computing: {turns}")


def test_no_more_than_read_behind_losses_are_unread(monkeypatch):
    monkeypatch.setattr("fdg_jax.machine.jax_internals.is_ready", lambda array: False)
    data, limit = batches(12), 5
    ours = pipeline(2, data[0], read_behind=limit)
    for t, batch in enumerate(data, 1):
        ours.step(batch)
        assert len(ours.engine.losses.pending) == min(t - 1, limit)  # batch t meets stage 2 a tick later


def test_a_wrong_schedule_is_an_error_and_never_a_wrong_number():
    data = batches(4)
    ours = pipeline(3, data[0])
    loop = ours.engine.loop
    good = fdg(3)
    loop.schedule = good._replace(tick=lambda t, last: good.tick(t + 1, last))  # every stage a tick early
    with pytest.raises(AssertionError, match=r"t=1 stage k=1 needs x of batch 2, which has not been sent"):
        ours.step(data[0])


@pytest.mark.slow
def test_two_stages_on_one_device_train_as_on_two():
    data = batches(9)
    results = []
    for devices in (None, [jax.devices()[0]] * 3):
        ours = pipeline(3, data[0], devices=devices)
        fed(ours, data)
        results.append(ours.parameters_sha256())
    assert results[0] == results[1]


@pytest.mark.slow
def test_an_optimizer_that_keeps_the_weights_themselves_survives_donation():
    """optax.ema-like states start as the weights' own arrays; donating those would delete the weights."""
    averaging = optax.GradientTransformation(
        lambda params: params,
        lambda updates, state, params=None: (updates, jax.tree.map(lambda s, u: 0.9 * s + u, state, updates)),
    )
    data = batches(5)
    ours = pipeline(2, data[0], optimizer=optax.chain(recipe(), averaging))
    fed(ours, data)
    assert np.isfinite([m.loss for m in ours.losses(wait=True)]).all()


def test_two_loops_share_a_pipeline():
    """Each runs its own stages and delivers into the other's mail, as two processes would."""
    data, K, cut = batches(8), 3, 1
    ours, donor = pipeline(K, data[0]), pipeline(K, data[0])
    fed(ours, data)
    stages, arrived = donor.engine.stages, []
    loops = []

    def send(mine, address, array, sender):
        owner = loops[0] if address.k <= cut else loops[1]
        if array is not None:  # else the other loop sends it
            owner.mail[address] = stages[address.k].place.put_batch(array)
        return owner.mail.get(address) if address.k in mine else None

    for mine in (range(1, cut + 1), range(cut + 1, K + 1)):
        local = {k: stages[k] for k in mine}
        loops.append(host_loop.HostLoop(fdg(K), local, partial(send, mine), lambda batch, loss: arrived.append(loss)))
    for x, y in data:
        for loop in loops:
            loop.feed([{"x": x, "labels": y}])
    last = loops[0].t
    for t in range(last + 1, fdg(K).ticks(last) + 1):
        for loop in loops:
            loop.tick(t, last)
    assert not loops[0].mail and not loops[1].mail
    losses = [float(loss) for loss in arrived if loss is not None]  # the lower loop learns only that there is one
    assert len(arrived) == 2 * len(losses)
    assert losses == [m.loss for m in ours.losses(wait=True)]
    assert donor.parameters_sha256() == ours.parameters_sha256()


@pytest.mark.slow
def test_evaluation_in_flight_changes_nothing():
    data = batches(10)
    results = []
    for peek in (False, True):
        ours = pipeline(3, data[0])
        for batch in data:
            ours.step(batch)
            if peek:
                assert ours.evaluate(data[:2]).images == 32
        results.append(ours.state_sha256())
    assert results[0] == results[1]


def test_evaluation_is_the_composed_network():
    data = batches(3)
    ours = pipeline(2, data[0])
    ours.step(data[0])
    ours.drain()
    outputs = []
    for x, _ in data:
        for module, variables in zip(parts(2), jax.device_get(ours.params), strict=True):
            x = module.apply(variables, x, train=False)
        outputs.append(x)
    labels = np.concatenate([y for _, y in data])
    found = ours.evaluate(data)
    wrong = np.mean(np.argmax(np.concatenate(outputs), -1) != labels)
    assert found.error_percent == pytest.approx(100 * wrong)
    # mean over three equal batches against one sum: float32 rounding
    assert found.loss == pytest.approx(float(cross_entropy(np.concatenate(outputs), labels)), abs=1e-5)

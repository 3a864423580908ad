"""The front door: what fits is taken, what does not is refused before anything compiles, with facts and a way out."""

import time

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from small import Part, batches, cross_entropy, parts, pipeline, recipe

import fdg_jax
from fdg_jax.errors import BadInput

DATA = batches(3)


def refused(match, stages=None, example=None, variables=None, init=True, loss=cross_entropy, **options):
    def attempt():
        made = fdg_jax.Pipeline(stages or parts(2), loss, recipe(), **options)
        if init:
            made.init(jax.random.PRNGKey(0), example or DATA[0], variables)

    with pytest.raises(BadInput, match=match):
        attempt()


class Image(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Conv(4, (3, 3))(x).reshape(x.shape[0], -1, 3)  # 3 need not divide what comes


class OnlyEvaluates(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        return nn.Dense(5)(x if not train else x.reshape(3, -1))


WEIGHTED = fdg_jax.Weighted(DATA[0][1], np.ones(16, np.float32))


@pytest.mark.parametrize(("options", "match"), [
    ({"stages": [nn.Dense(7), Image()]}, r"stage k=2 \(Image\) cannot take float32\[16, 7\]; "
                                         r"stage k=1 takes float32\[16, 8\] and gives float32\[16, 7\]"),
    ({"stages": [Image(), nn.Dense(5)]}, r"k=1 \(Image\) cannot take float32\[16, 8\]; the input is float32\[16, 8\]"),
    ({"stages": [OnlyEvaluates()]}, r"stage k=1 \(OnlyEvaluates\) cannot take float32\[16, 8\]"),
    ({"variables": [{}]}, "2 stages but 1 sets of variables"),
    ({"loss": optax.softmax_cross_entropy_with_integer_labels}, r"is float32\[16\], not one number"),
    ({"example": (DATA[0][0], np.zeros((16, 3, 3), np.int32))}, "the loss cannot take outputs"),
    ({"example": (DATA[0][0], WEIGHTED)}, r"use labels\.labels in the loss, and labels\.mean\(values\)"),
    ({"preprocess": lambda x, step: x @ np.zeros((9, 2))}, r"preprocess cannot take float32\[16, 8\]"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_with_its_shapes(options, match):
    refused(match, **options)


@pytest.mark.parametrize(("options", "match"), [
    ({"beta": 1.5}, r"beta=1\.5: it must lie in \(0, 1\]"),
    ({"method": "fdgg"}, "Did you mean fdg"),
    ({"engine": "turbo"}, "Use pipeline .*, delay-line or scan"),
    ({"weights": "fresh"}, "stashed .* or current"),
    ({"order": "sideways"}, "backward-first"),
    ({"engine": "delay-line", "weights": "current"}, "Use engine='pipeline', or weights='stashed'"),
    ({"method": "bp", "beta": 0.5}, "^beta=0.5: method bp has no such option"),
    ({"betta": 0.5}, r"^betta=0\.5: .*\. Did you mean beta\? Leave it out"),
    ({"devices": [None]}, "K=2 stages need 2 devices, but 1 were given"),
])  # fmt: skip
def test_options_that_make_no_sense_are_refused_at_once(options, match):
    refused(match, init=False, **options)


def test_stepping_before_init_says_what_to_do():
    with pytest.raises(BadInput, match="Call init"):
        fdg_jax.Pipeline(parts(2), cross_entropy, recipe()).step(DATA[0])


def test_nothing_compiles_before_the_shapes_are_checked(caplog):
    jax.random.PRNGKey(0)  # which `refused` needs
    with jax.log_compiles():
        refused("cannot take", stages=[nn.Dense(7), Image()])
        assert "Finished XLA compilation" not in caplog.text
        now = time.time()  # in no cache
        jax.jit(lambda x: x - now)(1.0)
        assert "Finished XLA compilation" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["pipeline", "scan"])
def test_the_caller_may_refill_his_buffers_at_once(engine):
    """A CPU device would otherwise compute on what the buffer holds by then; 64-byte aligned memory is aliased."""
    ours, other = pipeline(2, DATA[0], engine=engine), pipeline(2, DATA[0], engine=engine)
    raw = np.zeros(16 * 8 * 4 + 64, np.uint8)
    start = -raw.ctypes.data % 64
    x, y = raw[start : start + 16 * 8 * 4].view(np.float32).reshape(16, 8), np.zeros(16, np.int32)
    for batch in batches(9):
        ours.step(batch)
        x[:], y[:] = batch
        other.step((x, y))
        x[:], y[:] = 7, 0
    ours.drain()
    other.drain()
    assert ours.parameters_sha256() == other.parameters_sha256()


@pytest.mark.parametrize("engine", ["pipeline", pytest.param("scan", marks=pytest.mark.slow)])
def test_parameters_once_taken_stay(engine):
    ours = pipeline(2, DATA[0], engine=engine)
    taken = ours.params
    ours.step(DATA[0])
    ours.drain()
    assert all(np.isfinite(leaf).all() for leaf in map(np.asarray, jax.tree.leaves(taken)))


@pytest.fixture(scope="module")
def untouched():
    """A pipeline for batches that it refuses."""
    return pipeline(2, DATA[0])


@pytest.mark.parametrize(("batch", "match"), [
    ((np.zeros((16, 7), np.float32), DATA[0][1]), r"k=1 \(Part\) cannot take float32\[16, 7\], from a batch of 16"),
    ((np.zeros((16, 8, 1), np.float32), DATA[0][1]), r"float32\[16, 8, 1\], but at init they were float32\[16, 8\]"),
    ((DATA[0][0], DATA[0][1][:9]), r"differ in length: \[9, 16\]"),
    ((DATA[0][0], DATA[0][1].astype(np.float32)), "the labels are float32"),
    (DATA[0][0], r"step\(\(inputs, labels\)\)"),
    (((DATA[0][0], DATA[0][0]), DATA[0][1]), "but at init they were"),
])  # fmt: skip
def test_a_batch_unlike_the_example_is_refused_before_anything_is_dispatched(untouched, batch, match):
    ours = untouched
    with pytest.raises(BadInput, match=match):
        ours.step(batch)
    assert ours.engine.loop.t == 0


@pytest.mark.slow
def test_sequences_of_other_lengths_are_trained_on_evaluated_and_restored():
    def batch(T):
        return np.arange(4 * T, dtype=np.int32).reshape(4, T) % 5, np.arange(4 * T, dtype=np.int32).reshape(4, T) % 3

    def made(**options):
        return pipeline(2, batch(5), stages=[nn.Embed(5, 4), nn.Dense(3)], optimizer=optax.sgd(0.1), **options)

    ours, again = made(), made()
    for T in (5, 7, 3, 7):
        ours.step(batch(T))
    again.restore(ours.state())  # batches of two lengths are in flight
    for one in (ours, again):
        one.step(batch(5))
        one.drain()
    assert again.state_sha256() == ours.state_sha256() and ours.updates == [5, 5]
    assert ours.predict(batch(9)[0]).shape == (4, 9, 3) and np.isfinite(ours.evaluate([batch(9)]).loss)
    with pytest.raises(BadInput, match=r"int32\[4, 7\], .*at init .*int32\[4, 5\], .* method dgl cannot change shapes"):
        made(method="dgl").step(batch(7))


@pytest.mark.slow
def test_indices_outside_the_images_are_refused():
    x, y = np.concatenate([a for a, _ in DATA]), np.concatenate([b for _, b in DATA])
    for engine in ("pipeline", "scan"):
        with pytest.raises(BadInput, match="0 to 48, but there are 48 images"):
            pipeline(2, DATA[0], engine=engine).train(x, y, np.array([[0, 48]], np.int32))


def test_sharing_devices_is_said(monkeypatch):
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    with pytest.warns(UserWarning, match="K=2 stages share 1 CPU device"):
        fdg_jax.Pipeline(parts(2), cross_entropy, recipe())


@pytest.mark.slow
def test_a_caller_who_never_asks_for_losses_does_not_collect_them_for_ever(monkeypatch):
    monkeypatch.setattr("fdg_jax.engine.losses.MOST_KEPT", 4)
    ours = pipeline(1, DATA[0])
    for batch in batches(9):
        ours.step(batch)
    assert [m.step for m in ours.losses(wait=True)] == [6, 7, 8, 9]


def test_train_is_step_by_indices_on_both_engines():
    x, y = np.concatenate([a for a, _ in DATA]), np.concatenate([b for _, b in DATA])
    rows = np.random.default_rng(3).permutation(48).astype(np.int32).reshape(3, 16)
    results = []
    for how in ("step", "pipeline", "delay-line"):
        ours = pipeline(2, DATA[0], engine="pipeline" if how == "step" else how)
        if how == "step":
            for row in rows:
                ours.step((x[row], y[row]))
        else:
            ours.train(x, y, rows)
        ours.drain()
        results.append((ours.parameters_sha256(), ours.losses(wait=True)))
    assert results[0] == results[1] == results[2]


def test_the_parameter_hash_does_not_depend_on_where_the_network_is_cut():
    pipe = pipeline(1, DATA[0])

    def made(groups):
        whole = {f"d{i}": {"kernel": np.full((2, 2), i, np.float32)} for i in range(4)}
        pipe.engine.stage_variables = lambda: [{"params": {name: whole[name] for name in group}} for group in groups]
        return pipe.parameters_sha256()

    whole = made([["d0", "d1", "d2", "d3"]])
    assert whole == made([["d0"], ["d1", "d2", "d3"]]) == made([["d0", "d1"], ["d2"], ["d3"]])


def test_identical_stages_start_from_different_weights():
    ours = pipeline(2, batches(1, features=12)[0], stages=[Part(12), Part(12)])
    kernels = [np.asarray(stage["params"]["Dense_0"]["kernel"]) for stage in ours.params]
    assert np.abs(kernels[0] - kernels[1]).max() > 0.1

"""Odd modules, optimizers, losses and arrays of a user's own: they work, or one sentence says why not, and nothing is
lost by it."""

import warnings
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
import small
from small import CLASSES, batches, close, cross_entropy, fed, parts, pipeline, recipe

import fdg_jax
from fdg_jax.checkpoint import folder
from fdg_jax.errors import BadInput
from fdg_jax.methods.fdg import fdg

DATA = batches(8)
stepped = partial(small.stepped, DATA)
X, Y = DATA[0]


def deleted(array):
    array = jnp.array(array)
    array.delete()
    return array


class Shifted(nn.Module):
    """Its first shift is the mean of the inputs (values=True), or of their shape."""

    values: bool

    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(x - self.param("shift", lambda _: x.mean(0) if self.values else jnp.ones(x.shape[1:])))


def test_first_variables_made_of_the_values_of_inputs_are_refused_and_others_are_not():
    def init(module, variables=None):
        return fdg_jax.Pipeline([module], cross_entropy, recipe(1)).init(jax.random.key(0), DATA[0], variables)

    with pytest.raises(BadInput, match=r"k=1 \(Shifted\): its initial variables depend on the values of its inputs"):
        init(Shifted(True))
    init(Shifted(True), [Shifted(True).init(jax.random.key(0), X)])
    init(Shifted(False))


class Fork(nn.Module):
    """Gives numbers and integers to the next stage."""

    @nn.compact
    def __call__(self, x):
        y, sign = nn.Dense(6)(x), (x[:, 0] > 0).astype(jnp.int32)
        return {"y": y, "more": (sign,)}


class Join(nn.Module):
    @nn.compact
    def __call__(self, found):
        return nn.Dense(CLASSES)(found["y"]) + nn.Embed(2, CLASSES)(found["more"][0])


@pytest.mark.slow
def test_integers_between_stages_go_to_disk_and_back(tmp_path):
    def made():
        return pipeline(2, DATA[0], stages=[Fork(), Join()])

    ours, again = made(), made()
    for batch in DATA[:5]:
        ours.step(batch)
    folder.save(tmp_path / "c", ours.state())
    again.restore(folder.load(tmp_path / "c")[0])
    assert again.state_sha256() == ours.state_sha256()
    for one in (ours, again):
        one.step(DATA[5])
        one.drain()
    assert again.state_sha256() == ours.state_sha256()


def test_a_pipeline_is_used_outside_of_a_mesh():
    ours = pipeline(2, DATA[0])
    calls = [lambda: pipeline(2, DATA[0]), lambda: ours.step(DATA[0]), lambda: ours.predict(X), ours.drain]
    with jax.set_mesh(jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])):
        for call in calls:
            with pytest.raises(BadInput, match=r"jax.set_mesh is in force, with the axes \{'data': 2\}.*outside of"):
                call()
    ours.step(DATA[0])
    assert not ours.interrupted


class KeyKeeping(nn.Module):
    """Keeps a random key in a collection of its own."""

    @nn.compact
    def __call__(self, x):
        key = self.variable("noise", "key", lambda: jax.random.key(3))
        x = x + jax.random.normal(key.value, x.shape)
        key.value = jax.random.fold_in(key.value, 1)
        return nn.Dense(CLASSES)(x)


class Counting(nn.Module):
    """Counts its calls in a collection of its own."""

    @nn.compact
    def __call__(self, x):
        calls = self.variable("counters", "calls", lambda: jnp.zeros((), jnp.int32))
        calls.value += 1
        return nn.Dense(CLASSES)(x)


NOISE = optax.chain(optax.add_noise(0.01, 0.5, jax.random.key(3)), optax.sgd(0.1))


@pytest.mark.slow
def test_an_optimizer_with_a_random_key_in_its_state_goes_on_exactly():
    options = {"optimizer": NOISE, "stages": [Counting(), Counting()]}  # few leaves: noise compiles long
    ours, again = stepped(**options), pipeline(2, DATA[0], **options)
    again.restore(ours.state())
    for one in (ours, again):
        one.step(DATA[5])
    assert again.state_sha256() == ours.state_sha256()
    assert {np.asarray(value).dtype.kind for value in ours.state().values()} <= set("fiu")


@pytest.mark.slow
def test_a_collection_of_the_modules_own_is_carried_and_evaluation_leaves_it_alone():
    ours = stepped(4, stages=[Counting(), KeyKeeping()])
    before = ours.state_sha256()
    assert ours.evaluate(DATA[:2]).images == 32
    assert ours.state_sha256() == before
    assert int(ours.params[0]["counters"]["calls"]) == 5  # once in init
    key = jax.random.key(3)
    for _ in range(4):  # once in init; stage 2 has not seen the fourth batch yet
        key = jax.random.fold_in(key, 1)
    found = ours.params[1]["noise"]["key"]
    np.testing.assert_array_equal(jax.random.key_data(found), jax.random.key_data(key))


def test_a_loss_without_a_gradient_is_refused_at_init():
    for loss, dtype in (
        (lambda outputs, labels: jnp.sum(jnp.argmax(outputs, -1) != labels), "int32"),
        (lambda outputs, labels: jnp.sum(outputs) * 1j, "complex64"),
    ):
        with pytest.raises(BadInput, match=rf"is {dtype}\[\], which has no gradient"):
            fdg_jax.Pipeline(parts(2), loss, recipe()).init(jax.random.key(0), DATA[0])


def test_arrays_that_cannot_be_used_or_do_not_fit_are_refused_and_no_batch_is_counted():
    ours = pipeline(2, DATA[0])
    before = ours.state_sha256()
    wrong = [
        ((deleted(X), Y), r"the inputs: float32\[16, 8\] has been deleted or donated"),
        ((X, deleted(Y)), r"the labels: int32\[16\] has been deleted or donated"),
        ((np.ma.masked_array(X), Y), r"the inputs: float32\[16, 8\] is a masked array"),
        ((jax.ShapeDtypeStruct(X.shape, X.dtype), Y), r"the inputs: float32\[16, 8\] is only a shape"),
    ]
    for batch, match in wrong:
        with pytest.raises(BadInput, match=match):
            ours.step(batch)
        with pytest.raises(BadInput, match=match):
            ours.evaluate([batch])
    with pytest.raises(BadInput, match=r"images: .* has been deleted"):
        ours.train(deleted(X), Y, np.zeros((1, 4), np.int32))
    for batch, match in (
        ((X[:, :7], Y), r"evaluate cannot take inputs float32\[16, 7\] .*stage 1 takes float32\[16, 8\]"),
        ((X, Y.astype(np.float32)), r"the labels are float32\[16\], but at init they were int32\[16\]"),
        ((X, {"class": Y}), r"the labels are int32\[16\], but at init"),
    ):
        with pytest.raises(BadInput, match=match):
            ours.evaluate([DATA[0], batch])
    # Evaluation takes another dtype in front of a transform, and other integers as labels.
    pixels = np.round(100 * X).astype(np.int8)
    assert ours.evaluate([(pixels, Y.astype(np.uint8))], lambda x: x.astype(jnp.float32) / 100).images == 16
    assert ours.state_sha256() == before and ours.engine.entered == 0 and not ours.interrupted


def test_a_preprocess_that_fails_in_a_step_leaves_no_trace():
    def preprocess(x, step):
        if len(x) == 7:
            raise ValueError("no sevens")
        return x

    ours = pipeline(2, DATA[0], preprocess=preprocess)
    with pytest.raises(ValueError, match="no sevens"):
        ours.step((X[:7], Y[:7]))
    assert ours.engine.entered == 0 and not ours.interrupted


def test_given_variables_are_copied_and_must_be_arrays_that_exist():
    given = pipeline(2, DATA[0]).params
    ours = pipeline(2, DATA[0], variables=given)
    before = ours.parameters_sha256()
    jax.tree.map(lambda leaf: leaf.delete(), given)
    ours.step(DATA[0])
    assert ours.updates == [0, 0] and ours.parameters_sha256() == before
    with pytest.raises(BadInput, match=r"the variables of stage k=1: float32\[12\] has been deleted"):
        pipeline(2, DATA[0], variables=given)
    with pytest.raises(BadInput, match="variables of stage k=1 are of type list"):
        pipeline(2, DATA[0], variables=[[], []])
    loose = [jax.device_get(stage) for stage in ours.params]
    loose[1]["params"]["Dense_0"]["bias"] = 0.0
    with pytest.raises(BadInput, match=r"bias.* of stage k=2 is a float, not an array"):
        pipeline(2, DATA[0], variables=loose)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_warned_of_once_with_its_batch_unless_updates_are_guarded():
    batch = (X, Y + CLASSES)
    ours, guarded = pipeline(2, DATA[0]), pipeline(2, DATA[0], guard=True)
    ours.step(DATA[0])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fed(ours, [batch, batch, batch])
        assert [metrics.step for metrics in ours.losses(wait=True)] == [1, 2, 3, 4]
        guarded.step(batch)
        guarded.drain()
        assert np.isnan(guarded.losses(wait=True)[0].loss)
    assert len(told) == 1
    assert "the loss of batch 2 is nan" in str(told[0].message) and "guard=True" in str(told[0].message)


def mixup(x, y, step):
    """Mixes each example with another one, by an amount that depends on the step; labels become shares of classes."""
    share = 0.5 + 0.5 * jax.random.uniform(jax.random.fold_in(jax.random.key(7), step))
    mixed = lambda a: share * a + (1 - share) * a[::-1]  # noqa: E731
    return mixed(x), mixed(jax.nn.one_hot(y, CLASSES))


def soft(outputs, labels):
    """The loss of classes (in evaluation) or of shares of classes."""
    shares = jax.nn.one_hot(labels, CLASSES) if labels.ndim == 1 else labels
    return optax.softmax_cross_entropy(outputs, shares).mean()


def mixing(engine="pipeline", loss=soft, preprocess=mixup, **options):
    stages = [nn.Sequential([nn.Dense(12), nn.tanh]), nn.Dense(CLASSES)]
    made = fdg_jax.Pipeline(stages, loss, recipe(), engine=engine, preprocess=preprocess, **options)
    return made.init(jax.random.key(0), DATA[0])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["pipeline", "scan"])
def test_a_preprocess_of_inputs_and_labels_trains_as_the_oracle_on_what_it_makes(engine):
    ours = mixing(engine)
    start = fed(ours, DATA)
    forwards = [lambda params, extra, x, m=m: (m.apply({"params": params}, x), extra) for m in ours.modules]
    mixed = [mixup(*batch, step) for step, batch in enumerate(DATA)]
    true, losses, _ = oracle.stashed(forwards, soft, recipe(), start, mixed, fdg(2).staleness)
    close(ours.params, true, rtol=0, atol=1e-5)  # other programs round sums differently
    np.testing.assert_allclose([each.loss for each in ours.losses(wait=True)], losses, rtol=1e-5)
    scores = jax.nn.log_softmax(ours.predict(X))
    assert ours.evaluate([(X, Y)]).loss == pytest.approx(-float(scores[np.arange(16), Y].mean()), rel=1e-5)
    assert ours.evaluate([(X, np.eye(CLASSES, dtype=np.float32)[Y])]).loss == ours.evaluate([(X, Y)]).loss


@pytest.mark.parametrize(("preprocess", "said"), [
    (lambda x: x, r"preprocess is a function of 1 arguments, not preprocess\(inputs, step\) or preprocess\("),
    (lambda *batch: batch, r"preprocess is the function <lambda>, not preprocess\(inputs, step\) or"),
    (lambda x, y, step: x, r"returned float32\[16, 8\], not \(inputs, labels\)\. Return both, or take \("),
    (lambda x, y, step: (x @ y, y), r"preprocess cannot take float32\[16, 8\] with labels int32\[16\]"),
    (lambda x, y, step: (x, x), r"the loss cannot take outputs float32\[16, 5\] with labels float32\[16, 8\]"),
])  # fmt: skip
def test_a_preprocess_that_is_none_or_makes_what_does_not_fit_is_refused(preprocess, said):
    with pytest.raises(BadInput, match=said):
        mixing(preprocess=preprocess)

"""Modules as they come: other switches, several inputs, auxiliary outputs, plain functions, shared weights."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from small import CLASSES, batches, cross_entropy, mostly_slow

import fdg_jax
from fdg_jax import from_functions, stage, tie
from fdg_jax.errors import BadInput

DATA = batches(6)
MASK = np.array([1, 1, 0.5, 0], np.float32)


def trained(stages, data=DATA, method="fdg", **options):
    """A pipeline after some batches, drained."""
    options = {"optimizer": optax.adam(1e-2), "loss": cross_entropy, **options}
    ours = fdg_jax.Pipeline(stages, method=method, **options).init(jax.random.key(0), data[0])
    for batch in data:
        ours.step(batch)
    ours.drain()
    return ours


def same(one, other, x=DATA[0][0], exactly=False):
    """Asserts that two pipelines have the same weights and outputs. Two modules that compute the same are two programs,
    in which XLA may join operations otherwise: 7e-9 seen at weights of order 1."""
    ours, theirs = ([each.get("params", {}) for each in pipeline.export()] for pipeline in (one, other))
    assert jax.tree.leaves(ours)
    close = {"rtol": 0, "atol": 0 if exactly else 1e-6}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **close), ours, theirs)
    np.testing.assert_allclose(one.predict(x), other.predict(x), **close)


class Told(nn.Module):
    """What its author would write for this library. The names of its parts are those of nn.Sequential."""

    width: int = CLASSES

    def setup(self):
        self.layers = [nn.Dense(self.width), nn.BatchNorm(), nn.Dropout(0.3)]

    def __call__(self, x, train: bool):
        dense, norm, dropout = self.layers
        return dropout(norm(dense(x), use_running_average=not train), deterministic=not train)


class Deterministic(Told):
    def __call__(self, x, deterministic: bool = True):
        return Told.__call__(self, x, not deterministic)


class Field(Told):
    testing: bool = True

    def __call__(self, x):
        return Told.__call__(self, x, not self.testing)


class Training(Told):
    training: bool = False

    def __call__(self, x):
        return Told.__call__(self, x, self.training)


def sequence():
    return nn.Sequential([nn.Dense(CLASSES), nn.Sequential([nn.BatchNorm(), nn.Dropout(0.3)])])


class Inner(nn.Module):
    def setup(self):
        self.layers = [nn.BatchNorm(), nn.Dropout(0.3)]

    def __call__(self, x, train: bool):
        norm, dropout = self.layers
        return dropout(norm(x, use_running_average=not train), deterministic=not train)


class ByHand(nn.Module):
    """Has the parts of `sequence`, and tells them."""

    def setup(self):
        self.layers = [nn.Dense(CLASSES), Inner()]

    def __call__(self, x, train: bool):
        return self.layers[1](self.layers[0](x), train)


AS_THEY_COME = {
    "argument": (Deterministic, Told),
    "parts": (lambda: stage(sequence()), ByHand),
    "field": (lambda: stage(Training()), Told),
    "field that was given": (lambda: stage(Training(training=True), switch="training"), Told),
    "other name": (lambda: stage(Field(), switch={"testing": False}), Told),
}


@pytest.mark.parametrize("name", mostly_slow(AS_THEY_COME, "argument"))
def test_a_switch_is_set_whatever_it_is_called_and_wherever_it_is(name):
    theirs, own = AS_THEY_COME[name]
    same(trained([theirs()], method="bp"), trained([own()], method="bp"))


def test_what_is_meant_to_stay_stays():
    frozen = nn.Sequential([nn.Dense(CLASSES), nn.BatchNorm(use_running_average=True)])
    statistics = trained([stage(frozen, switch={})]).export()[0]["batch_stats"]["layers_1"]
    np.testing.assert_array_equal(statistics["mean"], np.zeros(CLASSES))
    chosen = stage(Training(training=False), switch={})
    np.testing.assert_array_equal(trained([chosen]).export()[0]["batch_stats"]["layers_1"]["var"], np.ones(CLASSES))


class Remat(nn.Module):
    """A switch with the value for evaluation as its default."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        return nn.Dropout(0.5)(nn.Dense(CLASSES)(x), deterministic=not train)


class InSetup(nn.Module):
    training: bool = True

    def setup(self):
        self.dense, self.dropout = nn.Dense(CLASSES), nn.Dropout(0.5, deterministic=not self.training)

    def __call__(self, x):
        return self.dropout(self.dense(x))


DROPPING = {
    "remat": lambda: nn.remat(Remat, static_argnums=(2,))(),
    "remat by name": lambda: stage(nn.remat(Remat, static_argnums=(2,))(), inputs="h"),
    "jit": lambda: nn.jit(Remat, static_argnums=(2,))(),
    "setup": lambda: stage(InSetup()),
}


@pytest.mark.parametrize("name", mostly_slow(DROPPING, "remat by name", "setup"))
def test_a_part_that_is_reached_drops_in_training_and_not_in_evaluation(name):
    x, y = DATA[0]
    batch = ({"h": x} if "name" in name else x), y
    ours = trained([DROPPING[name]()], [batch] * 3, optimizer=optax.sgd(0.0), method="bp")
    assert len({each.loss for each in ours.losses(wait=True)}) == 3
    np.testing.assert_array_equal(ours.predict(batch[0]), ours.predict(batch[0]))


class Handed(nn.Module):
    """Hands a switch of its own on, under a name that says nothing."""

    off: bool

    @nn.compact
    def __call__(self, x):
        return nn.Dropout(0.5, deterministic=self.off)(nn.Dense(CLASSES)(x))


def test_a_switch_that_a_module_hands_on_from_a_field_is_refused_in_a_stage_too():
    for module in (Handed(True), stage(Handed(True))):
        with pytest.raises(BadInput, match="has a field `deterministic`, which nobody would set"):
            trained([module])
    trained([stage(Handed(True), switch={"off": False})])


class Masked(nn.Module):
    """Several inputs, and an auxiliary output."""

    width: int
    two: bool = False

    @nn.compact
    def __call__(self, x, mask, deterministic=True):
        y = nn.Dropout(0.2, deterministic=deterministic)(nn.Dense(self.width)(x) * mask[:, None])
        return (y, jnp.mean(y**2)) if self.two else y


class MaskedByHand(nn.Module):
    """What `stage` is to spare."""

    width: int
    last: bool = False
    weight: float = 0.0

    def setup(self):
        self.inner = Masked(self.width, two=True)
        nn.share_scope(self, self.inner)

    def __call__(self, message, train):
        y, aux = self.inner(message["h"], message["mask"], deterministic=not train)
        if self.weight:
            self.sow("losses", "aux", self.weight * aux)
        return y if self.last else {"mask": message["mask"], "h": y}


NAMED = [({"h": x[:4], "mask": MASK}, y[:4]) for x, y in DATA]


@pytest.mark.slow
@pytest.mark.parametrize(("aux", "weight"), [("drop", 0.0), ("loss", 1.0), (0.5, 0.5)])
def test_inputs_are_taken_by_name_others_carried_on_and_an_auxiliary_output_is_a_loss(aux, weight):
    first = stage(Masked(8, two=True), inputs=("h", "mask"), carry=("mask",), aux=aux)
    last = stage(Masked(CLASSES, two=True), inputs={"x": "h", "mask": "mask"}, aux=aux)
    by_hand = [MaskedByHand(8, weight=weight), MaskedByHand(CLASSES, last=True, weight=weight)]
    same(trained([first, last], NAMED), trained(by_hand, NAMED), NAMED[0][0])


class Sowing(nn.Module):
    """Sows two numbers, one of them as an auxiliary output."""

    width: int
    numbers: int = 1

    @nn.compact
    def __call__(self, x):
        self.sow("metrics", "largest", jnp.max(x))
        y = nn.Dense(self.width)(x)
        return y, jnp.mean(y) if self.numbers == 1 else y[0, : self.numbers]


@pytest.mark.parametrize(
    ("method", "engine"),
    mostly_slow([("bp", "pipeline"), ("fdg", "delay-line"), ("gpipe", "pipeline")], ("bp", "pipeline")),
)
def test_sown_metrics_of_all_stages_are_reported_as_means_beside_those_of_the_loss(method, engine):
    def loss(outputs, labels):
        return cross_entropy(outputs, labels), {"first": outputs[:, 0].mean()}

    x, y = DATA[0]
    stages = [stage(Sowing(8), aux="metric"), nn.Dense(7), stage(Sowing(CLASSES), aux="metric")]
    options = {"micro_batches": 2} if method == "gpipe" else {}
    ours = trained(stages, [(x, y)], method, loss=loss, engine=engine, optimizer=optax.sgd(0.0), **options)
    params, found = [each["params"] for each in ours.export()], ours.losses(wait=True)[0].metrics
    one = x @ params[0]["Dense_0"]["kernel"]
    two = one @ params[1]["kernel"]
    three = two @ params[2]["Dense_0"]["kernel"]
    parts = [slice(0, 8), slice(8, 16)] if method == "gpipe" else [slice(None)]
    largest = np.mean([(x[part].max() + two[part].max()) / 2 for part in parts])
    expected = {"largest": largest, "aux": (one.mean() + three.mean()) / 2, "first": three[:, 0].mean()}
    assert {*found} == {*expected}
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-5)  # sums in another order
    assert {*ours.evaluate([(x, y)]).metrics} == {"first"}


class Drawing(nn.Module):
    """Takes a key as an argument, or asks whether there is one."""

    @nn.compact
    def __call__(self, x, key=None):
        y = nn.Dense(CLASSES)(x)
        key = self.make_rng("noise") if key is None and self.has_rng("noise") else key
        return y if key is None else y + jax.random.normal(key, y.shape)


@pytest.mark.parametrize("rngs", ["noise", pytest.param({"key": "noise"}, marks=pytest.mark.slow)])
def test_a_module_gets_a_new_key_in_every_step_and_none_in_evaluation(rngs):
    x = DATA[0][0]
    ours = trained([stage(Drawing(), rngs=rngs)], [DATA[0]] * 3, optimizer=optax.sgd(0.0), method="bp")
    losses = [each.loss for each in ours.losses(wait=True)]
    assert len({*losses}) == 3
    plain = Drawing().apply(ours.export()[0], x)
    np.testing.assert_allclose(ours.predict(x), plain, atol=1e-6)  # another program


WRONG = [
    (lambda: stage(Told(), switch="testing"), "which value the switch has in training. Give switch={'testing':"),
    (lambda: stage(Told(), switch="deterministic"), "Told has no argument or field `deterministic`: its call takes"),
    (lambda: stage(Training(training=True)), "may be a switch or a fixed value. Give switch='training'"),
    (lambda: stage(Told(), carry=("mask",)), "name the entries that Told takes, as inputs='x'"),
    (lambda: stage(nn.Dense), "stage takes an instance of a linen module, not the class: stage(Dense(...))"),
    (lambda: stage(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), switch={}), "switch= is for linen modules"),
    (lambda: trained([stage(Sowing(CLASSES, 2), aux="metric")]), "one number, but an array [2] was sown as 'aux'"),
    (lambda: stage(Told(), inputs="x", output="m", carry="m"), "'m' names both a carried entry and the output of Told"),
    (lambda: stage(Told(), aux="mean"), "Give 'loss', a weight such as 0.01, 'metric' or 'drop'"),
    (lambda: trained([stage(Told(), inputs="x")]), "takes or carries 'x', but its input is not a dictionary"),
    (lambda: trained([stage(Masked(4), inputs=("h", "pad"))], NAMED), "its input has h, mask. The stage before"),
    (lambda: trained([stage(Told(), aux="loss")]), "but Told does not return a tuple (y, aux). Leave aux out"),
    (lambda: tie([Told(), Told()], nn.Dense(3)), "0 of 2 stages have this Dense in a field, but tie needs two"),
]


def test_what_does_not_fit_is_refused_with_the_call_that_works():
    for make, message in WRONG:
        with pytest.raises(BadInput) as refused:
            make()
        assert message in str(refused.value)


@pytest.mark.parametrize("containers", [pytest.param("dictionary", marks=pytest.mark.slow), "tuple"])
def test_functions_are_a_stage(containers):
    dense, norm = nn.Dense(CLASSES), nn.BatchNorm(use_running_average=None)
    packed = (lambda p: p) if containers == "dictionary" else lambda p: (p["dense"], p["norm"])
    unpacked = (lambda p: p) if containers == "dictionary" else lambda p: {"dense": p[0], "norm": p[1]}

    def init(key, x):
        y, first = dense.init_with_output(key, x)
        of_norm = norm.init(key, jnp.zeros(y.shape), use_running_average=True)
        return packed({"dense": first["params"], "norm": of_norm["params"]}), of_norm["batch_stats"]

    def apply(params, statistics, x, train, key):
        params = unpacked(params)
        y = dense.apply({"params": params["dense"]}, x)
        mutable = ["batch_stats"] if train else False
        y = norm.apply({"params": params["norm"], "batch_stats": statistics}, y, not train, mutable=mutable)
        y, statistics = (y[0], y[1]["batch_stats"]) if train else (y, statistics)
        return (y + jax.random.normal(key, y.shape) if train else y), statistics

    ours = trained([from_functions(init, apply, state=True)])
    (one,) = ours.export()
    assert float(np.abs(one["state"]["mean"]).max()) > 0
    assert [leaf.shape for leaf in jax.tree.leaves(one["params"])] == [(5,), (DATA[0][0].shape[1], 5), (5,), (5,)]
    same(ours, trained([from_functions(init, apply, state=True)], engine="delay-line"), exactly=True)


class Tokens(nn.Module):
    embed: nn.Module

    @nn.compact
    def __call__(self, tokens):
        return nn.Dense(6)(self.embed(tokens))


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        return x + nn.Dropout(0.0, deterministic=not train)(jnp.tanh(nn.Dense(6)(x)))


class Scores(nn.Module):
    embed: nn.Module

    @nn.compact
    def __call__(self, x):
        return self.embed.attend(nn.Dense(6)(x))


TOKENS = [(t, (t + 1) % 11) for t in np.random.default_rng(0).integers(0, 11, (6, 4, 3)).astype(np.int32)]


def network():
    embed = nn.Embed(11, 6)
    return tie([Tokens(embed), Layer(), Scores(embed)], embed)


class Whole(nn.Module):
    """The same network in plain Flax, with the table once."""

    def setup(self):
        embed = nn.Embed(11, 6)
        self.first, self.second, self.third = Tokens(embed), Layer(), Scores(embed)

    def __call__(self, x, train):
        return self.third(self.second(self.first(x), train))


def test_tied_stages_share_the_weights_of_their_owner_as_plain_flax_does():
    ours = fdg_jax.Pipeline(network(), cross_entropy, optax.sgd(0.3), "bp").init(jax.random.key(0), TOKENS[0])
    a, b, c = ours.export()
    assert "embed" in a["params"] and {*c["params"]} == {"Dense_0"}
    given = {"params": {"first": a["params"], "second": b["params"], "third": c["params"]}}
    plain = fdg_jax.Pipeline([Whole()], cross_entropy, optax.sgd(0.3), "bp")
    plain.init(jax.random.key(0), TOKENS[0], [given])
    for batch in TOKENS:
        ours.step(batch), plain.step(batch)
    a, b, c = ours.export()
    (whole,) = plain.export()
    want = {"first": a["params"], "second": b["params"], "third": c["params"]}
    close = lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6)  # noqa: E731  sums in another order: 1e-7 seen
    jax.tree.map(close, want, whole["params"])
    close(ours.predict(TOKENS[0][0]), plain.predict(TOKENS[0][0]))


@pytest.mark.slow
def test_a_tied_pipeline_is_late_as_its_delay_line_is_and_goes_back_into_its_stages():
    one, other = trained(network(), TOKENS), trained(network(), TOKENS, engine="delay-line")
    same(one, other, TOKENS[0][0], exactly=True)
    again = fdg_jax.Pipeline(network(), cross_entropy, optax.sgd(0.1))
    again.init(jax.random.key(1), TOKENS[0], one.export())
    same(one, again, TOKENS[0][0], exactly=True)

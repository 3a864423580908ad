"""Bad calls of the Python API: each ends in one BadInput with the fact and the way out, before anything is computed."""

from contextlib import nullcontext

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.errors import LazyInitError
from small import batches, cross_entropy, parts, pipeline, recipe

import fdg_jax
from fdg_jax import methods
from fdg_jax.errors import BadInput

DATA = batches(3)
X, Y = DATA[0]
KEY = jax.random.key(0)


def given(**changed):
    """A pipeline with some arguments changed."""
    asked = {"stages": parts(2), "loss": cross_entropy, "optimizer": recipe(), **changed}
    return fdg_jax.Pipeline(**asked)


@pytest.mark.parametrize(("changed", "match"), [
    ({"beta": "0.5"}, r"beta='0\.5' is not a number\. The default is 1\.0"),
    ({"stages": nn.Dense(2)}, r"stages is a Dense, not a list. Write stages=\[module"),
    ({"stages": [nn.Dense(2), nn.tanh]}, "stage k=2 is .*tanh.*, not a Flax linen module.*Sequential"),
    ({"stages": [nn.Dense]}, "stage k=1 is the class Dense, not a Flax linen module. Give a flax"),
    ({"stages": [nnx.Linear(8, 5, rngs=nnx.Rngs(0))]}, "k=1 is a flax.nnx Linear, .*nnx modules into fdg_jax.from_nnx"),
    ({"loss": 0.5}, r"loss is 0\.5, not a function"),
    ({"optimizer": 0.1}, r"optimizer is 0\.1, not an optax optimizer"),
    ({"optimizer": optax.sgd}, r"optimizer is the function sgd, not an optax optimizer. Give optax\.sgd\("),
    ({"devices": "cpu"}, r"devices='cpu' is not a list of JAX devices.*jax\.devices\(\)\[:2\]"),
    ({"devices": [0, 1]}, "the device of stage k=1 is 0, not a JAX device"),
])  # fmt: skip
def test_arguments_that_make_no_sense_are_refused_at_once(changed, match):
    with pytest.raises(BadInput, match=match):
        given(**changed)


@pytest.mark.parametrize(("arguments", "match"), [
    ((DATA[0], KEY), r"the key given is a tuple of 2. Use init\(jax\.random\.key\(0\), \(inputs, labels\)\)"),
    ((KEY, X), r"the example batch is \(inputs, labels\), not float32\[16, 8\]"),
    ((KEY, (X, Y[:9])), r"differ in length: \[9, 16\]"),
    ((KEY, (X, {})), "the labels hold None, but an array of numbers is needed. If there are no labels, give None"),
])  # fmt: skip
def test_init_says_what_it_takes(arguments, match):
    with pytest.raises(BadInput, match=match):
        given().init(*arguments)


@pytest.fixture(scope="module")
def one():
    """A pipeline for what it refuses."""
    return pipeline(1, DATA[0])


@pytest.mark.parametrize(("batch", "match"), [
    ((X, Y, Y), r"a batch is \(inputs, labels\), not a tuple of 3"),
    ((X.tolist(), Y), r"the inputs hold -?[\d.]+, but an array of numbers is needed. Use numpy\.asarray\(inputs\)"),
    ((X[:0], Y[:0]), "a batch of 0 examples"),
    ((X.astype(np.float64), Y), r'float64\[16, 8\], but at init they were float32.*inputs\.astype\("float32"\)'),
    ((X, Y.astype(np.int64)), r'labels are int64\[16\], but at init they were int32.*labels\.astype\("int32"\)'),
])  # fmt: skip
def test_step_says_what_a_batch_is(one, batch, match):
    with pytest.raises(BadInput, match=match):
        one.step(batch)


def test_64_bits_are_taken_where_they_were_at_init():
    ours = pipeline(1, (X.astype(np.float64), Y.astype(np.int64)))
    ours.step((X.astype(np.float64), Y.astype(np.int64)))
    ours.step((X, Y))  # what JAX makes of them
    same = pipeline(1, DATA[0])
    same.step((X, Y))
    same.step((X, Y))
    assert ours.parameters_sha256() == same.parameters_sha256()


@pytest.mark.parametrize(("arguments", "match"), [
    ((X, Y, np.arange(4)), r"indices is int64\[4\], not an integer array \[W, batch\].*indices\[None\]"),
    ((X, Y, np.zeros((2, 0), np.int32)), "its rows are empty"),
])  # fmt: skip
def test_train_says_what_it_takes(one, arguments, match):
    with pytest.raises(BadInput, match=match):
        one.train(*arguments)


@pytest.mark.parametrize("wrong", [(X, Y), X[:2], [(X, Y, Y)], 5])
def test_evaluate_says_that_it_takes_batches(one, wrong):
    with pytest.raises(BadInput, match=r"Use evaluate\(\[\(inputs, labels\), \.\.\.\]\)"):
        one.evaluate(wrong)


class Switched(nn.Module):
    """A module as Flax's own examples write them."""

    @nn.compact
    def __call__(self, x, deterministic: bool = True):
        return nn.Dense(5)(nn.Dropout(0.5, deterministic=deterministic)(x))


class Sampling(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.Dense(5)(x) + jax.random.normal(self.make_rng("noise"), (len(x), 5))


@pytest.mark.parametrize(("module", "match"), [
    (nn.BatchNorm(use_running_average=False), "be trained but not evaluated.*`train`"),
    (nn.Sequential([nn.BatchNorm(use_running_average=False, axis_name="batch")]), "layers_0 .*leave axis_name out"),
    (nn.remat(Sampling)(), r"boolean conversion of traced array.*nn\.remat\(Block, static_argnums=\(2,\)\)"),
])  # fmt: skip
def test_a_module_that_this_library_cannot_switch_to_evaluation_is_refused_at_init(module, match):
    with pytest.raises(BadInput, match=match):
        given(stages=[module]).init(KEY, DATA[0])


class Field(nn.Module):
    train: bool = False

    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=not self.train)(x)


class Scanned(nn.Module):
    """Does not pass its switch on to its parts, which are within a loop, remat and nn.Sequential."""

    @nn.compact
    def __call__(self, x, train):
        class Cell(nn.Module):
            @nn.compact
            def __call__(self, x, _):
                return nn.Sequential([nn.remat(Switched)()])(x), None

        return nn.scan(Cell, variable_axes={"params": 0}, split_rngs={"params": True}, length=2)()(x[:, :5], None)[0]


class Frozen(nn.Module):
    """Says where it calls parts, or makes them, that they are not trained."""

    frozen: bool = True

    @nn.compact
    def __call__(self, x, train):
        x = nn.Dropout(0.5, deterministic=not train or self.frozen)(Dropping()(x, train=False))
        return nn.Dense(5)(nn.BatchNorm()(x, use_running_average=True))


class Dropping(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.BatchNorm(use_running_average=not train)(nn.Dropout(0.5, deterministic=not train)(x))


class NnxSwitched(nnx.Module):
    def __init__(self, *, rngs):
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x, training=False):
        return self.dropout(x, deterministic=not training)


@pytest.mark.parametrize(("module", "said"), [
    pytest.param(
        nn.Sequential([nn.Dense(5), Switched()]), r"layers_1 \(Switched\) .*`deterministic`.* be True in training",
        marks=pytest.mark.slow,
    ),
    (nn.Sequential([Field()]), r"layers_0 \(Field\) has a field `train`.*it would be False"),
    (nn.BatchNorm(use_running_average=True), r"`use_running_average`.*nn\.BatchNorm\(\)\(x, use_running_average=True"),
    (nn.Sequential([nn.Dropout(0.5)]), r"\"deterministic\" must be passed.*fdg_jax\.stage\(module\)"),
    (Scanned(), r"CheckpointSwitched_0 \(Switched\) has .*`deterministic`"),
    (fdg_jax.from_nnx(lambda rngs: nnx.Sequential(NnxSwitched(rngs=rngs))), r"\(NnxSwitched\) has .*`training`"),
    (Frozen(), ""),
    (nn.Sequential([nn.Dense(5), nn.Dropout(0.0, deterministic=True)]), ""),  # the same when it is told
])  # fmt: skip
def test_a_part_that_nobody_tells_that_it_trains_is_refused_unless_it_is_meant_so(module, said):
    with pytest.raises(BadInput, match=said) if said else nullcontext():
        given(stages=[module, nn.Dense(5)], split=[1]).init(KEY, DATA[0])


class Rounded(nn.Module):
    @nn.compact
    def __call__(self, x):
        return (nn.Dense(5)(x) > 0).astype(jnp.int32)


class Embedded(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Embed(2, 5)(x).mean(1)


@pytest.mark.parametrize("method", methods.names())
def test_a_stage_that_gives_integers_to_the_next_is_refused_in_every_method(method):
    with pytest.raises(BadInput, match=r"stage k=1 \(Rounded\) gives int32\[16, 5\] to stage k=2: integers have"):
        given(stages=[Rounded(), Embedded()], method=method).init(KEY, DATA[0])


class Numbered(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(5)(x[..., self.param("order", lambda key: jnp.arange(x.shape[-1]))])


def test_parameters_without_gradients_and_those_made_of_inputs_are_refused(monkeypatch):
    with pytest.raises(BadInput, match=r"stage k=1 \(Numbered\) has the parameter .*order.*int32.*constants"):
        given(stages=[Numbered(), nn.Dense(5)]).init(KEY, DATA[0])

    def lazy_init(self, *_, **__):  # what Flax says of such a module, not in every version
        raise LazyInitError(partial_val="a value of the inputs")

    monkeypatch.setattr(nn.Module, "lazy_init", lazy_init)
    with pytest.raises(BadInput, match=r"initial variables depend on the values of its inputs.*Initialise the blocks"):
        given(stages=parts(2), split=[1], K=2).init(KEY, DATA[0])


class OfOneSize(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(5)(x.reshape(16, -1))


@pytest.mark.slow
def test_a_batch_that_is_too_short_for_a_later_stage_is_refused_before_it_enters():
    ours = given(stages=[nn.Dense(12), OfOneSize()]).init(KEY, DATA[0])
    ours.step(DATA[0])
    with pytest.raises(BadInput, match=r"stage k=2 \(OfOneSize\) cannot take float32\[9, 12\], from a batch of 9"):
        ours.step((X[:9], Y[:9]))
    with pytest.raises(BadInput, match="from a batch of 9"):
        ours.train(X, Y, np.arange(9)[None])
    ours.step(DATA[1])
    ours.drain()
    assert ours.updates == [2, 2]

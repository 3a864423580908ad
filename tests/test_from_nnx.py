"""Modules of flax.nnx as stages: the same numbers as nnx itself gives, in training and in evaluation."""


import re
import runpy
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from small import CLASSES, batches, cross_entropy, recipe

import fdg_jax
from fdg_jax import from_nnx, split
from fdg_jax.errors import BadInput

DATA = batches(8)
X, Y = DATA[0]
# The programs of the stages and those of the plain loop round sums differently: observed 1e-7 at values of order 1.
CLOSE = {"rtol": 0, "atol": 1e-5}


class Count(nnx.Variable):
    """A variable of a type that Flax does not know."""


class Block(nnx.Module):
    """Has what can go wrong: batch statistics, dropout, a list of modules, a variable of its own, sown values."""

    def __init__(self, width, out, rate=0.0, *, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Linear(width, 12, rngs=rngs), nnx.Linear(12, out, rngs=rngs)])
        self.norm = nnx.BatchNorm(12, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.calls = Count(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        self.calls.set_value(self.calls.get_value() + 1)
        y = self.dropout(jnp.tanh(self.norm(self.layers[0](x))))
        return self.layers[1](y)


def made(stages, method="fdg", **options):
    ours = fdg_jax.Pipeline(stages, cross_entropy, options.pop("optimizer", recipe()), method, **options)
    return ours.init(jax.random.key(0), DATA[0])


def two(rate=0.0):
    return [from_nnx(Block, 8, 12, rate), from_nnx(Block, 12, CLASSES, rate=rate)]


def as_nnx(block, variables):
    """An nnx module with the variables of a stage, set by their names as nnx spells them."""
    flat = {"/".join(map(str, at)): leaf for at, leaf in nnx.to_flat_state(nnx.state(block))}
    for tree in variables.values():
        for at, value in jax.tree_util.tree_flatten_with_path(tree)[0]:
            flat["/".join(str(key.key) for key in at)].set_value(jnp.asarray(value))
    return block


@pytest.mark.slow
def test_bp_of_nnx_stages_is_nnx_trained_by_hand():
    ours = made(two(), "bp")
    stages = [Block(8, 12, rngs=nnx.Rngs(0)), Block(12, CLASSES, rngs=nnx.Rngs(0))]
    network = Whole(rngs=nnx.Rngs(0))
    network.first, network.second = map(as_nnx, stages, jax.device_get(ours.params))
    network.train()
    graph, params, rest = nnx.split(network, nnx.Param, ...)
    optimizer = recipe()
    opt_state, losses = optimizer.init(params), []

    @jax.jit
    def step(params, rest, opt_state, x, y):
        def loss(params):
            module = nnx.merge(graph, params, jax.tree.map(lambda leaf: leaf, rest))  # variables that may be set here
            return cross_entropy(module(x), y), nnx.state(module, nnx.Not(nnx.Param))

        (value, rest), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), rest, opt_state, value

    for x, y in DATA:
        params, rest, opt_state, value = step(params, rest, opt_state, x, y)
        losses.append(float(value))
        ours.step((x, y))
    ours.drain()
    np.testing.assert_allclose([each.loss for each in ours.losses(wait=True)], losses, **CLOSE)
    network = nnx.merge(graph, params, rest)
    network.eval()
    np.testing.assert_allclose(ours.predict(X), network(X), **CLOSE)
    calls = ours.export()[0]["Count"]
    assert int(jax.tree.leaves(calls)[0]) == len(DATA)


class Whole(nnx.Module):
    def __init__(self, *, rngs):
        self.first, self.second = Block(8, 12, rngs=rngs), Block(12, CLASSES, rngs=rngs)

    def __call__(self, x):
        return self.second(self.first(x))


@pytest.mark.slow
def test_dropout_is_off_in_evaluation_and_drops_other_units_in_every_step():
    class Dropped(nnx.Module):
        """Remembers which units it kept."""

        def __init__(self, *, rngs):
            self.dropout, self.more = nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
            self.last, self.other = nnx.Cache(jnp.zeros(200)), nnx.Cache(jnp.zeros(200))

        def __call__(self, x):
            self.last.set_value(self.dropout(jnp.ones(200)))
            self.other.set_value(self.more(jnp.ones(200)))
            return x

    ours, seen = made([from_nnx(Dropped), nn.Dense(CLASSES)]), []
    for batch in DATA[:3]:
        ours.step(batch)
        seen += jax.tree.leaves(jax.device_get(ours.params[0]["cache"]))
    assert len({each.tobytes() for each in seen}) == 6  # no mask of a step or of a layer is that of another
    assert all(set(np.unique(each)) == {0, 2} and 50 < np.count_nonzero(each) < 150 for each in seen)
    dropping, without = (made([from_nnx(Block, 8, CLASSES, rate)]) for rate in (0.5, 0.0))
    np.testing.assert_array_equal(dropping.predict(X), without.predict(X))
    again = made([from_nnx(Dropped), nn.Dense(CLASSES)])
    again.restore(ours.state())
    for one in (ours, again):
        one.step(DATA[3])
        one.drain()
    assert again.state_sha256() == ours.state_sha256()


@pytest.mark.slow
def test_a_module_that_is_there_already_begins_with_its_weights_and_stays_as_it_is():
    block = Block(8, CLASSES, rngs=nnx.Rngs(7))
    block.eval()
    truth = np.asarray(block(X))
    ours = made([from_nnx(block)])
    np.testing.assert_allclose(ours.predict(X), truth, **CLOSE)
    ours.step(DATA[0])
    np.testing.assert_array_equal(block(X), truth)


@pytest.mark.slow
def test_blocks_of_nnx_are_cut_and_are_parts_of_linen_modules():
    class Around(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            return nn.tanh(from_nnx(Block, 12, 12, 0.2)(x, train))

    blocks = [from_nnx(Block, 8, 12), Around(), from_nnx(nnx.Linear, 12, CLASSES)]
    ours = fdg_jax.Pipeline(blocks, cross_entropy, recipe(), split="balanced", K=2).init(jax.random.key(0), DATA[0])
    ours.step(DATA[0])
    y = split.whole(blocks).apply(ours.export(whole=True), X, train=False, mutable=["Count"])[0]
    np.testing.assert_allclose(y, ours.predict(X), **CLOSE)


class Stubborn(nnx.Module):
    """Does not heed module.eval()."""

    def __init__(self, what, *, rngs):
        self.what, self.rngs, self.norm = what, rngs.fork(), nnx.BatchNorm(8, rngs=rngs)
        self.linear = nnx.Linear(8, CLASSES, rngs=rngs)

    def __call__(self, x):
        if self.what == "noise":
            return self.linear(x + jax.random.normal(self.rngs.dropout(), x.shape))
        return self.linear(self.norm(x, use_running_average=False))


class FromFirstKey(nnx.Module):
    """Draws from the stream that first weights are made of."""

    def __init__(self, *, rngs):
        self.rngs = rngs

    def __call__(self, x, train):
        return x + jax.random.normal(self.rngs.params(), x.shape) if train else x


class Needy(nnx.Module):
    def __call__(self, x, rngs):
        return x


class Late(nnx.Module):
    def __call__(self, x):
        self.new = nnx.Param(jnp.ones(3))
        return x


REFUSED = [
    (lambda: from_nnx(Stubborn, "norm"), "Stubborn changes its batch statistics in evaluation, too"),
    (lambda: from_nnx(FromFirstKey), "FromFirstKey draws from the random stream 'params'.* same numbers in every step"),
    (lambda: from_nnx(nnx.Linear, 8), r"the nnx module Linear cannot be made: .*'out_features'\. Change its arguments"),
    (lambda: from_nnx(Needy), "Needy.__call__ has an argument `rngs` without a default"),
    (lambda: from_nnx(Late), r"k=1 .*Late creates new when it is called\. Create it in __init__"),
    (lambda: Block(8, 5, rngs=nnx.Rngs(0)), r"stage k=1 is a flax.nnx Block.*flax.nnx modules into fdg_jax.from_nnx"),
    (lambda: nn.Sequential([nn.Dense(8), nnx.bridge.ToLinen(nnx.Dropout, (0.5,))]),
     r"ToLinen around Dropout does not switch its Dropout between training and evaluation.*fdg_jax\.from_nnx"),
]  # fmt: skip


def test_what_cannot_work_is_said_in_one_sentence():
    for make, said in REFUSED:
        with pytest.raises(BadInput, match=said):
            made([make()])


@pytest.mark.slow
def test_the_programs_of_the_page_run(tmp_path):
    page = (Path(__file__).parent.parent / "docs/own-modules.md").read_text()
    block, weights, _ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    inputs, file = np.tile(X, 8)[:, :64], tmp_path / "page.py"
    names = {"fdg_jax": fdg_jax, "nnx": nnx, "optax": optax, "inputs": inputs, "labels": Y, "weights": np.arange(16)}
    file.write_text(block + weights)
    names |= runpy.run_path(str(file), names)
    ours = fdg_jax.Pipeline(names["stages"], names["loss"], optax.sgd(0.1)).init(jax.random.key(0), names["batch"])
    assert ours.evaluate([names["batch"]]).images == 16

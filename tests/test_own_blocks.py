"""A network of a user's own, as blocks or as a file of a model: it is cut as the training commands cut theirs."""

import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from small import cross_entropy, recipe

import fdg_jax
from fdg_jax import models, split
from fdg_jax.errors import BadInput

KEY = jax.random.PRNGKey(0)
X, Y = np.zeros((16, 4), np.float32), np.zeros(16, np.int32)


class Layer(nn.Module):
    """Has no argument `train`, and no batch statistics."""

    width: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.width)(x)


class Dropping(nn.Module):
    """Dropout, by which training and evaluation differ."""

    @nn.compact
    def __call__(self, x, train: bool):
        return nn.Dense(4)(nn.Dropout(0.5, deterministic=not train)(x))


BLOCKS = [Layer(4), Dropping(), Layer(400), Layer(400), Layer(4), Layer(5)]


def made(blocks=None, example=(X, Y), **options):
    return fdg_jax.Pipeline(blocks or BLOCKS, cross_entropy, optax.sgd(0.1), **options).init(KEY, example)


@pytest.mark.slow
def test_blocks_with_and_without_train_and_dropout_train_together():
    ours = made(split="balanced", K=2)
    assert ours.cuts == (3,)
    for _ in range(3):
        ours.step((X, Y))
    ours.drain()
    assert ours.updates == [3, 3]
    whole = ours.export(whole=True)
    expected = jax.jit(lambda v, x: split.whole(BLOCKS).apply(v, x, False))(whole, X)
    np.testing.assert_array_equal(ours.predict(X), expected)


SENSELESS = [
    ({"split": "balanced"}, "split='balanced' does not set the number of stages. Give K=2"),
    ({"split": "best", "K": 2}, "split='best' is not known. Use split='balanced'"),
    ({"split": "even", "K": 7}, "K=7 stages are more than the 6 blocks"),
    ({"split": "even", "K": 0}, r"K=0: it must lie in \[1, 10000\]"),
    ({"split": [3], "K": 3}, "split 3 for K=3 stages of 6 blocks: 2 increasing block numbers in 1..5 are"),
    ({"split": [3, 3]}, "2 increasing block numbers in 1..5 are needed"),
    ({"split": 2.5, "K": 2}, "split=2.5 is 2.5, which is not a split"),
    ({"split": ["3"]}, "which is not a split"),
    ({"K": 2}, "K=2, but 6 stages were given. Leave K out, or add split="),
]


@pytest.mark.slow
def test_a_cut_follows_from_K_devices_or_block_numbers_and_one_that_makes_no_sense_is_refused_at_once():
    for options, K, cuts in (
        ({"split": [1, 3]}, 3, (1, 3)),
        ({"split": "even", "K": 3}, 3, (2, 4)),
        ({"split": "even", "devices": jax.devices()[:2]}, 2, (3,)),
        ({"split": "balanced", "K": 1}, 1, ()),
        ({"split": "balanced", "devices": [jax.devices()[:2], jax.devices()[2]]}, 2, (4,)),  # the wide block has two
    ):
        ours = fdg_jax.Pipeline(BLOCKS, cross_entropy, recipe(), **options)
        assert ours.K == K and ours.init(KEY, (X, Y)).cuts == cuts
    for options, match in SENSELESS:
        with pytest.raises(BadInput, match=match):
            fdg_jax.Pipeline(BLOCKS, cross_entropy, recipe(), **options)


def test_a_block_that_is_no_module_and_blocks_that_do_not_fit_are_named():
    with pytest.raises(BadInput, match="block 1 is the function"):
        fdg_jax.Pipeline([Layer(4), jnp.tanh], cross_entropy, recipe(), split="even", K=2)
    with pytest.raises(BadInput, match=r"block 1 \(Conv\).* cannot take float32\[1, 4\]; block 0 takes"):
        made([Layer(4), nn.Conv(3, (3, 3, 3)), Layer(5)], split="balanced", K=2)
    with pytest.raises(BadInput, match=r"the blocks cannot take float32\[16, 4\]\. In block001/inner \(Conv\): "):
        made([Layer(4), Around(nn.Conv(3, (3, 3, 3))), Layer(5)], split="even", K=2)


def test_variables_of_another_network_are_refused():
    ours = fdg_jax.Pipeline(BLOCKS, cross_entropy, recipe(), split=[3])
    with pytest.raises(BadInput, match="have params/block006, but the 6 blocks are block000 to block005"):
        ours.init(KEY, (X, Y), {"params": {"block006": {}}})
    with pytest.raises(BadInput, match="the variables have None as 'params'"):
        ours.init(KEY, (X, Y), {"params": None})


class Around(nn.Module):
    inner: nn.Module

    @nn.compact
    def __call__(self, x):
        return self.inner(x)


def test_blocks_may_be_made_of_modules_from_outside_and_one_block_may_stand_twice():
    twice = nn.Sequential([nn.Dense(4), nn.tanh])
    blocks = [twice, Around(nn.Sequential([nn.Dense(4, name="mine"), nn.tanh])), twice, nn.Dense(5)]
    x = X + np.arange(4, dtype=np.float32)
    whole = split.init_whole(blocks, KEY, jax.ShapeDtypeStruct(X.shape, X.dtype))
    assert set(whole["params"]) == {"block000", "block001", "block003"}
    assert set(whole["params"]["block001"]["inner"]) == set(whole["params"]["block000"]) == {"layers_0"}
    y = x
    for stage, own in zip(split.stages(blocks, (3,)), split.split_variables(whole, (3,)), strict=True):
        y = stage.apply(own, y, False)
    np.testing.assert_array_equal(y, split.whole(blocks).apply(whole, x, False))


SHARED, TANH, LINEAR = nn.Dense(4), nn.Sequential([nn.tanh]), nnx.Linear(4, 4, rngs=nnx.Rngs(0))
NNX = fdg_jax.from_nnx(LINEAR)


TWICE = [
    ([SHARED, TANH, SHARED, Layer(5)], {"split": [3]}, ""),
    ([Around(SHARED), nn.Sequential([nn.tanh, SHARED]), Layer(5)], {"split": [2]}, ""),
    ([SHARED, TANH, SHARED, Layer(5)], {"split": [2]}, r"k=1 \(Stage\) and .*k=2 \(Stage\) share .*, a Dense.*\.tie\("),
    ([Around(SHARED), nn.Sequential([nn.tanh, SHARED, nn.Dense(5)])], {}, r"k=1 \(Around\) and stage k=2 .*, a Dense"),
    ([Around(SHARED), TANH, SHARED, Layer(5)], {"split": [3]}, "two parts of stage k=1 .*, a Dense"),
    ([NNX, fdg_jax.from_nnx(nnx.Sequential(LINEAR, nnx.tanh))], {}, "a Param"),
    ([NNX, fdg_jax.from_nnx(LINEAR), Layer(5)], {"split": [2]}, "two parts of stage k=1 .*into one from_nnx"),
    ([NNX, TANH, NNX, Layer(5)], {"split": [3]}, ""),
    ([fdg_jax.from_nnx(nnx.Sequential(LINEAR, nnx.tanh, LINEAR)), Layer(5)], {}, ""),
]


def test_a_module_in_two_places_has_its_weights_once_or_is_refused_between_stages():
    x = X + np.arange(4, dtype=np.float32)
    for blocks, options, said in TWICE:
        if said:
            with pytest.raises(BadInput, match=said):
                made(blocks, **options)
            continue
        ours = made(blocks, **options, method="bp")
        assert ours.parameter_count == (4 * 4 + 4) + (4 * 5 + 5)
        first, last = (jax.tree.leaves(stage["params"]) for stage in ours.export())  # bias, kernel
        y = np.tanh(x @ first[1] + first[0]) @ first[1] + first[0]
        np.testing.assert_allclose(ours.predict(x), y @ last[1] + last[0], rtol=0, atol=1e-5)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """own(text): makes it the file `mine.py` of a folder that models are looked for in."""

    def write(text):
        (tmp_path / "mine.py").write_text(text)
        monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
        models._families.cache_clear()

    yield write
    sys.modules.pop("fdg_jax.models.mine", None)
    monkeypatch.undo()
    models._families.cache_clear()


BAD = [
    ("NAMES = ", "mine.py cannot be imported: .*Correct the file"),
    ("NAMES = {'mine': {}}", "mine.py has NAMES, but no function blocks"),
    ("NAMES = {'mine': {}}\ndef blocks(classes): ...", r"blocks\(\) of mine gives a NoneType"),
    ("NAMES = {'mine': {'n': 1}}\ndef blocks(classes): return [1]", r"blocks\(\) of mine fails: .*'n'"),
    ("NAMES = {'mine': {}}\nTAKES = 'sounds'\ndef blocks(classes): ...", "TAKES is 'sounds'"),
    ("NAMES = {'mine': {}}\nclass Options: ...\ndef blocks(classes): ...", "is not a dataclass"),
]


def test_a_bad_model_file_gets_a_sentence(own):
    for text, said in BAD:
        sys.modules.pop("fdg_jax.models.mine", None)
        own(text)
        with pytest.raises(BadInput, match=said):
            models.blocks("mine", 10)

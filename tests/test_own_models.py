"""A model in a file of one's own: dropout, no `train`, several arrays, no split of the authors; or a bad file."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdg_jax import models, split
from fdg_jax.errors import BadInput

GOOD = """
import flax.linen as nn
import jax.numpy as jnp

NAMES = {"mine": {"width": 4}}


class Flat(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x):
        x = x.reshape(len(x), -1)
        return nn.Dense(self.width)(x), x[:, :2]


class Dropped(nn.Module):
    @nn.compact
    def __call__(self, found, *, train):
        y, x = found
        return nn.Dropout(0.5, deterministic=not train)(jnp.tanh(y)), x


class Scores(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, found):
        return nn.Dense(self.classes)(jnp.concatenate(found, -1))


def blocks(classes, width):
    return [Flat(width), Dropped(), Scores(classes)]
"""


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


X = jax.ShapeDtypeStruct((2, 4, 4, 3), jnp.float32)


def test_a_model_needs_no_train_no_split_of_the_authors_and_no_single_array(own):
    own(GOOD)
    assert "mine" in models.names() and models.paper_split("mine", 2) is None
    blocks = models.blocks("mine", 10)
    costs = split.costs(blocks, X)
    assert len(costs) == 3 and costs[0] > 0
    variables = split.init_whole(blocks, jax.random.key(0), X)
    assert set(variables["params"]) == {"block000", "block002"}
    whole, (first, second) = split.Stage(tuple(blocks)), split.stages(blocks, (1,))
    x = jnp.ones(X.shape)
    parts = split.split_variables(variables, (1,))
    y = second.apply(parts[1], first.apply(parts[0], x, False), False)
    np.testing.assert_array_equal(y, whole.apply(variables, x, False))


BAD = [
    ("NAMES = ", "mine.py cannot be imported: .*Mend it"),
    ("import nothing_of_that_name\nNAMES = {'mine': {}}", "mine.py cannot be imported: .*nothing_of_that_name"),
    ("NAMES = {'mine': {}}", "mine.py has NAMES, but no function blocks"),
    ("NAMES = ['mine']\ndef blocks(classes): ...", "NAMES is no table"),
    ("NAMES = {'mine': {}}\ndef blocks(classes): ...", r"blocks\(\) of mine gives a NoneType"),
    ("NAMES = {'mine': {}}\ndef blocks(classes): return []", "gives a list of nothing"),
    ("NAMES = {'mine': {}}\ndef blocks(classes): return [1]", "gives a list of int"),
    ("NAMES = {'mine': {'n': 1}}\ndef blocks(classes): return [1]", r"blocks\(\) of mine fails: .*'n'"),
    ("NAMES = {'mine': {}}\nTAKES = 'sounds'\ndef blocks(classes): ...", "TAKES is 'sounds'"),
    ("NAMES = {'mine': {}}\nclass Options: ...\ndef blocks(classes): ...", "is no dataclass"),
]


def test_a_bad_model_file_gets_a_sentence(own):
    for text, said in BAD:
        sys.modules.pop("fdg_jax.models.mine", None)
        own(text)
        with pytest.raises(BadInput, match=said):
            models.blocks("mine", 10)


def test_blocks_that_do_not_fit_each_other_are_named(own):
    own(GOOD.replace("jnp.concatenate(found, -1)", "jnp.concatenate([*found, jnp.ones((1, 1))], -1)"))
    with pytest.raises(BadInput, match=r"block 2 \(Scores\) of the network cannot take .*; block 1 takes .* and gives"):
        split.costs(models.blocks("mine", 10), X)

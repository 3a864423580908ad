"""The library trains what examples/whole.py trains, which has nothing of the library in it."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small import fed

import fdg_jax
from examples import whole


class Layers(nn.Module):
    """A stage of examples/whole.py."""

    widths: tuple[int, ...]
    last: bool

    @nn.compact
    def __call__(self, x):
        for i, width in enumerate(self.widths):
            x = nn.Dense(width, name=f"layer{i}")(x)
            x = x if self.last and i == len(self.widths) - 1 else jnp.tanh(x)
        return x


def loss(logits, labels):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1))


@pytest.mark.parametrize(
    ("K", "ours", "theirs"),
    [
        (1, {}, {}),
        (3, {}, {}),
        (3, {"beta": 0.5}, {"beta": 0.5}),
        (4, {"ahead": True}, {"correct": "anticipate", "prediction": "last"}),
    ],
)
def test_the_library_computes_the_losses_of_the_idea_in_one_file(K, ours, theirs):
    batches = whole.digits(1)[0]
    first = whole.first_weights(K)
    modules = [Layers(tuple(len(each["bias"]) for each in stage), stage is first[-1]) for stage in first]
    variables = [{"params": {f"layer{i}": each for i, each in enumerate(stage)}} for stage in first]
    made = fdg_jax.Pipeline(modules, loss, optax.sgd(whole.RATE, momentum=whole.MOMENTUM), **theirs)
    made.init(jax.random.key(0), batches[0], variables=variables)
    fed(made, batches)
    stages, losses, staleness = whole.train(first, batches, **ours)
    assert made.staleness == staleness
    # XLA compiles other operations together in the two: 4e-7 apart at most, with beta.
    close = {"rtol": 0, "atol": 1e-6}
    np.testing.assert_allclose([each.loss for each in made.losses(wait=True)], np.asarray(losses), **close)
    for mine, stage in zip(made.params, stages, strict=True):
        for i, layer in enumerate(stage):
            for name, value in layer.items():
                np.testing.assert_allclose(mine["params"][f"layer{i}"][name], value, **close)

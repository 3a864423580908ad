"""Data parallelism: the numbers are the oracle's and BP's."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import method_oracles as oracles
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from replicas import NORMS, SIZE, Ks, losses, replicated, statistics
from small import (
    CLASSES,
    Part,
    as_functions,
    batches,
    close,
    cross_entropy,
    fed,
    leaves,
    mostly_slow,
    parts,
    pipeline,
    recipe,
)
from stages_of_layers import ROUNDING

from fdg_jax.data.augment import train_transform
from fdg_jax.data.sets import digits
from fdg_jax.errors import BadInput
from fdg_jax.methods.data_parallel import replica_places


@pytest.mark.parametrize("norm", mostly_slow(NORMS, "sync"))
@pytest.mark.parametrize("K", Ks)
def test_data_parallel_is_its_oracle_and_every_example_of_a_batch_that_K_does_not_divide_counts_once(K, norm):
    data = batches(8, SIZE)
    data[1:3] = [(x[:13], y[:13]) for x, y in data[1:3]]
    ours = replicated(K, data[0], batch_norm=norm)
    start = fed(ours, data)
    modules = as_functions(parts(K))
    truth, true_losses, _ = oracles.data_parallel(modules, cross_entropy, recipe(), start, data, K, norm)
    near = {"rtol": 0, "atol": 1e-5} if norm == "local" else ROUNDING  # norms of 3 examples amplify rounding: 5e-6 seen
    close([v["params"] for v in ours.params], [v["params"] for v in truth], **near)
    close([extra["batch_stats"] for extra in statistics(ours)], [v["batch_stats"] for v in truth], **near)
    np.testing.assert_allclose(losses(ours), true_losses, **near)
    if norm == "local":
        assert {leaf.shape[0] for leaf in leaves(statistics(ours))} == {K}
        assert any(np.abs(leaf[0] - leaf[1]).max() > 0.01 for leaf in leaves(statistics(ours)))


@pytest.mark.slow
def test_a_batch_that_is_spread_is_augmented_where_its_images_are():
    images, place = np.zeros((8, 16, 16, 3), np.uint8), replica_places(jax.devices()[:2])[0]
    transform = jax.jit(train_transform(digits.load()._replace(flip=True), 0))
    program = transform.lower(place.put_batch(images), place.put_weights(np.int32(1))).compile()
    assert program.output_shardings.spec == P("data")
    assert not re.search("all-|collective|permute", program.as_text())


@pytest.mark.slow
def test_replicas_that_share_devices_have_the_numbers_of_those_that_do_not():
    data = batches(5, SIZE)
    a, b, *_ = jax.devices()
    results = []
    for devices in (None, [a] * 4, [a, a, b, b]):
        ours = replicated(4, data[0], devices=devices)
        fed(ours, data)
        results.append((ours.params, statistics(ours), losses(ours)))
    for result in results[1:]:
        close(result, results[0], **ROUNDING)  # the mean over K replicas is summed in other parts


def test_a_device_has_as_many_replicas_as_any_other():
    a, b, c = jax.devices()[:3]
    sizes = [
        replica_places(devices)[0].mesh.size for devices in ([a], [a, a], [a, b], [a, a, b], [a, a, b, b], [a, b, c, c])
    ]
    assert sizes == [1, 1, 2, 1, 2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_evaluation_and_variables_are_those_of_replica_1(norm):
    data = batches(4, SIZE)
    ours = replicated(2, data[0], batch_norm=norm)
    fed(ours, data)
    x, labels = data[0]
    for module, variables, extra in zip(parts(2), ours.params, statistics(ours), strict=True):
        replica_1 = jax.tree.map(lambda a: a[0] if norm == "local" else a, extra["batch_stats"])
        close(variables["batch_stats"], replica_1, rtol=0)
        x = module.apply(jax.device_get(variables), x, train=False)
    found = ours.evaluate(data[:1])
    np.testing.assert_allclose(found.loss, cross_entropy(x, labels), rtol=1e-5)  # summed in other parts
    assert found.error_percent == 100 * np.sum(np.argmax(x, -1) != labels) / SIZE


class Masked(nn.Module):
    """Ones that survived dropout, so that what it gives tells the key."""

    @nn.compact
    def __call__(self, x, train: bool):
        scale = self.param("scale", nn.initializers.ones, ())
        return scale * nn.Dropout(0.5, deterministic=not train)(jnp.ones_like(x))


def masks(ours, batch, steps=3):
    """What stage 1 gives in each of several steps."""
    given, stage = [], ours.engine.stages[1]
    forward = stage.forward

    def recording(*arguments, **messages):
        messages = forward(*arguments, **messages)
        given.append(np.asarray(messages["x"]))
        return messages

    stage.forward = recording
    for _ in range(steps):
        ours.step(batch)
    return np.array(given)


@pytest.mark.slow
def test_each_replica_draws_from_a_key_of_its_own_and_replica_1_from_backprops():
    x, y = batches(1, 8)[0]
    stages, optimizer = [Masked(), Part(CLASSES)], recipe()
    ours = masks(replicated(2, (x, y), stages=stages, optimizer=optimizer), (x, y)) > 0
    true = masks(pipeline(2, (x[:4], y[:4]), stages=stages, optimizer=optimizer, method="bp"), (x[:4], y[:4])) > 0
    np.testing.assert_array_equal(ours[:, :4], true)
    masks_of = [ours[step, half : half + 4].tobytes() for step in range(3) for half in (0, 4)]
    assert len(set(masks_of)) == 6  # no replica repeats another's, now or later


@pytest.mark.slow
def test_synchronised_replicas_draw_what_backprop_draws():
    x, y = batches(1, 8)[0]
    stages = [Masked(), Part(CLASSES)]
    ours, true = (masks(pipeline(2, (x, y), stages=stages, **options), (x, y)) > 0 for options in
                  ({"method": "data_parallel", "batch_norm": "sync"}, {"method": "bp"}))  # fmt: skip
    np.testing.assert_array_equal(ours, true)


@pytest.mark.parametrize("K", [1, 2])
def test_another_kind_of_batch_norm_is_refused(K):
    with pytest.raises(BadInput, match=r"batch_norm='ghost' is not known\. Use local .* or sync"):
        replicated(K, batches(1)[0], batch_norm="ghost")

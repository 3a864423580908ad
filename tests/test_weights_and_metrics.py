"""Weights of examples and tokens, losses with metrics, and batches as dictionaries: equal to plain loops."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from small import CLASSES, as_functions, batches, cross_entropy, fed, parts, recipe

import fdg_jax
from fdg_jax import Weighted, methods
from fdg_jax.errors import BadInput
from fdg_jax.methods.fdg import fdg

per_label = optax.softmax_cross_entropy_with_integer_labels
# The programs of the stages and of the plain loops round sums differently: observed 3e-7 at values of order 1.
CLOSE = {"rtol": 0, "atol": 1e-5}
T = 4


def weighted_loss(outputs, labels):
    return labels.mean(per_label(outputs, labels.labels))


def with_metrics(outputs, labels):
    right = jnp.argmax(outputs, -1) == labels
    return cross_entropy(outputs, labels), {"right": jnp.mean(right), "largest": jnp.mean(jnp.max(outputs, -1))}


def examples(n, size=16, seed=1, last=None):
    """Batches with weights, some of them 0; the last batch has another size."""
    rng = np.random.default_rng(seed)
    found = [(x, Weighted(y, rng.choice([0.0, 0.5, 1, 3], size).astype(np.float32))) for x, y in batches(n, size)]
    x, (y, w) = found[-1]
    return [*found[:-1], (x[:last], Weighted(y[:last], w[:last]))]


def tokens(n, size=6, seed=2):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, size, T, 8)).astype(np.float32)
    y = rng.integers(0, CLASSES, (n, size, T)).astype(np.int32)
    mask = np.arange(T) < rng.integers(0, T + 1, (n, size, 1))  # texts of 0 to T tokens
    return [(a, Weighted(b, m)) for a, b, m in zip(x, y, mask, strict=True)]


class Tokens(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.width)(jnp.tanh(nn.Dense(12)(x)))


def made(K, batch, loss, engine="pipeline", stages=None, **options):
    ours = fdg_jax.Pipeline(stages or parts(K), loss, recipe(), engine=engine, **options)
    return ours.init(jax.random.PRNGKey(0), batch)


def by_hand(ours, data):
    """(loss, error) of an evaluation in plain NumPy, example by example, token by token."""
    losses, wrong, total = 0.0, 0.0, 0.0
    for x, (labels, weights) in data:
        scores = np.asarray(ours.predict(x), np.float64)
        for row, label, weight in zip(scores.reshape(-1, CLASSES), labels.ravel(), weights.ravel(), strict=True):
            losses += float(weight) * (np.log(np.sum(np.exp(row))) - row[label])
            wrong += float(weight) * (np.argmax(row) != label)
            total += float(weight)
    return losses / total, 100 * wrong / total


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["pipeline", "scan"])
def test_an_evaluation_with_weights_is_a_plain_loop_also_with_a_last_batch_of_another_size(engine):
    for data, stages in ((examples(4, last=5), None), (tokens(4), [Tokens(12), Tokens(CLASSES)])):
        ours = made(2, data[0], weighted_loss, engine, stages)
        nothing = data[0][0], Weighted(data[0][1].labels, np.zeros_like(data[0][1].weights))
        found = ours.evaluate([*data, nothing])
        loss, error = by_hand(ours, data)
        np.testing.assert_allclose(found.loss, loss, rtol=1e-5)
        np.testing.assert_allclose(found.error_percent, error, rtol=1e-5)  # sums of weights in float32
        assert found.images == sum(len(x) for x, _ in data) + len(nothing[0])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["pipeline", "scan"])
def test_training_with_weights_is_the_oracle(engine):
    data = examples(6, last=7)
    ours = made(2, data[0], weighted_loss, engine)
    start = fed(ours, data)
    true, losses, _ = oracle.stashed(as_functions(parts(2)), weighted_loss, recipe(), start, data, fdg(2).staleness)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), jax.device_get(ours.params), true)
    np.testing.assert_allclose([each.loss for each in ours.losses(wait=True)], losses, **CLOSE)


def test_weights_may_be_bools_and_no_weight_is_a_mean_of_0():
    weights = np.array([[True, False], [False, False]])
    values = np.array([[3.0, 5.0], [7.0, np.float32(2)]], np.float32)
    assert float(Weighted(None, weights).mean(values)) == 3
    assert float(Weighted(None, weights[1]).mean(values[1])) == 0
    assert float(Weighted(None, weights[:, 0]).mean(values)) == 4  # an example's weight counts for its tokens


@pytest.mark.slow
def test_labels_without_a_class_count_nothing_where_their_weight_is_0():
    labels = Weighted(np.array([1, 2, -100]), np.array([True, True, False]))  # optax: NaN for the last
    loss, gradient = jax.value_and_grad(lambda outputs: weighted_loss(outputs, labels))(jnp.ones((3, 4)))
    assert float(loss) == pytest.approx(np.log(4), rel=1e-6) and not gradient[2].any() and jnp.isfinite(gradient).all()


@pytest.mark.slow
def test_micro_batches_count_by_their_weights():
    data, ends = [*examples(3), *examples(1, size=11)], []
    data[1][1].weights[:4] = 0  # the first of four parts
    for method, options in (("bp", {}), ("gpipe", {"micro_batches": 4})):
        stages = [nn.Sequential([nn.Dense(12), nn.tanh]), nn.Dense(CLASSES)]  # a batch norm would see one part only
        ours = made(2, data[0], weighted_loss, stages=stages, method=method, **options)
        for batch in data:
            ours.step(batch)
        ends.append((jax.device_get(ours.params), [each.loss for each in ours.losses(wait=True)]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), *ends)


def contrastive(outputs, labels):
    return per_label(outputs @ outputs.T, jnp.arange(len(outputs))).mean()


def of_valid(outputs, labels):
    """A mean over the labels above 0: parts have other numbers of them."""
    return jnp.sum(jnp.where(labels > 0, per_label(outputs, labels), 0)) / jnp.maximum(jnp.sum(labels > 0), 1)


WHOLE = {
    "contrastive": contrastive,
    "valid": of_valid,
    "unweighted": lambda outputs, labels: per_label(outputs, labels.labels).mean(),
}


@pytest.mark.parametrize("options", [{"method": "gpipe", "micro_batches": 2}, {"method": "data_parallel"}], ids=str)
@pytest.mark.parametrize("name", WHOLE)
def test_a_loss_over_the_whole_batch_is_refused_where_batches_are_cut(name, options):
    batch = examples(1)[0] if name == "unweighted" else batches(1)[0]
    with pytest.raises(BadInput, match=r"is not the mean of its values on the parts.* or use (a|batch_norm)"):
        made(2, batch, WHOLE[name], **options)


@pytest.mark.slow
@pytest.mark.parametrize("method", methods.names())
def test_every_method_takes_weights_and_metrics(method):
    def loss(outputs, labels):
        return labels.mean(per_label(outputs, labels.labels)), {"half": jnp.float32(0.5)}

    options = {"stages": [nn.Dense(12), nn.Dense(CLASSES)]} if method == "fa" else {}
    data = examples(4)
    ours = made(2, data[0], loss, method=method, **options)
    fed(ours, data)
    seen = ours.losses(wait=True)
    assert np.isfinite([each.loss for each in seen]).all() and [each.metrics for each in seen] == [{"half": 0.5}] * 4
    assert ours.evaluate(data).metrics == {"half": 0.5}


@pytest.mark.slow
def test_a_batch_may_be_a_dictionary_and_its_inputs_too():
    class First(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.tanh(nn.Dense(12)(x["a"]) + x["b"])

    def loss(outputs, labels):
        return labels.mean(per_label(outputs, labels.labels["class"])) + 0.1 * jnp.mean(labels.labels["zero"])

    data = [
        {"inputs": {"a": x, "b": x[:, :1]}, "labels": {"class": y, "zero": 0 * x}, "weights": w}
        for x, (y, w) in examples(3)
    ]
    one, two = (made(2, data[0], loss, stages=[First(), nn.Dense(CLASSES)]) for _ in range(2))
    for batch in data:
        one.step(batch)
        two.step((batch["inputs"], Weighted(batch["labels"], batch["weights"])))
    assert one.state_sha256() == two.state_sha256()
    assert one.evaluate(data).loss > 0 and one.evaluate(data).error_percent is None
    again = made(2, data[0], loss, stages=[First(), nn.Dense(CLASSES)])
    again.restore(one.state())
    for ours in (one, again):
        ours.drain()
    assert again.state_sha256() == one.state_sha256()
    assert one.first_nonfinite(data[0]) is None


@pytest.mark.parametrize(("weights", "said"), [
    (np.ones((16, 3), np.float32), r"float32\[16, 3\], and the labels are int32\[16\]\. Give one weight for"),
    (np.ones(15, np.float32), r"differ in length: \[15, 16\]"),
    (Weighted(np.ones(16), np.ones((16, 2))), r"the weights are float64\[16, 2\], and the labels are float64\[16\]"),
    ([1.0] * 16, r"the weights are a list of 16, but an array of numbers is needed\. Use numpy\.asarray\(weights\)"),
])  # fmt: skip
def test_weights_that_do_not_fit_are_refused(weights, said):
    x, (y, _) = examples(1)[0]
    labels = {"a": y, "b": weights} if isinstance(weights, Weighted) else Weighted(y, weights)
    with pytest.raises(BadInput, match=said):
        made(2, (x, labels), weighted_loss)


def test_batches_that_have_no_weights_or_none_that_count_are_refused():
    data = examples(2)
    ours, (x, (y, w)) = made(2, data[0], weighted_loss), data[0]
    with pytest.raises(BadInput, match=r"the labels are .*, but at init they were .*"):
        ours.step((x, y))
    with pytest.raises(BadInput, match="the labels have no weights, but at init they had weights"):
        ours.evaluate([(x, y)])
    with pytest.raises(BadInput, match=r"the weights of 16 examples sum to 0\.0"):
        ours.evaluate([(x, Weighted(y, 0 * w))])
    with pytest.raises(BadInput, match=r"labels is a Weighted of 2, but train takes one array\. Use step"):
        ours.train(x, data[0][1], np.zeros((1, 4), np.int32))
    with pytest.raises(BadInput, match=r"inputs, and may have labels and weights, not x, y"):
        ours.step({"x": x, "y": y})


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["pipeline", "scan"])
def test_metrics_of_the_loss_are_in_metrics_and_averaged_by_evaluation(engine):
    data = [*batches(3), *batches(1, size=5)]
    ours = made(2, data[0], with_metrics, engine)
    plain = made(2, data[0], cross_entropy, engine)
    before, n = ours.evaluate(data), sum(len(x) for x, _ in data)
    scores = [np.asarray(ours.predict(x)) for x, _ in data]
    right = sum(int(np.sum(np.argmax(s, -1) == y)) for s, (_, y) in zip(scores, data, strict=True))
    assert before.metrics["right"] == pytest.approx(right / n, rel=1e-6)
    assert before.error_percent == pytest.approx(100 - 100 * right / n)
    largest = sum(float(np.sum(s.max(-1), dtype=np.float64)) for s in scores) / n
    assert before.metrics["largest"] == pytest.approx(largest, rel=1e-5)
    for one in (ours, plain):
        fed(one, data)
    (seen, same) = (one.losses(wait=True) for one in (ours, plain))
    np.testing.assert_allclose([each.loss for each in seen], [each.loss for each in same], rtol=1e-6)  # other programs
    assert [set(each.metrics) for each in seen] == [{"right", "largest"}] * 4 and same[0].metrics == {}
    assert 0 <= seen[0].metrics["right"] <= 1


def test_metrics_of_a_window_are_those_of_its_batches():
    x, y = (np.concatenate(arrays) for arrays in zip(*batches(3), strict=True))
    ends = []
    for engine in ("pipeline", "scan"):
        ours = made(1, (x[:16], y[:16]), with_metrics, engine, stages=[nn.Dense(CLASSES)], gradient_norms=True)
        ours.train(x, y, np.arange(48, dtype=np.int32).reshape(3, 16))
        ours.drain()
        seen = ours.losses(wait=True)
        ends.append([[m.loss, *m.metrics.values(), *m.gradient_norms] for m in seen])
        assert [len(row) for row in ends[-1]] == [4] * 3
    scan = ends[1]
    np.testing.assert_allclose([row[:3] for row in ends[0]], [row[:3] for row in scan], **CLOSE)


@pytest.mark.parametrize(("metrics", "said"), [
    ({"per": lambda x: x}, r"its metric 'per' is float32\[16, 5\]. Return a dictionary of numbers"),
    ({1: jnp.mean}, "its metric 1 is"),
])  # fmt: skip
def test_metrics_that_are_not_numbers_by_name_are_refused(metrics, said):
    def loss(outputs, labels):
        return cross_entropy(outputs, labels), {name: get(outputs) for name, get in metrics.items()}

    with pytest.raises(BadInput, match=said):
        made(1, batches(1)[0], loss, stages=[nn.Dense(CLASSES)])


def unlabelled(outputs, labels):
    """An autoencoder's loss. outputs: (what came out, what went in)."""
    assert labels is None
    return jnp.mean((outputs[0] - outputs[1]) ** 2)


class Encoder(nn.Module):
    @nn.compact
    def __call__(self, x):
        return jnp.tanh(nn.Dense(3)(x)), x


class Decoder(nn.Module):
    @nn.compact
    def __call__(self, pair):
        return nn.Dense(8)(pair[0]), pair[1]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["pipeline", "scan"])
def test_an_autoencoder_without_labels_is_the_oracle_goes_on_in_flight_and_is_evaluated_by_examples(engine):
    data = [(x, None) for x, _ in [*batches(4), *batches(1, size=5)]]
    one, two = (made(2, data[0], unlabelled, engine, [Encoder(), Decoder()]) for _ in range(2))
    forwards = [lambda params, extra, x, m=m: (m.apply({"params": params}, x), extra) for m in (Encoder(), Decoder())]
    true, losses, _ = oracle.stashed(forwards, unlabelled, recipe(), jax.device_get(one.params), data, fdg(2).staleness)
    for x, _ in data[:2]:
        one.step({"inputs": x})
    two.restore(one.state())  # a batch without labels is in the mail
    for ours in (one, two):
        for batch in data[2:]:
            ours.step(batch)
        ours.drain()
    assert one.state_sha256() == two.state_sha256()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), jax.device_get(one.params), true)
    np.testing.assert_allclose([each.loss for each in one.losses(wait=True)], losses, **CLOSE)
    found, squares = one.evaluate(data), [np.square(np.subtract(*one.predict(x))).sum() for x, _ in data]
    assert found.error_percent is None and found.images == 4 * 16 + 5
    assert found.loss == pytest.approx(sum(squares) / (8 * found.images), rel=1e-5)
    assert one.first_nonfinite(data[0]) is None


def test_weights_without_labels_count_in_the_loss_and_in_evaluation():
    def loss(outputs, labels):
        assert labels.labels is None
        return labels.mean(jnp.sum(outputs**2, -1))

    x, w = batches(1)[0][0], np.arange(16, dtype=np.float32)
    ours = made(1, {"inputs": x, "weights": w}, loss, stages=[nn.Dense(3)])
    ours.step({"inputs": x, "weights": w})
    found = ours.evaluate([{"inputs": x[:4], "weights": w[:4]}, {"inputs": x[4:], "weights": w[4:]}])
    assert found.loss == pytest.approx(float(np.average(np.square(ours.predict(x)).sum(-1), weights=w)), rel=1e-5)

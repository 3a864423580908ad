"""A transformer in K stages: both engines and the oracle agree with all that language models are trained with."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from small import fed, jit, leaves

import fdg_jax
from benchmarks import block_cost
from benchmarks.harness.forms import replaced
from fdg_jax import models, recipe, split
from fdg_jax.errors import BadInput
from fdg_jax.layers.sequence import LayerNorm, is_fused, rms_norm, rotated
from fdg_jax.methods.fdg import fdg
from fdg_jax.training.job import cross_entropy

VOCABULARY, T, BATCHES = 16, 8, 16  # more batches than a gradient can be late
CUTS = {1: (), 2: (4,), 4: (2, 4, 6), 8: (1, 2, 3, 4, 5, 6, 7)}
# Adam divides by the root of squared gradients, so a gradient that is nearly 0 passes on the rounding of the two
# programs: weights of order 0.1 move by up to the learning rate a step, 0.002. Observed: 1.1e-6 after 10 steps. With
# delays wrong by one update, the largest difference is above 2e-4 (tested below).
ADAM = {"rtol": 0, "atol": 2e-5}


def optimizer():
    rates = recipe.schedule("cosine", 2e-3, 2 * BATCHES, warmup_steps=3)
    return recipe.optimizer("adamw", rates, momentum=0.9, weight_decay=0.1, decay="matrices", clip_norm=0.5)


def network(layers, **options):
    return models.blocks(f"transformer{layers}x32", VOCABULARY, **options)


def tokens(n=BATCHES, size=4, seed=0):
    text = np.random.default_rng(seed).integers(0, VOCABULARY, (n, size, T + 1)).astype(np.int32)
    return [(each[:, :-1], each[:, 1:]) for each in text]


DATA = tokens()


def padded(data):
    """Texts of 0 to T tokens: what lies behind them has no weight."""
    lengths = np.random.default_rng(1).integers(0, T + 1, (len(data), len(data[0][0]), 1))
    return [(x, fdg_jax.Weighted(y, np.arange(T) < n)) for (x, y), n in zip(data, lengths, strict=True)]


def masked_loss(outputs, labels):
    return labels.mean(optax.softmax_cross_entropy_with_integer_labels(outputs, labels.labels))


PADDED = padded(DATA)


def made(K, layers=6, engine="pipeline", cuts=None, method="fdg", model=(), data=DATA, **options):
    blocks, cuts = network(layers, **dict(model)), CUTS[K] if cuts is None else cuts
    stages, start = split.stages(blocks, cuts), split.split_variables(variables(layers, model), cuts)
    ours = fdg_jax.Pipeline(stages, loss_of(data), optimizer(), method, engine=engine, guard=True, **options)
    return ours.init(jax.random.key(0), data[0], variables=start)


def loss_of(data):
    return cross_entropy if data is DATA else masked_loss


def variables(layers, model=()):
    """Weights of NumPy's: a program that draws them takes longer to compile than all others."""
    x, random = jax.ShapeDtypeStruct(DATA[0][0].shape, np.int32), np.random.default_rng(0)
    found = jax.eval_shape(lambda: split.init_whole(network(layers, **dict(model)), jax.random.key(0), x))
    return jax.tree.map(lambda leaf: (0.1 * random.normal(size=leaf.shape)).astype(leaf.dtype), dict(found))


def run(ours, data=DATA):
    start = fed(ours, data)
    return start, jax.device_get(ours.params), [m.loss for m in ours.losses(wait=True)]


def drawing(module):
    """A stage as the oracle wants it. Every forward pass splits the stage's key, as Pipeline says."""

    def forward(params, extra, x):
        rng, key = jax.random.split(extra["rng"])
        return module.apply({"params": params}, x, train=True, rngs={"dropout": key}), {"rng": rng}

    return forward


def truth(K, layers, start, staleness, cuts=None, model=(), data=DATA):
    stages = split.stages(network(layers, **dict(model)), CUTS[K] if cuts is None else cuts)
    keys = [jax.random.fold_in(jax.random.fold_in(jax.random.key(0), k), 1) for k in range(1, K + 1)]
    first = [{**own, "rng": jax.random.key_data(key)} for own, key in zip(start, keys, strict=True)]
    return oracle.stashed([drawing(s) for s in stages], loss_of(data), optimizer(), first, data, staleness)


def far(a, b):
    return max(float(np.abs(x - y).max()) for x, y in zip(leaves(a), leaves(b), strict=True))


DROPPED = (("dropout", 0.1),)


@pytest.mark.slow
@pytest.mark.parametrize(("K", "data"), [(2, DATA), (4, PADDED)])
def test_pipeline_delay_line_and_oracle_agree_with_dropout_adamw_warm_up_clipping_and_masks(K, data):
    one, two = (made(K, engine=engine, model=DROPPED, data=data) for engine in ("pipeline", "delay-line"))
    (start, params, losses), (_, _, their_losses) = run(one, data), run(two, data)
    assert one.parameters_sha256() == two.parameters_sha256() and losses == their_losses
    assert one.staleness == two.staleness == list(fdg(K).staleness)
    true, true_losses, stale = truth(K, 6, start, fdg(K).staleness, None, DROPPED, data)
    assert far([each["params"] for each in params], [each["params"] for each in true]) < ADAM["atol"]
    np.testing.assert_allclose(losses, true_losses, **ADAM)
    assert one.staleness == stale
    early = [max(0, wait - 1) for wait in fdg(K).staleness]
    wrong = truth(K, 6, start, early, None, DROPPED, data)[0]
    assert far([each["params"] for each in params], [each["params"] for each in wrong]) > 10 * ADAM["atol"]


@pytest.mark.slow
def test_a_tied_table_passes_through_the_stages_and_is_the_whole_gradient():
    gated = (("heads", 2), ("kv_heads", 1), ("norm", "layer"), ("biases", True), ("mlp", "swiglu"), ("qk_norm", True))
    model = (("tied", True), ("positions", "learned"), ("dropout", 0.1), *gated)
    one, two = made(4, model=model), made(4, engine="delay-line", model=model)
    (start, params, losses), (_, _, their_losses) = run(one), run(two)
    assert one.parameters_sha256() == two.parameters_sha256() and losses == their_losses
    true, true_losses, _ = truth(4, 6, start, fdg(4).staleness, None, model)
    assert far([each["params"] for each in params], [each["params"] for each in true]) < ADAM["atol"]
    np.testing.assert_allclose(losses, true_losses, **ADAM)
    assert "scores" not in params[-1]["params"]["block007"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fr", "dgl", "dni", "fa"])  # which look into a stage, or beside it
def test_every_method_trains_a_transformer(method):
    ours = made(2, 1, cuts=(1,), method=method, model=DROPPED)
    _, _, losses = run(ours)
    assert np.isfinite(losses).all() and ours.updates == [BATCHES] * len(ours.updates)
    assert ours.evaluate(DATA[:2]).error_percent is not None


@pytest.mark.slow
def test_a_token_sees_none_of_those_after_it():
    blocks = network(1)
    module = split.Stage(tuple(blocks))
    x = DATA[0][0]
    given = variables(1)
    run = jit(lambda x: module.apply(given, x, False))
    other = x.copy()
    other[:, 5:] = (other[:, 5:] + 1) % VOCABULARY
    a, b = run(x), run(other)
    np.testing.assert_array_equal(a[:, :5], b[:, :5])
    assert (np.asarray(a[:, 5:]) != np.asarray(b[:, 5:])).any(axis=-1).all()


def test_rotary_scores_depend_on_the_distance_of_two_tokens_only():
    q, k = (np.random.default_rng(seed).normal(size=(1, 1, 1, 32)).astype(np.float32) for seed in (0, 1))
    turned = [rotated(jnp.tile(each, (1, T, 1, 1)))[0, :, 0] for each in (q, k)]
    scores = np.asarray(turned[0] @ turned[1].T)
    for distance in range(T):
        np.testing.assert_allclose(np.diag(scores, distance), scores[0, distance], rtol=0, atol=2e-5)  # 32 products
    assert len({round(float(score), 3) for score in scores[0]}) == T


def test_the_norms_have_the_gradients_that_jax_derives():
    x, scale, dy = (np.random.default_rng(seed).normal(size=shape).astype(np.float32)
                    for seed, shape in enumerate([(2, 3, 8), (8,), (2, 3, 8)]))  # fmt: skip

    def plain(x, scale, epsilon=1e-6):
        return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + epsilon) * scale

    def layer(x, scale):
        return LayerNorm(bias=True).apply({"params": {"scale": scale, "bias": jnp.ones(8)}}, x)

    def plain_layer(x, scale):
        return plain(x - jnp.mean(x, -1, keepdims=True), scale, 1e-5) + 1

    for pair in ((rms_norm, plain), (layer, plain_layer)):
        ours, theirs = (jit(lambda x, s, f=f: (f(x, s), jax.vjp(f, x, s)[1](dy)))(x, scale) for f in pair)
        for a, b in zip(leaves(ours), leaves(theirs), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)  # sums of 8 products of order 1


def test_shared_heads_normalised_queries_and_a_gated_mlp_are_those_of_plain_numpy():
    layer, heads, T = network(1, heads=4, kv_heads=2, qk_norm=True, mlp="swiglu", positions="learned")[1], 4, 5
    x = np.random.default_rng(0).normal(size=(2, T, 32)).astype(np.float32)
    shapes = jax.eval_shape(lambda: layer.init(jax.random.key(0), x, False))
    own = jax.tree.map(lambda a: np.random.default_rng(a.size).normal(0, 0.3, a.shape).astype(np.float32), shapes)

    def rms(x, of):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-6) * of["scale"]

    at = own["params"]["attention"]
    q, k, v = np.split(rms(x, own["params"]["attention_norm"]) @ at["qkv"]["kernel"], [32, 48], -1)
    q, k, v = (each.reshape(2, T, -1, 8) for each in (q, k, v))
    q, k = rms(q, at["q_norm"]), rms(k, at["k_norm"])
    y = np.zeros((2, T, heads, 8))
    for head in range(heads):  # heads 0 and 1 share the first keys and values
        scores = np.exp(np.einsum("bth,bsh->bts", q[:, :, head], k[:, :, head // 2]) / 8**0.5) * np.tri(T)
        y[:, :, head] = scores / scores.sum(-1, keepdims=True) @ v[:, :, head // 2]
    x1 = x + y.reshape(2, T, 32) @ at["out"]["kernel"]
    gate, up = np.split(rms(x1, own["params"]["mlp_norm"]) @ own["params"]["wide"]["kernel"], 2, -1)
    assert gate.shape[-1] == 96  # 8/3 of 32, rounded up to a multiple of 32
    true = x1 + gate / (1 + np.exp(-gate)) * up @ own["params"]["narrow"]["kernel"]
    np.testing.assert_allclose(layer.apply(own, x, False), true, rtol=1e-4, atol=1e-4)  # float32 against float64


@pytest.mark.slow
def test_the_faster_forms_of_matrices_and_rotation_are_the_plain_ones():
    """They ended in the same bits where this was tried. A compiler may sum the rows in another order."""
    module, tokens = split.Stage(tuple(models.blocks("transformer2x32", 16))), jnp.arange(3 * 8).reshape(3, 8) % 16
    params = jit(lambda key: module.init(key, tokens, True))(jax.random.key(0))

    def gradients():
        return jit(jax.value_and_grad(lambda params: cross_entropy(module.apply(params, tokens, True), tokens)))(params)

    fast = gradients()
    with replaced(block_cost.PLAIN["tokens"]):
        module = module.clone()
        plain = gradients()
    for one, other in zip(leaves(fast), leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6 * np.abs(other).max())


def test_attention_is_cudnns_in_bfloat16_on_nvidias_newer_gpus_only(monkeypatch):
    """By what a GPU says of itself: the kernel is not run here."""
    ours, gpus = [jnp.zeros((1, 4, 2, 64), dtype) for dtype in (jnp.bfloat16, jnp.float32)], []
    for about in (("cuda 12090", "8.0"), ("cuda 12090", "7.5"), ("rocm 60000", "gfx942")):
        client = SimpleNamespace(platform_version=f"PJRT C API\n{about[0]}")
        gpus.append(SimpleNamespace(platform="gpu", client=client, compute_capability=about[1]))
    found = [is_fused(ours[0])]  # on this machine's CPU
    for gpu in gpus:
        monkeypatch.setattr(jax, "devices", lambda gpu=gpu: [gpu])
        found += [is_fused(q) for q in ours]
    assert found == [False, True, False, False, False, False, False]
    monkeypatch.setattr(jax, "devices", lambda: gpus[:1])
    assert not is_fused(jnp.zeros((1, 4, 2, 12), jnp.bfloat16))


def test_an_impossible_option_of_a_model_is_refused():
    for options, said in (
        ({"dropout": 1.0}, "it must lie in"), ({"dropout": "much"}, "a number"), ({"positions": "none"}, "not known"),
        ({"layer_norm": True}, "no option layer_norm"), ({"heads": 3}, "heads=3: a width of 32 cannot be divided"),
        ({"heads": 32}, "each of an even width for rotary positions. Use 1"), ({"kv_heads": 2}, "1 query heads cannot"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=said):
            network(1, **options)

"""Runs of several seeds in one program: each trains what it trains alone."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small

import fdg_jax
from fdg_jax import layers, split
from fdg_jax.config import Config
from fdg_jax.engine.seeds import Seeds
from fdg_jax.layers import packed
from fdg_jax.models import resnet_cifar
from fdg_jax.recipe import paper_sgd
from fdg_jax.training.job import update_rules

B, N = 8, 64


def images(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(N, 8)).astype(np.float32), rng.integers(0, small.CLASSES, N).astype(np.int32)


def noisy(seed):
    """An augmentation: noise that depends on seed and step."""

    def transform(x, step):
        key = jax.random.fold_in(jax.random.key(jnp.asarray(seed, jnp.uint32)), step)
        return x + 0.1 * jax.random.normal(key, x.shape)

    return transform


def run_of(seed, **options):
    example = images()[0][:B], images()[1][:B]
    ours = fdg_jax.Pipeline(
        small.parts(2), small.cross_entropy, small.recipe(), beta=0.5, engine="scan", guard=True,
        preprocess=noisy(seed), **options,
    )  # fmt: skip
    return ours.init(jax.random.key(seed), example)


def rows(seed, first, n):
    order = np.random.default_rng(seed).permutation(N)
    return np.stack([order[(first + i) % (N // B) * B :][:B] for i in range(n)])


def trained(runs, seeds, first, windows):
    """Trains windows of batches after the first ones; one run after the other enters its batches."""
    for n in windows:
        for run, seed in zip(runs, seeds, strict=True):
            run.train(*DATA, rows(seed, first, n))
        first += n


DATA = images()
# Sums over a batch (batch norms, weight gradients) may be taken in another order: a few bits of float32 a batch.
CLOSE = {"rtol": 2e-5, "atol": 2e-6}


def losses(run):
    return [metrics.loss for metrics in run.losses(wait=True)]


def test_each_run_trains_what_it_trains_alone_and_goes_on_alone_or_together():
    seeds, alone, runs = [3, 5], run_of(5), [run_of(s) for s in (3, 5)]
    Seeds([run.engine for run in runs], seeds, noisy)
    for each, of in (([alone], [5]), (runs, seeds)):
        trained(each, of, 0, [1, 3])
    run = runs[1]
    np.testing.assert_allclose(losses(run), losses(alone), **CLOSE)
    small.close(run.params, alone.params, **CLOSE)
    assert (run.staleness, run.updates, run.batches) == (alone.staleness, alone.updates, alone.batches)
    assert run.evaluate([DATA]).loss == pytest.approx(alone.evaluate([DATA]).loss, rel=2e-5)
    kept = run.state()
    alone.restore(kept)
    assert alone.state_sha256() == run.state_sha256()
    for each, of in ((runs, seeds), ([alone], [5])):
        trained(each, of, 4, [3])
    small.close(run.params, alone.params, **CLOSE)
    end = run.state_sha256()
    run.restore(kept)
    trained(runs, seeds, 4, [3])
    assert run.state_sha256() == end  # bit for bit, whatever the other run has done meanwhile
    run.drain()
    alone.drain()
    small.close(run.params, alone.params, **CLOSE)


def test_a_run_that_ends_does_not_hold_up_the_others():
    seeds = [3, 5, 6]
    runs = [run_of(s) for s in seeds]
    together = Seeds([run.engine for run in runs], seeds, noisy)
    for run, seed in zip(runs[:2], seeds, strict=False):
        run.train(*DATA, rows(seed, 0, 1))
    assert runs[0].batches == 0  # nothing is trained before all have entered their batches
    together.leave(runs[2].engine)
    assert [run.batches for run in runs] == [1, 1, 0]
    trained(runs[:2], seeds[:2], 1, [1])
    assert [run.updates for run in runs[:2]] == [[1, 2]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("how", ["float32", "bfloat16", "packed"])
def test_a_hundred_batches_of_a_residual_network_have_the_losses_of_runs_alone(how, monkeypatch):
    """Rounding alone may differ: of sums over a batch, and of packed convolutions, in which zeros stand in between.
    Training lets such differences grow, so the first ten batches have a bound of their own. The runs differ in beta and
    rate as well, whose products round alike."""
    if how == "packed":  # as on a GPU
        monkeypatch.setattr(packed.lax, "platform_dependent", lambda *arrays, cpu, default: default(*arrays))
    seeds, betas, rates = list(range(4)), [0.5, 0.2, 1.0, 0.5], [0.01, 0.02, 0.01, 0.01]
    blocks = [resnet_cifar.Stem(), resnet_cifar.Residual(16), resnet_cifar.Residual(32, stride=2), layers.Head(10)]
    rng = np.random.default_rng(0)
    data = rng.normal(size=(256, 8, 8, 3)).astype(np.float32), rng.integers(0, 10, 256).astype(np.int32)

    def made(seed):
        run = fdg_jax.Pipeline(
            split.stages(blocks, (2,)), small.cross_entropy, paper_sgd(optax.constant_schedule(rates[seed])),
            beta=betas[seed], engine="scan", preprocess=noisy(seed), devices=jax.devices()[:1] * 2,
            dtype="bfloat16" if how == "bfloat16" else "float32",
        )  # fmt: skip
        return run.init(jax.random.key(seed), (data[0][:16], data[1][:16]))

    runs = [made(seed) for seed in seeds]
    start = runs[1].state()
    job: Any = SimpleNamespace(options=Config(K=2, engine="scan"), pipeline=runs[0])
    numbers = {"beta": np.float32(betas), "rates": np.float32(rates)[:, None]}
    Seeds([run.engine for run in runs], seeds, noisy, partial(update_rules, job), numbers)
    alone = made(1)
    alone.restore(start)
    for step in range(100):
        for run, seed in [*zip(runs, seeds, strict=True), (alone, 1)]:
            run.train(*data, np.random.default_rng((seed, step)).integers(0, 256, (1, 16)))
    gap = np.abs(np.subtract(losses(runs[1]), losses(alone)))
    print(how, "largest difference of the losses in 10 and in 100 batches", gap[:10].max(), gap.max())
    first, most = (0.05, 0.5) if how == "bfloat16" else (1e-5, 1e-2)
    assert gap[:10].max() < first and gap.max() < most


def test_a_gradient_is_written_into_its_ring_by_one_operation_for_each_dtype():
    run = run_of(3)
    arguments = run.engine.run, *DATA, rows(3, 0, 2)
    text = str(jax.make_jaxpr(run.engine._window)(*arguments))
    assert text.count("dynamic_update_slice") == 2  # the gradients of stage 1, and the version that they are of

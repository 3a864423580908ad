"""Optimizers of a user's own: one a stage, by groups of parameters, by the step; what they hold, and what is set in
them; the norms of gradients and the average of the weights."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import oracle
import pytest
from small import (
    CLASSES,
    as_functions,
    batches,
    close,
    cross_entropy,
    fed,
    jit,
    mostly_slow,
    nothing_unfinished,
    parts,
    pipeline,
    recipe,
)

import fdg_jax
from fdg_jax.errors import BadInput
from fdg_jax.methods.fdg import fdg

DATA = batches(8)
# The programs of the oracle and of the stages round sums differently: observed 3e-7 at weights of order 1.
CLOSE = {"rtol": 0, "atol": 1e-5}


def by_kind(params):
    """Labels of the parameters: matrices, or the rest."""
    return jax.tree.map(lambda leaf: "matrix" if leaf.ndim > 1 else "vector", params)


GROUPS = {"matrix": optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2)), "vector": optax.sgd(0.1)}
SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 0.1, 3, 20)
# No Adam where a bias lies before a batch norm: its gradient is rounding noise, which Adam divides by its own size.
OWN = {
    "partition": optax.partition(GROUPS, by_kind),
    "inject_hyperparams": optax.inject_hyperparams(optax.sgd)(learning_rate=SCHEDULE, momentum=0.9),
    "skip": optax.apply_if_finite(optax.sgd(0.1), 3),
    "multi_steps": optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation(),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "engine"), [
    ("partition", "pipeline"), ("partition", "scan"),
    *[(name, "pipeline") for name in ("inject_hyperparams", "skip", "multi_steps")],
])  # fmt: skip
def test_an_optimizer_by_groups_or_by_the_step_trains_as_the_oracle_and_goes_on_exactly(name, engine):
    ours = pipeline(2, DATA[0], optimizer=OWN[name], engine=engine)
    start = jax.device_get(ours.params)
    for batch in DATA[:5]:
        ours.step(batch)
    again = pipeline(2, DATA[0], optimizer=OWN[name], engine=engine)
    again.restore(ours.state())
    for one in (ours, again):
        fed(one, DATA[5:])
    assert again.state_sha256() == ours.state_sha256()
    true, *_ = oracle.stashed(as_functions(parts(2)), cross_entropy, OWN[name], start, DATA, fdg(2).staleness)
    for own, theirs in zip(jax.device_get(ours.params), true, strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), own["params"], theirs["params"])


@pytest.mark.parametrize(
    ("how", "engine"), mostly_slow([("list", "pipeline"), ("function", "delay-line")], ("list", "pipeline"))
)
def test_every_stage_may_have_an_optimizer_of_its_own(how, engine):
    chains = [recipe(), optax.sgd(0.02, momentum=0.5, nesterov=True)]
    ours = pipeline(2, DATA[0], optimizer=chains if how == "list" else lambda k: chains[k - 1], engine=engine)
    start = fed(ours, DATA)
    both = _by_stage(chains, start)
    true, *_ = oracle.stashed(as_functions(parts(2)), cross_entropy, both, start, DATA, fdg(2).staleness)
    for own, theirs in zip(jax.device_get(ours.params), true, strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), own["params"], theirs["params"])


def _by_stage(chains, start):
    """One optimizer for all stages, which picks the chain of a stage by the shapes of its parameters."""
    known = [jax.tree.map(jnp.shape, own["params"]) for own in start]
    assert len({str(shapes) for shapes in known}) == len(known)

    def chain(params):
        return chains[known.index(jax.tree.map(jnp.shape, params))]

    return optax.GradientTransformation(
        lambda params: chain(params).init(params),
        lambda grads, state, params=None: chain(params).update(grads, state, params),
    )


REFUSED = [
    ([optax.sgd(0.1)], "optimizer is a list of 1, but there are K=2 stages"),
    ([optax.sgd(0.1), 3], "the optimizer of stage k=2 is 3, not an optax optimizer"),
    (lambda k: None, "the optimizer of stage k=1 is None, not an optax optimizer"),
    (0.1, "optimizer is 0.1, not an optax optimizer"),
    (optax.lookahead(optax.sgd(0.1), 5, 0.5), "cannot train stage k=1.*optax.lookahead needs two"),
    (optax.chain(optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1))), "contrib.sam, which takes gradients at two"),
    (optax.contrib.reduce_on_plateau(), "cannot train stage k=1.*without a loss.*reduce_on_plateau"),
    (optax.lbfgs(), "missing 3 .*'value_fn'.*Use another optimizer"),
    (optax.multi_transform({"a": optax.sgd(0.1)}, {"no": "such"}), r"the optimizer cannot train stage k=1 \(Part\)"),
]


def test_what_cannot_work_is_said_in_one_sentence():
    for optimizer, said in REFUSED:
        with pytest.raises(BadInput, match=said):
            pipeline(2, DATA[0], optimizer=optimizer)


B1 = 0.8
FREE = optax.contrib.schedule_free(optax.sgd(0.5), 0.5, b1=B1)
FREE_FORMS = {  # the optimizer, and where the state of schedule_free is in its state
    "alone": (FREE, lambda state: state),
    "partition": (
        optax.partition({"matrix": FREE, "vector": optax.sgd(0.5)}, by_kind),
        lambda state: state.inner_states["matrix"].inner_state,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("form", "options"), [
    ("partition", {}), ("alone", {"guard": True, "gradient_norms": True}),
])  # fmt: skip
def test_schedule_free_is_evaluated_exported_and_saved_at_its_answer(form, options, tmp_path):
    optimizer, free = FREE_FORMS[form]
    model = nn.Dense(CLASSES)
    ours = pipeline(1, DATA[0], optimizer=optimizer, stages=[model], method="bp", **options)
    y = jax.device_get(ours.params)[0]["params"]
    state, loss = optimizer.init(y), lambda w, batch: cross_entropy(model.apply({"params": w}, batch[0]), batch[1])
    for batch in DATA:
        ours.step(batch)
        updates, state = optimizer.update(jax.grad(loss)(y, batch), state, y)
        y = optax.apply_updates(y, updates)
    ours.drain()
    z = free(state).z
    own = lambda name: not isinstance(z[name], optax.MaskedNode)  # noqa: E731
    x = {name: np.asarray((y[name] - (1 - B1) * z[name]) / B1 if own(name) else y[name]) for name in y}
    assert form == "partition" or abs(loss(x, DATA[0]) - loss(y, DATA[0])) > 1e-3
    ours.save(tmp_path / "saved")
    for weights in (ours.export(), fdg_jax.load(tmp_path / "saved").variables):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), weights[0]["params"], x)
    assert ours.evaluate(DATA[:1]).loss == pytest.approx(float(loss(x, DATA[0])), abs=1e-5)
    outputs = np.asarray(model.apply({"params": x}, DATA[0][0]))
    np.testing.assert_allclose(ours.predict(DATA[0][0]), outputs, **CLOSE)


def norm(tree):
    return float(np.sqrt(sum(float(np.sum(np.square(leaf, dtype=np.float64))) for leaf in jax.tree.leaves(tree))))


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "guard"), [("pipeline", False), ("scan", True)])
def test_gradient_norms_are_those_of_the_gradients_by_which_stages_were_updated(engine, guard):
    """With SGD at rate 1, the gradient is what the weights have moved by."""
    options = {"optimizer": optax.sgd(1.0), "engine": engine, "guard": guard, "beta": 0.5}
    ours = pipeline(2, DATA[0], gradient_norms=True, **options)
    without = pipeline(2, DATA[0], **options)
    moved = [[0.0], [0.0]]
    for batch in DATA:
        before = jax.device_get(ours.params)
        ours.step(batch)
        after = jax.device_get(ours.params)
        for k in range(2):
            way = norm(jax.tree.map(np.subtract, after[k]["params"], before[k]["params"]))
            moved[k] += [way * (2 if k == 0 else 1)] if way else []  # beta halved that of stage 1
        without.step(batch)
    seen = ours.losses(wait=True)
    assert without.losses(wait=True)[0].gradient_norms == ()
    told = np.array([each.gradient_norms for each in seen])
    assert told.shape[0] >= 7 and told.shape[1] == 2
    for k in range(2):  # the host loop tells of the updates before a loss, the scan of that by it, too
        values = np.trim_zeros(told[:, k], "f")
        assert len(values) >= 6
        # Differences of weights of order 1 in float32: 1e-6 in a norm of order 1.
        np.testing.assert_allclose(values, moved[k][1:][: len(values)], rtol=1e-4, atol=1e-6)
    again = pipeline(2, DATA[0], gradient_norms=True, **options)
    again.restore(ours.state())
    assert again.state_sha256() == ours.state_sha256()
    assert again.gradient_norms() == ours.gradient_norms() and without.gradient_norms() == ()


SMALL = [nn.Dense(12), nn.Dense(CLASSES)]  # which compile in half the time of `parts`


def injected(rate=0.1):
    return optax.chain(optax.add_decayed_weights(5e-4), optax.inject_hyperparams(optax.sgd)(rate, momentum=0.9))


def long(*values):
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def test_a_learning_rate_is_set_between_two_updates_as_in_a_plain_loop():
    model, rates = nn.Dense(CLASSES), [0.5, 0.5, 0.01, 0.01, 0.2]
    ours = pipeline(1, DATA[0], optimizer=injected(0.5), stages=[model], method="bp")
    params = jax.device_get(ours.params)[0]["params"]
    state = optax.trace(0.9).init(params)

    @jit
    def step(params, state, rate, batch):
        loss = lambda w: cross_entropy(model.apply({"params": w}, batch[0]), batch[1])  # noqa: E731
        grads = jax.tree.map(lambda g, w: g + 5e-4 * w, jax.grad(loss)(params), params)
        updates, state = optax.trace(0.9).update(grads, state)
        return jax.tree.map(lambda w, u: w - rate * u, params, updates), state

    for before, rate, batch in zip(rates[:1] + rates, rates, DATA, strict=False):
        if rate != before:
            ours.set_hyperparameters(learning_rate=rate)
        ours.step(batch)
        params, state = step(params, state, rate, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), ours.export()[0]["params"], params)


@pytest.mark.slow
def test_hyperparameters_are_set_without_compiling_in_both_engines_alike_and_checkpoints_keep_them():
    one, two, again = [
        pipeline(2, DATA[0], optimizer=injected(), stages=SMALL, engine=engine)
        for engine in ("pipeline", "delay-line", "pipeline")
    ]
    for ours in (one, two):
        for number, batch in enumerate(DATA[:6]):
            if number == 4:
                ours.drain()
                compiled = [stage._update._cache_size() for stage in ours.engine.stages.values()]
                ours.set_hyperparameters(learning_rate=0.02, momentum=np.float64(0.5))
                ours.set_hyperparameters(k=2, learning_rate=jnp.ones(()))
            ours.step(batch)
    again.restore(one.state())
    for ours in (one, two, again):
        fed(ours, DATA[6:])
        rates = [state[1].hyperparams["learning_rate"] for state in ours.optimizer_states]
        np.testing.assert_array_equal(rates, np.array([0.02, 1.0], np.float32), strict=True)
    assert compiled == [stage._update._cache_size() for stage in two.engine.stages.values()] == [1, 1]
    assert one.parameters_sha256() == two.parameters_sha256() == again.parameters_sha256()
    assert again.state_sha256() == one.state_sha256()


def test_a_scan_sets_hyperparameters_and_tells_what_is_unfinished_as_the_host_loop_does():
    one, two = (pipeline(2, DATA[0], optimizer=injected(), stages=SMALL, engine=name) for name in ("pipeline", "scan"))
    watched = [ours.engine.watch() for ours in (one, two)]
    for ours in (one, two):
        fed(ours, DATA[:3])  # drained: only then the host loop sets values at the same update of every stage
        ours.set_hyperparameters(learning_rate=0.02)
        ours.set_hyperparameters(k=2, learning_rate=0.05)
        fed(ours, DATA[3:])
        rates = [state[1].hyperparams["learning_rate"] for state in ours.optimizer_states]
        np.testing.assert_array_equal(rates, np.array([0.02, 0.05], np.float32))
        ours.wait()
    assert all(map(nothing_unfinished, watched)) and two.engine.auxiliary() == [(), ()]
    close(two.params, one.params, **CLOSE)
    with pytest.raises(BadInput, match="the optimizer of stage k=1 has no injected hyperparameter decay"):
        two.set_hyperparameters(decay=0.1)
    with pytest.raises(BadInput, match=r"made by an accelerator \(scan\), which stores other arrays"):
        one.restore(two.state())
    with pytest.raises(BadInput, match="there are 0 test batches"):
        two.evaluate([])


@pytest.mark.parametrize("options", [
    *long({"method": "bp"}),
    {"method": "ddg", "accumulate": 2},
    *long({"guard": True, "gradient_norms": True},
          {"method": "gpipe", "micro_batches": 2, "parts": True}, {"beta": 0.5}, {"method": "dgl"}, {"method": "fa"},
          {"method": "data_parallel", "parts": True}, {"engine": "scan", "guard": True}),
    {"engine": "scan", "accumulate": 2}, {"schedule_free": True},
], ids=str)  # fmt: skip
def test_the_average_is_that_of_the_weights_after_each_update_that_was_made(options):
    data, decay, options = [*DATA], 0.8, dict(options)
    if options.get("guard"):
        data[3] = np.full_like(data[3][0], np.nan), data[3][1]
    stages = parts(2) if options.pop("parts", False) else SMALL  # `parts` have statistics
    optimizer = FREE if options.pop("schedule_free", False) else optax.sgd(0.1)
    ours = pipeline(2, data[0], optimizer, stages, ema=decay, **options)
    newest = [stage["params"] for stage in ours.export()]
    averages, made = [*newest], [0, 0]
    for batch in data:
        ours.step(batch)
        for k, stage in enumerate(ours.export()):
            if not jax.tree.all(jax.tree.map(np.array_equal, stage["params"], newest[k])):
                newest[k], made[k] = stage["params"], made[k] + 1
                averages[k] = jax.tree.map(lambda a, w: decay * a + (1 - decay) * w, averages[k], newest[k])
    refused = options.get("guard", 0)
    assert made == [updates - refused for updates in ours.updates] and min(made) > 2
    found = ours.export(ema=True)
    for average, own, stage in zip(averages, found, ours.export(), strict=True):
        # float32 sums in another order
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), own["params"], average)
        jax.tree.map(np.testing.assert_array_equal, own | {"params": 0}, stage | {"params": 0})


@pytest.mark.slow
def test_an_average_changes_no_bit_of_the_training_and_is_the_same_in_both_engines():
    """Of the host loop; a scan is one program, which rounds otherwise."""
    engines = "pipeline", "delay-line"
    with_average = [pipeline(2, DATA[0], stages=SMALL, ema=0.9, engine=engine) for engine in engines]
    without = pipeline(2, DATA[0], stages=SMALL)
    for ours in (*with_average, without):
        fed(ours, DATA)
    assert len({ours.parameters_sha256() for ours in (*with_average, without)}) == 1
    one, two = (ours.export(ema=True) for ours in with_average)
    jax.tree.map(np.testing.assert_array_equal, one, two)
    with pytest.raises(BadInput, match=r"keeps no average of its weights\. To keep one: .*ema=0\.999"):
        without.export(ema=True)


def test_a_hyperparameter_that_cannot_be_set_is_refused_and_nothing_has_changed():
    chains = [injected(), optax.inject_hyperparams(optax.sgd)(SCHEDULE, momentum=0.9)]
    ours = pipeline(2, DATA[0], optimizer=chains, stages=SMALL)
    before = ours.state_sha256()
    for said, values in {
        r"stage k=1 has no injected hyperparameter rate \(it has: learning_rate, momentum\)\. Give .*optax\.adamw": {
            "rate": 1
        },
        "learning_rate of stage k=2 follows a schedule, which sets its value": {"learning_rate": 0.1},
        r"momentum=array.* does not fit float32\[\]\. Give one number": {"momentum": np.ones(2)},
        r"k=0: the stages are k=1\.\.2": {"momentum": 0.5, "k": 0},
    }.items():
        with pytest.raises(BadInput, match=said):
            ours.set_hyperparameters(**values)
    assert ours.state_sha256() == before
    with pytest.raises(BadInput, match=r"no injected hyperparameter learning_rate \(it has: none\)"):
        pipeline(2, DATA[0], stages=SMALL).set_hyperparameters(learning_rate=0.1)

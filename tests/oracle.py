"""The truth: delayed-gradient training in plain Python on one device, without anything of fdg_jax in it.

`stashed` is twenty lines: ordinary BP over the whole network, and a list of old gradients a stage. `current` follows
the paper's ticks literally: it keeps the inputs of every layer and goes back through the layers one by one with
today's weights.
"""

from functools import partial

import jax
import optax

jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiling is nine tenths of the time


def split(variables):
    return variables["params"], {name: value for name, value in variables.items() if name != "params"}


def updated(optimizer, factor, params, opt_state, grads):
    grads = jax.tree.map(lambda g: factor * g, grads)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def stashed(modules, loss_fn, optimizer, variables, batches, delays, beta=1.0, rules=None):
    """modules: K functions (params, extra, x) -> (y, extra). delays[k-1]: updates a gradient of stage k waits.
    rules: what is done about late gradients, one object a stage whose gradients wait that has some of forward(w),
    gradient(g, then, now), updated(before, after) and optimizer.

    Returns (variables per stage after the drain, losses, measured staleness per stage)."""
    K = len(modules)
    params, extras = map(list, zip(*[split(v) for v in variables], strict=True))
    rules = [rule if delay else None for rule, delay in zip(rules or [None] * K, delays, strict=True)]
    chains = [getattr(rule, "optimizer", optimizer) for rule in rules]
    opt = [chain.init(p) for chain, p in zip(chains, params, strict=True)]
    waiting, made, stale, losses = [[] for _ in modules], [0] * K, [[] for _ in modules], []

    def use_oldest(k):
        grads, version, then = waiting[k].pop(0)
        grads, before = told(k, "gradient", grads, then, params[k]), params[k]
        params[k], opt[k] = updates[k](beta ** (K - 1 - k), params[k], opt[k], grads)
        told(k, "updated", before, params[k])
        stale[k].append(made[k] - version)
        made[k] += 1

    def told(k, what, first, *rest):
        return getattr(rules[k], what)(first, *rest) if hasattr(rules[k], what) else first

    updates = [jit(partial(updated, chain)) for chain in chains]

    @jit
    @partial(jax.value_and_grad, has_aux=True)
    def backprop(params, extras, x, labels):
        new = []
        for module, p, e in zip(modules, params, extras, strict=True):
            x, e = module(p, e, x)
            new.append(e)
        return loss_fn(x, labels), new

    for x, labels in batches:
        before = [told(k, "forward", p) for k, p in enumerate(params)]
        (loss, extras), grads = backprop(before, extras, x, labels)
        losses.append(float(loss))
        for k in range(K):
            waiting[k].append((grads[k], made[k], before[k]))
            if len(waiting[k]) > delays[k]:
                use_oldest(k)
    for k in range(K):
        while waiting[k]:
            use_oldest(k)
    return [{"params": p, **e} for p, e in zip(params, extras, strict=True)], losses, [max(s) for s in stale]


def current(layers, loss_fn, optimizer, variables, batches, order, beta=1.0, rules=None, accumulate=1):
    """Algorithm I by the letter, every backward pass at today's weights, or at what rules[k-1].backward makes of them.

    accumulate: gradients whose sum makes an update.
    layers: K lists of (params, x) -> y, each linear in its own weights given its input, so that "old activations,
    current weights" means one thing only.

    A tick: stage k backwards batch t-2K+k+1 and forwards batch t-k+1. With order="ddg" it is DDG's instead: batch t
    goes forward through all stages, then stage k backwards batch t-K+k. Returns (params per stage, losses)."""
    K, n = len(layers), len(batches)
    params = list(variables)  # per stage a list over its layers
    opt = [optimizer.init(p) for p in params]
    inputs, x_in, dy_in, losses, sums = {}, {}, {}, [], [[] for _ in params]
    update, top = jit(partial(updated, optimizer)), jit(jax.value_and_grad(loss_fn))

    @partial(jit, static_argnums=0)
    def through(k, params, x):
        xs = []
        for layer, p in zip(layers[k - 1], params, strict=True):
            xs.append(x)
            x = layer(p, x)
        return xs, x

    @partial(jit, static_argnums=0)
    def back(k, params, xs, dy):
        grads = []
        for layer, p, x in reversed(list(zip(layers[k - 1], params, xs, strict=True))):
            g, dy = jax.vjp(layer, p, x)[1](dy)
            grads.insert(0, g)
        return grads, dy

    def forward(k, b):
        x = batches[b - 1][0] if k == 1 else x_in.pop((k, b))
        inputs[k, b], x = through(k, params[k - 1], x)
        if k < K:
            x_in[k + 1, b] = x
        else:
            loss, dy_in[K, b] = top(x, batches[b - 1][1])
            losses.append(float(loss))

    def backward(k, b):
        rule, before = rules[k - 1] if rules else None, params[k - 1]
        at = rule.backward(before) if rule else before
        grads, dy_in[k - 1, b] = back(k, at, inputs.pop((k, b)), dy_in.pop((k, b)))
        sums[k - 1].append(grads)
        if len(sums[k - 1]) < accumulate:
            return
        grads = jax.tree.map(lambda *each: sum(each), *sums[k - 1])
        sums[k - 1].clear()
        params[k - 1], opt[k - 1] = update(beta ** (K - k), params[k - 1], opt[k - 1], grads)
        if rule:
            rule.updated(before, params[k - 1])

    def tick(t):
        if order == "ddg":
            return [(forward, k, t) for k in range(1, K + 1)] + [(backward, k, t - K + k) for k in range(1, K + 1)]
        todo = []
        for k in range(1, K + 1):
            both = [(backward, k, t - 2 * K + k + 1), (forward, k, t - k + 1)]
            todo += both if order == "backward-first" and k < K else reversed(both)
        return todo

    for t in range(1, n + 2 * K):
        for do, k, b in tick(t):
            if 1 <= b <= n:
                do(k, b)
    return params, losses

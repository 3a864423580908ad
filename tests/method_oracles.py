"""The truth of every compared method in plain Python: slow, obvious, and without anything of fdg_jax in it.

Where a method is asynchronous its ticks are followed literally, with mailboxes as dicts from (k, b) to what stage k
finds there for batch b; what nobody has sent yet is a KeyError. Stages and batches count from 1.

All but `fa` are called f(modules, loss_fn, optimizer, variables, batches, ...). modules: K functions (params, extra,
x) -> (y, extra) in training mode; loss_fn(outputs, labels): a mean over the batch; optimizer: an optax chain, of which
each stage has a state; variables: per stage {"params": ..., "batch_stats": ...}; batches: [(x, labels)]. They return
(variables per stage after the drain, losses by batch, per stage the most updates between a batch's forward pass and the
update it causes), and as a fourth the auxiliary variables where the method has some.
"""

import copy
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from oracle import jit, split


class Pass(NamedTuple):
    """All that a forward pass depends on; version counts the stage's updates before it."""

    params: Any
    extra: Any
    x: Any
    version: int


class Stage:
    """One stage and its optimizer, which gets the gradients multiplied by `shrink` (FDG's beta**(K-k))."""

    def __init__(self, module, optimizer, variables, shrink):
        def pull(params, extra, x, dy):
            return jax.vjp(lambda p, x: module(p, extra, x)[0], params, x)[1](dy)

        def step(params, opt, several, weight):
            grads = jax.tree.map(lambda *leaves: shrink * weight * sum(leaves), *several)
            updates, opt = optimizer.update(grads, opt, params)
            return optax.apply_updates(params, updates), opt

        self.params, self.extra = split(variables)
        self.opt, self.updates, self.staleness = optimizer.init(self.params), 0, 0
        self.module, self.pull, self.step = jit(module), jit(pull), jit(step)

    def forward(self, x):
        """Moves the running statistics. Returns (what the pass was, y)."""
        now = Pass(self.params, self.extra, x, self.updates)
        y, self.extra = self.module(self.params, self.extra, x)
        return now, y

    def back(self, forward, dy):
        """Returns (grads, dx) of that pass, at the weights it was made with."""
        return self.pull(forward.params, forward.extra, forward.x, dy)

    def update(self, pairs, weight=1.0):
        """One update by weight * the sum of the gradients. pairs: [(grads, the forward pass they come from)]."""
        grads, passes = zip(*pairs, strict=True)
        self.staleness = max([self.staleness, *[self.updates - forward.version for forward in passes]])
        self.params, self.opt = self.step(self.params, self.opt, grads, weight)
        self.updates += 1


def numbered(items):
    return dict(enumerate(items, 1))


def made(modules, optimizer, variables, beta=1.0):
    pairs = numbered(zip(modules, variables, strict=True))
    return {k: Stage(module, optimizer, v, beta ** (len(modules) - k)) for k, (module, v) in pairs.items()}


def result(stages, losses):
    variables = [{"params": stage.params, **stage.extra} for stage in stages.values()]
    return variables, [float(loss) for loss in losses], [stage.staleness for stage in stages.values()]


def locked(modules, loss_fn, optimizer, variables, batches, replay):
    """Tick t: F_1..F_K of batch t; then B_k of batch t-(K-k) for all k. DDG: at the weights of its own forward pass.

    FR (replay): F leaves only its input behind; B_k goes forward on it again, at the weights of now and moving the
    running statistics once more (on stage K too), and back through that."""
    stages, top = made(modules, optimizer, variables), jit(jax.value_and_grad(loss_fn))
    K, n, passes, dy, losses = len(stages), len(batches), {}, {}, []
    for t in range(1, n + K):
        if t <= n:
            x, labels = batches[t - 1]
            for k, stage in stages.items():
                passes[k, t], x = stage.forward(x)
            loss, dy[K, t] = top(x, labels)
            losses.append(loss)
        for k, stage in stages.items():
            b = t - (K - k)
            if 1 <= b <= n:
                first = through = passes.pop((k, b))
                if replay:
                    through, y = stage.forward(first.x)
                    if k == K:
                        dy[K, b] = top(y, batches[b - 1][1])[1]
                grads, dy[k - 1, b] = stage.back(through, dy.pop((k, b)))
                stage.update([(grads, first)])
    return result(stages, losses)


ddg, fr = partial(locked, replay=False), partial(locked, replay=True)


def dgl(modules, loss_fn, optimizer, variables, batches, local, auxiliary):
    """Tick t: stage k does F and B of batch t-k+1, of its local loss; stage K of the real one.

    local: for k < K, (aux_params, aux_extra, y, labels) -> (loss, aux_extra); auxiliary: the variables of these.
    The optimizer sees the pair (params, aux_params). Returns the auxiliary variables too."""
    local = [*local, lambda aux, extra, y, labels: (loss_fn(y, labels), extra)]
    auxiliary = [*auxiliary, {"params": {}}]
    # A module of the pair that knows nothing of its second half, whose gradients the local loss supplies.
    modules = [lambda pair, extra, x, module=module: module(pair[0], extra, x) for module in modules]
    pairs = [{**v, "params": (v["params"], aux["params"])} for v, aux in zip(variables, auxiliary, strict=True)]
    stages, aux_extra = made(modules, optimizer, pairs), numbered([split(aux)[1] for aux in auxiliary])
    heads = numbered([jit(jax.value_and_grad(f, argnums=(0, 2), has_aux=True)) for f in local])
    K, n = len(stages), len(batches)
    x, loss = {(1, b): batch[0] for b, batch in numbered(batches).items()}, {}
    for t in range(1, n + K):
        for k, stage in stages.items():
            b = t - k + 1
            if 1 <= b <= n:
                forward, y = stage.forward(x.pop((k, b)))
                found, (aux_grads, dy) = heads[k](stage.params[1], aux_extra[k], y, batches[b - 1][1])
                loss[k, b], aux_extra[k] = found
                (grads, _), _ = stage.back(forward, dy)
                stage.update([((grads, aux_grads), forward)])
                x[k + 1, b] = y
    pairs, losses, staleness = result(stages, [loss[K, b] for b in numbered(batches)])
    trained = [{"params": pairs[k - 1]["params"][1], **aux_extra[k]} for k in range(1, K)]
    return [{**v, "params": v["params"][0]} for v in pairs], losses, staleness, trained


def dni(modules, loss_fn, optimizer, variables, batches, synthesizers, auxiliary, adam=None):
    """Tick t: stage k < K does S of batch t-k-1, then F and B of batch t-k+1; stage K does F and B of batch t-K+1.

    synthesizers: for k < K, (params, extra, y, labels) -> (dy, extra); auxiliary: the variables of these, trained
    towards what B_{k+1} sent one tick before, with Adam at 3e-5 unless another is given. Returns them too."""

    def error(synthesizer, params, extra, y, labels, dy):
        guessed, extra = synthesizer(params, extra, y, labels)  # compared as gradients of an example's own loss
        return ((y.shape[0] * (guessed - dy)) ** 2).sum() / y.shape[0], extra

    stages, top, losses = made(modules, optimizer, variables), jit(jax.value_and_grad(loss_fn)), []
    K, n, adam = len(stages), len(batches), adam or optax.adam(3e-5)
    params, extra = ({k: split(v)[i] for k, v in numbered(auxiliary).items()} for i in (0, 1))
    opt, adam_step = {k: adam.init(p) for k, p in params.items()}, jit(adam.update)
    guess = numbered([jit(s) for s in synthesizers])
    slope = numbered([jit(jax.grad(partial(error, s), has_aux=True)) for s in synthesizers])
    x, outputs, dy = {(1, b): batch[0] for b, batch in numbered(batches).items()}, {}, {}
    for t in range(1, n + K + 1):
        for k, stage in stages.items():
            b = t - k - 1
            if k < K and 1 <= b <= n:
                y, labels, true = outputs.pop((k, b)), batches[b - 1][1], dy.pop((k, b))
                grads, extra[k] = slope[k](params[k], extra[k], y, labels, true)
                updates, opt[k] = adam_step(grads, opt[k], params[k])
                params[k] = optax.apply_updates(params[k], updates)
            b = t - k + 1
            if 1 <= b <= n:
                forward, y = stage.forward(x.pop((k, b)))
                if k < K:
                    x[k + 1, b] = outputs[k, b] = y
                    cotangent, _ = guess[k](params[k], extra[k], y, batches[b - 1][1])
                else:
                    loss, cotangent = top(y, batches[b - 1][1])
                    losses.append(loss)
                grads, dy[k - 1, b] = stage.back(forward, cotangent)
                stage.update([(grads, forward)])
    return *result(stages, losses), [{"params": params[k], **extra[k]} for k in params]


def in_parts(loss_fn, batches, workers):
    """Part m of a batch goes through workers[m]: F of all parts, B of all in the same order, then one update of every
    worker by the sum of all gradients, each weighted by its part's share of the batch. Returns the losses."""
    top, losses = jit(jax.value_and_grad(loss_fn)), []
    for x, labels in batches:
        passes, dy, loss, pairs = {}, {}, 0.0, {k: [] for k in workers[0]}
        parts = zip(np.array_split(x, len(workers)), np.array_split(labels, len(workers)), strict=True)
        for m, (y, part) in enumerate(parts):
            for k, stage in workers[m].items():
                passes[k, m], y = stage.forward(y)
            value, cotangent = top(y, part)
            share = len(part) / len(labels)
            loss, dy[m] = loss + share * value, share * cotangent
        for m, worker in enumerate(workers):
            for k in reversed(worker):
                grads, dy[m] = worker[k].back(passes[k, m], dy[m])
                pairs[k].append((grads, passes[k, m]))
        for worker in {id(worker): worker for worker in workers}.values():  # gpipe's are one and the same
            for k, stage in worker.items():
                stage.update(pairs[k])
        losses.append(loss)
    return losses


def gpipe(modules, loss_fn, optimizer, variables, batches, M):
    """M micro-batches through the same stages; M = 1 is BP."""
    stages = made(modules, optimizer, variables)
    return result(stages, in_parts(loss_fn, batches, [stages] * M))


def data_parallel(modules, loss_fn, optimizer, variables, batches, replicas, norm):
    """Every replica has all the stages and its part of the batch; one update by the gradients' mean (parts of unequal
    size weigh by their size). norm: "sync" normalises over the whole batch, which makes it BP; "local" by the replica's
    own part, and the running statistics returned are [replicas, ...]."""
    if norm == "sync":
        return gpipe(modules, loss_fn, optimizer, variables, batches, M=1)
    stages = made(modules, optimizer, variables)
    workers = [{k: copy.copy(stage) for k, stage in stages.items()} for _ in range(replicas)]
    losses = in_parts(loss_fn, batches, workers)
    for k, stage in workers[0].items():  # all that differs between replicas
        stage.extra = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[worker[k].extra for worker in workers])
    return result(workers[0], losses)


def adl(
    modules, loss_fn, optimizer, variables, batches, M,
    accumulation="sum", order="backward-first", beta=1.0, replay=False,
):  # fmt: skip
    """FDG's ticks: stage k does B of batch t-2K+k+1 and F of batch t-k+1; an update after every M-th B, by the "sum"
    or the "mean" of the M gradients, and in the end one by what is left. M = 1 is FDG. replay: with FR's B."""
    stages, top, losses = made(modules, optimizer, variables, beta), jit(jax.value_and_grad(loss_fn)), []
    K, n, waiting = len(stages), len(batches), {k: [] for k in stages}
    x, passes, dy = {(1, b): batch[0] for b, batch in numbered(batches).items()}, {}, {}

    def forward(k, b):
        passes[k, b], y = stages[k].forward(x.pop((k, b)))
        if k < K:
            x[k + 1, b] = y
        else:
            loss, dy[K, b] = top(y, batches[b - 1][1])
            losses.append(loss)

    def backward(k, b):
        first = through = passes.pop((k, b))
        if replay:
            through, y = stages[k].forward(first.x)
            if k == K:
                dy[K, b] = top(y, batches[b - 1][1])[1]
        grads, dy[k - 1, b] = stages[k].back(through, dy.pop((k, b)))
        waiting[k].append((grads, first))
        if len(waiting[k]) == M or b == n:
            stages[k].update(waiting[k], 1 / len(waiting[k]) if accumulation == "mean" else 1.0)
            waiting[k] = []

    for t in range(1, n + 2 * K - 1):
        for k in stages:
            todo = [(backward, t - 2 * K + k + 1), (forward, t - k + 1)]
            for do, b in todo if order == "backward-first" and k < K else reversed(todo):
                if 1 <= b <= n:
                    do(k, b)
    return result(stages, losses)


def fa(layers, loss_fn, optimizer, params, batches, feedback):
    """BP, except that the cotangent of a layer's input goes through fixed feedback kernels instead of its own.

    layers: K lists of (params, x) -> y, each linear in its own kernels, so that feedback acts on nothing but the
    cotangent. params, feedback: K lists of a tree a layer; of feedback only the leaves with ndim > 1 are used.
    Returns (params per stage, losses, staleness)."""

    @jit
    def batch(params, opt, x, labels):
        params, opt, inputs = list(params), list(opt), [[] for _ in layers]
        for stage, ps, seen in zip(layers, params, inputs, strict=True):
            for layer, p in zip(stage, ps, strict=True):
                seen.append(x)
                x = layer(p, x)
        loss, dy = jax.value_and_grad(loss_fn)(x, labels)
        for i in reversed(range(len(layers))):
            grads = []
            for layer, p, fixed, x in reversed(list(zip(layers[i], params[i], feedback[i], inputs[i], strict=True))):
                mixed = jax.tree.map(lambda own, other: other if own.ndim > 1 else own, p, fixed)
                grads.insert(0, jax.vjp(layer, p, x)[1](dy)[0])
                dy = jax.vjp(layer, mixed, x)[1](dy)[1]
            updates, opt[i] = optimizer.update(grads, opt[i], params[i])
            params[i] = optax.apply_updates(params[i], updates)
        return params, opt, loss

    opt, losses = [optimizer.init(p) for p in params], []
    for x, labels in batches:
        params, opt, loss = batch(params, opt, x, labels)
        losses.append(float(loss))
    return params, losses, [0] * len(layers)


def dfa(modules, loss_fn, optimizer, variables, batches, projections):
    """F_1..F_K; then every stage k < K gets the error at the outputs through its own P_k [classes, size of y per
    example], and goes back inside itself as ever."""
    stages, top, losses = made(modules, optimizer, variables), jit(jax.value_and_grad(loss_fn)), []
    for x, labels in batches:
        ran = {}
        for k, stage in stages.items():
            ran[k] = _, x = stage.forward(x)  # (the pass, y)
        loss, e = top(x, labels)
        losses.append(loss)
        for k, (forward, y) in ran.items():
            dy = e if k == len(stages) else (e @ projections[k - 1]).reshape(y.shape)
            stages[k].update([(stages[k].back(forward, dy)[0], forward)])
    return result(stages, losses)

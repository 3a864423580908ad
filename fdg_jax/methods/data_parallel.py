"""Data parallelism, the other way to use K devices: K replicas of the whole network, 1/K of the batch for each.

    θ^{t+1} = θ^t - γ_t (g^{t,1}(θ^t) + ... + g^{t,K}(θ^t)) / K        g^{t,r}: the gradient of part r of batch t

The network is cut into K stages, so that parameters, flags and checkpoints are the same as for every other method. The
schedule is BP's. Only the places differ: a stage is on all K devices, with its weights on each of them, and a batch is
split along its first axis. Gradients are averaged over the replicas inside the backward pass (an all-reduce). One
update follows, the same on all devices.

`--batch-norm sync`: a stage is simply BP's, computed on arrays that are spread over the devices; XLA inserts the
communication. A batch norm sees the whole batch, so this is BP for any module, except for the rounding of sums. If the
number of devices does not divide the batch size, every device computes the whole batch, which is exact but no faster.

`--batch-norm local` is what PyTorch's DistributedDataParallel does: a replica normalises with its own part of the batch
and keeps its own running statistics [K, ...] and dropout key. Evaluation uses replica 1's statistics. If K does not
divide the batch size, the parts are as equal as possible, are weighted by their numbers of examples, and are computed
on every device; a replica without an example keeps its statistics. Deviation: DistributedSampler instead repeats
examples, which then count twice.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fdg_jax.machine import programs
from fdg_jax.methods.interface import Method
from fdg_jax.options.fields import option
from fdg_jax.schedule import bp
from fdg_jax.stages.functions import Functions, Spec, raw_key, split_variables
from fdg_jax.stages.shapes import examples
from fdg_jax.stages.stage import Stage
from fdg_jax.stages.weighted import cut, weighted_sum
from fdg_jax.transport.devices import Place

Tree = Any
REPLICA = "replica"  # the mesh's only axis


@dataclasses.dataclass(frozen=True)
class Options:
    """Data parallelism's options."""

    batch_norm: Literal["local", "sync"] = option(
        "local",
        "data_parallel: statistics of each replica's own part of the batch (local, as PyTorch's DDP has it) or of the "
        "whole batch (sync: exactly BP).",
    )


class ReplicaPlace(Place):
    """A place on all devices. Each of them has the weights. A batch is split along its first axis if the number of
    devices divides its size.

    Arguments:
        devices: of the K replicas. If fewer are distinct, n of them are used for K/n replicas each; n divides K.
    """

    def __init__(self, devices: Sequence[Any]):
        K, distinct = len(devices), list(dict.fromkeys(devices))
        n = max(n for n in range(1, len(distinct) + 1) if K % n == 0)
        super().__init__(distinct[0])
        self.devices = distinct[:n]
        self.mesh = Mesh(np.array(distinct[:n]), (REPLICA,))

    def put_weights(self, tree: Tree) -> Tree:
        """Starts to copy a tree of arrays to every device; returns the copies."""
        return jax.device_put(tree, NamedSharding(self.mesh, P()))

    def put_batch(self, tree: Tree) -> Tree:
        """Starts to copy a tree of arrays [batch, ...] to the devices, a part to each; returns the copies."""

        def sharding(leaf):
            return NamedSharding(self.mesh, P() if len(leaf) % self.mesh.size else P(REPLICA))

        return jax.device_put(tree, jax.tree.map(sharding, tree))


def replica_places(devices: Sequence[Any]) -> list[ReplicaPlace]:
    """The places of K stages: each is on all devices."""
    return [ReplicaPlace(devices)] * len(devices)


class ReplicatedStage(Stage):
    """A stage on all devices. With local batch norms, leaves of `state.extra` are [K, ...], one entry per replica."""

    packs = False

    def make(self, spec: Spec):
        """The stage's functions for all replicas; with local batch norms each replica has statistics of its own."""
        batch_norm, place = spec.options["batch_norm"], self.place
        functions, state = super().make(spec)
        self.local = batch_norm == "local" and spec.K > 1  # a single replica is BP
        assert isinstance(place, ReplicaPlace)
        if not self.local:
            return functions, state
        extra = replicate(state.extra, spec.K, spec.key)
        return by_replica(functions, spec.K, place.mesh, spec.value.dtype), state._replace(extra=extra)

    def __init__(self, spec: Spec, place: Place, **options):
        super().__init__(spec, place, **options)
        self._first = programs.jit(first_replica)
        self.waits = place.device.platform == "cpu"
        self.spread_extra()

    def run(self, kind: str, batch: int, messages: dict[str, Tree]) -> dict[str, Tree]:
        self.wait_on_cpu(messages)
        return super().run(kind, batch, messages)

    def outputs(self, x: Tree, key: Any = None) -> Tree:
        self.wait_on_cpu(x)
        return super().outputs(x, key)

    def wait_on_cpu(self, arrays: Tree) -> None:
        """On a CPU, waits for the arrays that the next operation uses, so that few programs are under way.

        An all-reduce among emulated devices blocks one thread per device until all have arrived. There are as many
        threads as devices (or cores, if these are more). If too many programs are under way on a device, launching the
        next one blocks a thread, too. Then too few threads are left, and the training hangs. This was seen on 2 cores
        for K = 8, within 40 batches. Waiting costs little, as the method is locked anyway.
        """
        if self.waits:
            jax.block_until_ready(arrays)

    def restore(self, flat: Mapping[str, Any]) -> None:
        super().restore(flat)
        self.spread_extra()

    def spread_extra(self) -> None:
        """Puts each replica's statistics on that replica's device only."""
        if self.local:
            self.state = self.state._replace(extra=self.place.put_batch(self.state.extra))

    def variables(self):
        variables = super().variables()
        if not self.local:
            return variables
        params = variables.pop("params")
        return {"params": params, **self._first(variables)}

    def holding(self, variables):
        if self.local:
            params, extra = split_variables(variables)
            variables = {"params": params, **replicate(extra, self.spec.K, self.spec.key)}
        other = super().holding(variables)
        other.spread_extra()
        return other


def first_replica(tree: Tree) -> Tree:
    """The entries of replica 1 in a tree with leaves [K, ...]."""
    return jax.tree.map(lambda leaf: leaf[0], tree)


def replicate(extra: Mapping[str, Tree], K: int, key: jax.Array) -> dict[str, Tree]:
    """Statistics and random key for K replicas. All statistics are alike at first; replica 1 has the original key."""
    copied = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (K, *leaf.shape)), dict(extra))
    if "rng" in extra:
        (device,) = extra["rng"].devices()
        others = [jax.device_put(raw_key(each), device) for each in jax.random.split(key, K - 1)]
        copied["rng"] = jnp.stack([extra["rng"], *others])
    return copied


def split_batch(tree: Tree, K: int) -> Tree:
    """Arrays [b, ...] as [K, b/K, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(K, len(leaf) // K, *leaf.shape[1:]), tree)


def merge_batch(tree: Tree) -> Tree:
    """Arrays [K, n, ...] as [K n, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), tree)


def average_replicas(tree: Tree) -> Tree:
    """The mean over replicas; an all-reduce between devices."""
    return jax.tree.map(lambda leaf: jnp.mean(leaf, 0), tree)


def by_replica(functions: Functions, K: int, mesh: Mesh, loss_dtype: Any) -> Functions:
    """Makes a stage's functions run on K replicas.

    Each replica goes forward and backward on its own part of the batch, from its own mean loss. Gradients are averaged.
    Messages between stages stay [b, ...]. loss_dtype: of the loss.
    """
    each, unequal = map_replicas(K, mesh), in_unequal_parts(functions, K, loss_dtype)
    forwards = each(functions.forward)
    backwards = each(lambda params, closure, x, dy: functions.backward(closure, params, x, dy))

    def forward(params, extra, x, labels=None):
        if examples(x) % K:
            return unequal.forward(params, extra, x, labels)
        messages, extra, closure = forwards(params, extra, split_batch(x, K), split_batch(labels, K))
        return (
            {what: (average_replicas if what == "loss" else merge_batch)(m) for what, m in messages.items()},
            extra,
            closure,
        )

    def backward(closure, params, x, dy):
        if examples(x) % K:
            return unequal.backward(closure, params, x, dy)
        grads, dx = backwards(params, closure, split_batch(x, K), split_batch(dy, K))
        return average_replicas(grads), merge_batch(dx)

    return functions._replace(
        forward=forward,
        backward=backward,
        outputs=lambda params, extra, x, key: functions.outputs(params, first_replica(extra), x, key),
    )


def in_unequal_parts(functions: Functions, K: int, loss_dtype: Any) -> Functions:
    """A stage's functions for batches that K does not divide: all replicas, one after the other.

    A part's loss is weighted by the part's share of the examples. This share is also the cotangent of the loss, so the
    gradient has the same weight. The arguments are those of `by_replica`.
    """

    def parts(tree):
        return cut(tree, min(K, examples(tree)))

    def shares(x):
        return [jnp.asarray(examples(part) / examples(x), loss_dtype) for part in parts(x)]

    def forward(params, extra, x, labels):
        own = [jax.tree.map(lambda leaf, r=r: leaf[r], extra) for r in range(K)]
        ys = parts(labels) if labels is not None else [None] * K
        ran = [functions.forward(params, each, *batch) for each, *batch in zip(own, parts(x), ys, strict=False)]
        messages, extras, closures = zip(*ran, strict=True)
        extra = jax.tree.map(lambda *leaves: jnp.stack(leaves), *extras, *own[len(ran) :])
        if "loss" in messages[0]:
            return jax.tree.map(partial(weighted_sum, shares(x)), *messages), extra, closures
        return jax.tree.map(joined, *messages), extra, closures

    def backward(closures, params, x, dy):
        dys = shares(x) if dy is None else parts(dy)
        ran = [functions.backward(closure, params, *of) for closure, *of in zip(closures, parts(x), dys, strict=True)]
        grads, dx = zip(*ran, strict=True)
        return jax.tree.map(lambda *leaves: sum(leaves), *grads), jax.tree.map(joined, *dx)

    return functions._replace(forward=forward, backward=backward)


def joined(*parts: Any) -> Any:
    """Joins the arrays of a batch's parts into one. Arrays of float0 (cotangents of integers) have no values."""
    first = parts[0]
    if first.dtype == jax.dtypes.float0:
        return np.zeros((sum(map(len, parts)), *first.shape[1:]), first.dtype)
    return jnp.concatenate(parts)


def map_replicas(K: int, mesh: Mesh) -> Callable[[Callable], Callable]:
    """Returns each(run), which calls run(params, *trees) for every replica on its device; leaves are [K, ...].

    It does not use jax.vmap, which turns some convolutions into grouped ones: ResNet-8 then takes three times as long
    on a CPU.
    """

    def each(run: Callable) -> Callable:
        def here(params, *trees):
            own = [jax.tree.map(lambda leaf, i=i: leaf[i], trees) for i in range(K // mesh.size)]
            ran = [run(params, *mine) for mine in own]
            leaves, structures = zip(*map(jax.tree.flatten, ran), strict=True)
            # Closures of the same function have equal leaves but unequal structures, which jax.tree.map refuses.
            return jax.tree.unflatten(structures[0], [jnp.stack(leaf) for leaf in zip(*leaves, strict=True)])

        def mapped(params, *trees):
            specs = (P(), *[P(REPLICA)] * len(trees))
            # With check_vma, JAX would sum the gradients of replicated weights itself.
            return jax.shard_map(here, mesh=mesh, in_specs=specs, out_specs=P(REPLICA), check_vma=False)(params, *trees)

        return mapped

    return each


def shared_costs(K: int) -> Mapping[str, tuple[float, float, float]]:
    """The cost of an operation for each of the K devices that share it."""
    return {"F": (1 / K, 0, 0), "B": (0, 1 / K, 0)}


METHOD = Method(
    name="data_parallel",
    summary="K synchronous replicas of the whole network, 1/K of the batch each, gradients averaged",
    schedule=lambda K: bp(K)._replace(name="data_parallel"),
    options=Options,
    same_for_every_K=True,
    cost=shared_costs,
    stage=ReplicatedStage,
    places=replica_places,
)

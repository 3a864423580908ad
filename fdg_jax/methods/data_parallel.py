"""Data parallelism, the other way to use K devices: K replicas of the whole network, each with 1/K of the batch.

    θ^{t+1} = θ^t - γ_t (g^{t,1}(θ^t) + ... + g^{t,K}(θ^t)) / K        g^{t,r}: the gradient of part r of batch t

The network is cut into K stages, so that parameters, flags and checkpoints are the same as for every other method. The
schedule is BP's. Only the placement differs: each of the K devices has the weights of all stages, and a batch is split
along its first axis. Gradients are averaged over the replicas inside the backward pass (an all-reduce). Then all
devices make the same update.

`--batch-norm sync`: a stage's programs are those of BP. Their arrays are sharded over the devices, as for any stage on
several devices (`devices=[[a, b], ...]`), and XLA inserts the communication. A batch norm sees the whole batch, so this
is BP for any module, except for the rounding of sums. If the number of devices does not divide the batch size, every
device computes the whole batch, which is exact but no faster.

`--batch-norm local` behaves as PyTorch's DistributedDataParallel: each replica normalises with its own part of the
batch, and has its own running statistics [K, ...] and dropout key. Evaluation uses replica 1's statistics. If K does
not divide the batch size, the sizes of the parts differ by at most one. Each part is then weighted by its number of
examples, and every device computes all parts. A replica without examples keeps its statistics. Deviation: PyTorch's
DistributedSampler instead repeats examples, which then count twice.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from fdg_jax.machine import programs
from fdg_jax.methods.interface import Method
from fdg_jax.options.fields import option
from fdg_jax.schedule import bp
from fdg_jax.stages.functions import Functions, Spec, raw_key, split_variables
from fdg_jax.stages.shapes import examples
from fdg_jax.stages.stage import Stage
from fdg_jax.stages.weighted import cut, weighted_sum
from fdg_jax.transport.devices import MeshPlace

Tree = Any
REPLICA = "data"  # the mesh's only axis


@dataclasses.dataclass(frozen=True)
class Options:
    """Data parallelism's options."""

    batch_norm: Literal["local", "sync"] = option(
        "local",
        "data_parallel: BatchNorm's statistics are of each replica's part of the batch (local, as in PyTorch's DDP) or "
        "of the whole batch (sync: exactly BP).",
    )


def replica_places(devices: Sequence[Any]) -> list[MeshPlace]:
    """The places of K stages, each on all devices. If the n distinct devices are fewer than K, each computes K/n
    replicas. If n does not divide K, fewer devices are used."""
    K, distinct = len(devices), list(dict.fromkeys(devices))
    n = max(n for n in range(1, len(distinct) + 1) if K % n == 0)
    return [MeshPlace(Mesh(np.array(distinct[:n]), (REPLICA,)))] * K


class ReplicatedStage(Stage):
    """A stage on all devices. With local batch norms, leaves of `state.extra` are [K, ...], one entry per replica, each
    on its replica's device."""

    packs = False

    def make(self, spec: Spec):
        """The stage's functions. With local batch norms they compute all replicas, each with its own statistics."""
        functions, state = super().make(spec)
        self.local = spec.options["batch_norm"] == "local" and spec.K > 1  # a single replica is BP
        if not self.local:
            return functions, state
        assert isinstance(self.place, MeshPlace)
        self._first = programs.jit(first)
        extra = self.place.put_batch(replicate(state.extra, spec.K, spec.key))
        return by_replica(functions, spec.K, self.place.mesh), state._replace(extra=extra)

    def variables(self):
        variables = super().variables()
        if not self.local:
            return variables
        return {name: tree if name == "params" else self._first(tree) for name, tree in variables.items()}

    def own_trees(self, variables):
        if self.local:
            params, extra = split_variables(variables)
            variables = {"params": params, **replicate(extra, self.spec.K, self.spec.key)}
        return super().own_trees(variables)


def first(tree: Tree) -> Tree:
    """The entries of replica 1 in a tree with leaves [K, ...]."""
    return jax.tree.map(lambda leaf: leaf[0], tree)


def replicate(extra: Mapping[str, Tree], K: int, key: jax.Array) -> dict[str, Tree]:
    """Statistics and random keys for K replicas. All replicas have the same initial statistics. Replica 1 has the
    original key."""
    copied = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (K, *leaf.shape)), dict(extra))
    if "rng" in extra:
        (device,) = extra["rng"].devices()
        others = [jax.device_put(raw_key(each), device) for each in jax.random.split(key, K - 1)]
        copied["rng"] = jnp.stack([extra["rng"], *others])
    return copied


def by_replica(functions: Functions, K: int, mesh: Mesh) -> Functions:
    """Makes a stage's functions compute K replicas, each with its own part of the batch and its own mean loss.

    Losses and gradients are averaged, weighted by the fraction of examples in each part. Messages between stages stay
    [b, ...]. It does not use jax.vmap, because vmap turns some convolutions into grouped ones: ResNet-8 then takes
    three times as long on a CPU.
    """

    def spread(b: int, run: Callable) -> Callable:
        """Maps run(params, *trees) over the devices. Each device computes its replicas one after the other. If K does
        not divide the b examples, `run` is returned as it is, and every device computes all replicas."""

        def mapped(params, *trees):
            specs = (P(), *[P(REPLICA)] * len(trees))
            # With check_vma, JAX would sum the gradients of replicated weights itself.
            return jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=P(REPLICA), check_vma=False)(params, *trees)

        return run if b % K else mapped

    def mean(b: int, parts: Sequence[Any], *trees: Tree) -> Tree:
        """A device's contribution to the mean over b examples, [1, ...]. trees: the results of the device's parts."""
        shares = [examples(x) / b for x, _ in parts]
        return jax.tree.map(lambda *leaves: weighted_sum(shares, *leaves)[None], *trees)

    def forward(params, extra, x, labels=None):
        b = examples(x)

        def run(params, extra, x, labels):
            own = [jax.tree.map(lambda leaf, r=r: leaf[r], extra) for r in range(K if b % K else K // mesh.size)]
            parts = cut((x, labels), min(len(own), examples(x)))
            ran = [functions.forward(params, each, *part) for each, part in zip(own, parts, strict=False)]
            messages, extras, closures = zip(*ran, strict=True)
            extra = jax.tree.map(lambda *leaves: jnp.stack(leaves), *extras, *own[len(ran) :])
            messages = mean(b, parts, *messages) if "loss" in messages[0] else jax.tree.map(joined, *messages)
            return messages, extra, [jax.tree.map(lambda leaf: leaf[None], closure) for closure in closures]

        messages, extra, closures = spread(b, run)(params, extra, x, labels)
        return summed(messages) if "loss" in messages else messages, extra, closures

    def backward(closures, params, x, dy):
        b = examples(x)

        def run(params, closures, x, dy):
            parts = cut((x, dy), len(closures))
            ran = [functions.backward(first(of), params, *part) for of, part in zip(closures, parts, strict=True)]
            grads, dx = zip(*ran, strict=True)
            return mean(b, parts, *grads), jax.tree.map(joined, *dx)

        grads, dx = spread(b, run)(params, closures, x, dy)
        return summed(grads), dx

    outputs = lambda params, extra, x, key: functions.outputs(params, first(extra), x, key)  # noqa: E731
    return functions._replace(forward=forward, backward=backward, outputs=outputs)


def summed(tree: Tree) -> Tree:
    """Sums leaves [devices, ...] over the devices: an all-reduce."""
    return jax.tree.map(lambda leaf: jnp.sum(leaf, 0), tree)


def joined(*parts: Any) -> Any:
    """Joins the arrays of a batch's parts into one. For float0 (cotangents of integers), which has no values, it makes
    a new array."""
    like = parts[0]
    if like.dtype == jax.dtypes.float0:
        return np.zeros((sum(map(len, parts)), *like.shape[1:]), like.dtype)
    return jnp.concatenate(parts)


def shared_costs(K: int) -> Mapping[str, tuple[float, float, float]]:
    """The cost of an operation that K devices share, for each device."""
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

"""Data parallelism, the other thing to do with K devices: K replicas of the whole network, 1/K of the batch for each.

The network is cut into K stages as ever, so that parameters, flags and checkpoints are those of every method, and the
schedule is BP's. What differs is where a stage lies: on all K devices, its weights on every one of them, a batch cut
along its first axis. Gradients are averaged over the replicas inside the backward pass (an all-reduce), then there is
one update, the same everywhere.

`--batch-norm sync`: a stage is simply BP's, computed on arrays that are spread; XLA inserts the communication. A batch
norm sees the whole batch, so this is BP for any module, but for the rounding of sums. A batch that the devices do not
divide is computed on every device: exact, only not faster.

`--batch-norm local` is what PyTorch's DistributedDataParallel does: a replica normalises by its own part of the batch
and keeps its own running statistics [K, ...] and dropout key. Evaluation uses replica 1's statistics. A batch that K
does not divide is filled up with its own first examples, as DistributedSampler does with a whole epoch; they count
twice, in the loss too. Deviation: images are augmented before the batch is cut, so those examples are the very same.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fdg_jax.methods.interface import Method
from fdg_jax.options.fields import option
from fdg_jax.schedule import bp
from fdg_jax.stage.functions import Functions, Spec
from fdg_jax.stage.stage import Stage
from fdg_jax.transport.devices import Place

Tree = Any
REPLICA = "replica"  # the mesh's only axis


@dataclasses.dataclass(frozen=True)
class Options:
    """What data parallelism can be asked for."""

    batch_norm: Literal["local", "sync"] = option(
        "local",
        "data_parallel: statistics of each replica's own part of the batch (local, as PyTorch's DDP has it) or of the "
        "whole batch (sync: exactly BP).",
    )


class Spread(Place):
    """All devices: weights on each of them, a batch cut along its first axis where they divide it.

    K replicas on fewer than K distinct devices: as many on one device as on any other.
    """

    def __init__(self, devices: Sequence[Any]):
        K, distinct = len(devices), list(dict.fromkeys(devices))
        n = max(n for n in range(1, len(distinct) + 1) if K % n == 0)
        super().__init__(distinct[0])
        self.devices = distinct[:n]
        self.mesh = Mesh(np.array(distinct[:n]), (REPLICA,))

    def weights(self, tree: Tree) -> Tree:
        return jax.device_put(tree, NamedSharding(self.mesh, P()))

    def batch(self, tree: Tree) -> Tree:
        def sharding(leaf):
            return NamedSharding(self.mesh, P() if len(leaf) % self.mesh.size else P(REPLICA))

        return jax.device_put(tree, jax.tree.map(sharding, tree))


def everywhere(devices: Sequence[Any]) -> list[Spread]:
    """The places of K stages: all of them on all devices."""
    return [Spread(devices)] * len(devices)


class Replicated(Stage):
    """A stage on all devices. With local batch norms every leaf of `state.extra` is [K, ...], one for each replica."""

    packs = False

    def make(self, spec: Spec):
        batch_norm, place = spec.options["batch_norm"], self.place
        functions, state = super().make(spec)
        self.local = batch_norm == "local" and spec.K > 1  # one replica is BP
        assert isinstance(place, Spread)
        if not self.local:
            return functions, state
        return by_replica(functions, spec.K, place.mesh), state._replace(extra=copies(state.extra, spec.K, spec.key))

    def __init__(self, spec: Spec, place: Place, **options):
        super().__init__(spec, place, **options)
        self._first = jax.jit(first)
        self.patient = place.device.platform == "cpu"
        self.spread()

    def run(self, kind: str, batch: int, messages: dict[str, Tree]) -> dict[str, Tree]:
        self.settle(messages)
        return super().run(kind, batch, messages)

    def outputs(self, x: Tree) -> Tree:
        self.settle(x)
        return super().outputs(x)

    def settle(self, arrays: Tree) -> None:
        """On a CPU, waits for what is about to be used, so that few programs are under way.

        An all-reduce among emulated devices occupies a thread for each until all have come, of as many threads as there
        are devices (or cores, if more). When too many programs are under way on a device, launching the next one blocks
        a thread too, and the rest no longer suffice: seen on 2 cores, for K = 8 within 40 batches. Little is lost, as
        the method is locked anyway.
        """
        if self.patient:
            jax.block_until_ready(arrays)

    def restore(self, flat: Mapping[str, Any]) -> None:
        super().restore(flat)
        self.spread()

    def spread(self) -> None:
        """Puts what belongs to a replica on that replica's device only."""
        if self.local:
            self.state = self.state._replace(extra=self.place.batch(self.state.extra))

    def variables(self):
        variables = super().variables()
        if not self.local:
            return variables
        params = variables.pop("params")
        return {"params": params, **self._first(variables)}


def first(tree: Tree) -> Tree:
    """Replica 1's of leaves [K, ...]."""
    return jax.tree.map(lambda leaf: leaf[0], tree)


def copies(extra: Mapping[str, Tree], K: int, key: jax.Array) -> dict[str, Tree]:
    """Statistics for each of K replicas, all alike at first, and a key for each; replica 1's is the one there was."""
    copied = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (K, *leaf.shape)), dict(extra))
    if "rng" in extra:
        others = jax.random.key_data(jax.random.split(key, K - 1))
        copied["rng"] = jnp.concatenate([extra["rng"][None], others])
    return copied


def cut(tree: Tree, K: int) -> Tree:
    """Arrays [b, ...] as [K, b/K, ...], filled up with their own first examples where K does not divide b."""

    def parts(leaf):
        b = len(leaf)
        n = -(-b // K)
        filled = leaf if n * K == b else leaf[np.arange(n * K) % b]
        return filled.reshape(K, n, *leaf.shape[1:])

    return jax.tree.map(parts, tree)


def joined(tree: Tree) -> Tree:
    """Arrays [K, n, ...] as [K n, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), tree)


def average(tree: Tree) -> Tree:
    """The mean over replicas: between devices an all-reduce."""
    return jax.tree.map(lambda leaf: jnp.mean(leaf, 0), tree)


def by_replica(functions: Functions, K: int, mesh: Mesh) -> Functions:
    """A stage's functions on K replicas: each goes forward and backward on its own part of the batch from its own mean
    loss, and gradients are averaged. Messages between stages stay [b, ...]."""
    each = partial_map(K, mesh)
    forwards = each(functions.forward)
    backwards = each(lambda params, closure, x, dy: functions.backward(closure, params, x, dy))

    def forward(params, extra, x, labels=None):
        messages, extra, closure = forwards(params, extra, cut(x, K), cut(labels, K))
        return {what: (average if what == "loss" else joined)(m) for what, m in messages.items()}, extra, closure

    def backward(closure, params, x, dy):
        grads, dx = backwards(params, closure, cut(x, K), cut(dy, K))
        return average(grads), joined(dx)

    return functions._replace(
        forward=forward, backward=backward, outputs=lambda params, extra, x: functions.outputs(params, first(extra), x)
    )


def partial_map(K: int, mesh: Mesh) -> Callable[[Callable], Callable]:
    """each(run): run(params, *trees) for every replica on its own device; leaves of trees and result are [K, ...].

    Not jax.vmap: it makes grouped convolutions of some, and ResNet-8 then takes three times as long on a CPU.
    """

    def each(run: Callable) -> Callable:
        def here(params, *trees):
            own = [jax.tree.map(lambda leaf, i=i: leaf[i], trees) for i in range(K // mesh.size)]
            ran = [run(params, *mine) for mine in own]
            leaves, structures = zip(*map(jax.tree.flatten, ran), strict=True)
            # Closures of the same function are alike but not equal, so jax.tree.map would refuse them.
            return jax.tree.unflatten(structures[0], [jnp.stack(leaf) for leaf in zip(*leaves, strict=True)])

        def mapped(params, *trees):
            specs = (P(), *[P(REPLICA)] * len(trees))
            # check_vma would sum gradients of replicated weights by itself.
            return jax.shard_map(here, mesh=mesh, in_specs=specs, out_specs=P(REPLICA), check_vma=False)(params, *trees)

        return mapped

    return each


def share(K: int) -> Mapping[str, tuple[float, float, float]]:
    """What an operation costs a device: K of them do it together."""
    return {"F": (1 / K, 0, 0), "B": (0, 1 / K, 0)}


METHOD = Method(
    name="data_parallel",
    summary="K synchronous replicas of the whole network, 1/K of the batch each, gradients averaged",
    schedule=lambda K: bp(K)._replace(name="data_parallel"),
    options=Options,
    same_for_every_K=True,
    cost=share,
    stage=Replicated,
    places=everywhere,
)

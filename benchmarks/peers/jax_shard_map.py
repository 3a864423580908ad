"""Data parallel in plain JAX, without our engine: one jax.jit of one jax.shard_map over K CPU devices.

A JAX user without fdg_jax would write such a step. The whole step is one program, gradients are averaged by
`lax.pmean`, and each replica normalises by its own part of the batch. Network, augmentation and optimizer are
fdg_jax's, so only the engine differs from the side data_parallel. This side has huge pages, like all sides. Unlike
fdg_jax's engine, it has no separate programs for forward and backward pass.
"""

from typing import Any

import jax
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from benchmarks.harness import bench_worker, serving, side_specs
from fdg_jax import models, split
from fdg_jax.data.augment import train_transform
from fdg_jax.data.sets import synthetic
from fdg_jax.layers import convolution
from fdg_jax.machine import programs
from fdg_jax.recipe import paper_sgd
from fdg_jax.training.job import cross_entropy


class Trainer:
    def __init__(self, side: side_specs.Side):
        jax.config.update("jax_num_cpu_devices", side.K)
        convolution.PLAIN = side.options["layers"] == "plain"
        self.data, self.size = synthetic.load(), side.batch_size
        blocks = models.blocks(side.model, self.data.classes)
        self.blocks, net = len(blocks), split.stages(blocks, ())[0]
        optimizer, transform = paper_sgd(0.01), train_transform(self.data, 0)
        variables = split.init_whole(blocks, jax.random.key(0), jax.ShapeDtypeStruct((2, 32, 32, 3), np.float32))
        params, statistics = variables["params"], variables.get("batch_stats", {})

        def step(params, statistics, momentum, images, labels, number):
            """A replica's share of a step: images [b / K, h, w, c] uint8, its own statistics [1, ...]."""

            def loss_of(params):
                own = jax.tree.map(lambda leaf: leaf[0], statistics)
                x = transform(images, number * side.K + lax.axis_index("replica"))
                logits, changed = net.apply({"params": params, "batch_stats": own}, x, True, mutable=["batch_stats"])
                return cross_entropy(logits, labels), changed

            (loss, changed), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
            gradients, loss = lax.pmean((gradients, loss), "replica")
            updates, momentum = optimizer.update(gradients, momentum, params)
            statistics = jax.tree.map(lambda leaf: leaf[None], changed.get("batch_stats", {}))
            return optax.apply_updates(params, updates), statistics, momentum, loss

        mesh = Mesh(np.array(jax.devices()[: side.K]), ("replica",))
        everywhere, own = P(), P("replica")
        # check_vma would itself sum the gradients of replicated weights.
        given, made = (everywhere, own, everywhere, own, own, everywhere), (everywhere, own, everywhere, everywhere)
        spread = jax.shard_map(step, mesh=mesh, in_specs=given, out_specs=made, check_vma=False)
        self.step = programs.jit(spread, donate_argnums=(0, 1, 2))
        copies = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (side.K, *leaf.shape)), statistics)
        self.state = jax.device_put((params, copies, optimizer.init(params)))
        self.parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
        self.random, self.number = np.random.default_rng(0), 0

    def run(self, batches: int) -> dict[str, float]:
        return serving.clocked(lambda: self.train(batches))

    def train(self, batches: int) -> float:
        """Trains and returns the loss of the last batch. Steps are dispatched one after the other, with one wait at the
        end."""
        loss = None
        for _ in range(batches):
            chosen = self.random.integers(0, len(self.data.train_images), self.size)
            images, labels = self.data.train_images[chosen], self.data.train_labels[chosen]
            *self.state, loss = self.step(*self.state, images, labels, np.int32(self.number))
            self.number += 1
        return float(jax.block_until_ready((loss, self.state))[0])  # type: ignore[arg-type]

    def about(self) -> dict[str, Any]:
        of_network = {"cuts": [], "blocks": self.blocks, "parameters": self.parameters, "staleness": [0]}
        return {**of_network, **bench_worker.software()}

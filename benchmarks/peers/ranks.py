"""A peer of several processes, which find each other over a file."""

import dataclasses
import os
import tempfile

from benchmarks.harness import ranks, side_specs

MEETING = "FDG_JAX_PEER_MEETING"  # in the environment of a rank: the file


class Ranks(ranks.Ranks):
    """K processes that answer as one."""

    def __init__(self, side: side_specs.Side):
        if side.split is not None:
            side = dataclasses.replace(side, split=cut(side))
        with tempfile.TemporaryDirectory(prefix="fdg_jax-peer-") as folder:
            meeting = {MEETING: os.path.join(folder, "meeting"), "GLOO_SOCKET_IFNAME": "lo"}
            worker = f"benchmarks.peers.{side.engine}.Trainer"
            super().__init__(ranks.of_stages(worker, side, {**os.environ, **meeting}))


def cut(side: side_specs.Side) -> str:
    """The block numbers at which fdg_jax would cut this network."""
    from fdg_jax import models, split
    from fdg_jax.data.sets import synthetic

    blocks = models.blocks(side.model, synthetic.CLASSES)
    costs = split.block_costs(side.model, synthetic.CLASSES, (1, 32, 32, 3))
    return ",".join(map(str, split.parse(side.split or "", side.model, side.K, len(blocks), costs)))

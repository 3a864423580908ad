"""DistributedDataParallel over gloo: a rank trains the whole network on its part of each batch.

Each replica normalises by its own part of the batch (PyTorch's synchronised batch norm needs GPUs). PyTorch's default
broadcast of the running statistics is off, since training does not need it.
"""

# pyright: reportMissingImports=false

import os

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import serving, side_specs
from benchmarks.peers import torch_bp, torch_recipe
from benchmarks.peers.ranks import MEETING


class Trainer(torch_bp.Trainer):
    """A rank."""

    def __init__(self, side: side_specs.Side):
        rank = int(os.environ[serving.RANK])
        super().__init__(side)
        self.batches = torch_recipe.Batches(side, side.batch_size // side.K, seed=rank)
        dist.init_process_group("gloo", init_method=f"file://{os.environ[MEETING]}", rank=rank, world_size=side.K)
        self.net = DistributedDataParallel(self.net, broadcast_buffers=False, gradient_as_bucket_view=True)

"""torch.distributed.pipelining over gloo: a rank is a stage of GPipe or 1F1B, and batches go through in micro-batches.

A batch norm sees one micro-batch at a time, as in any such pipeline. Gradients are the mean over micro-batches.
Messages are contiguous, as gloo requires: [b, h, w, c] if activations have this layout.
"""

# pyright: reportMissingImports=false

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from benchmarks.harness import serving, side_specs
from benchmarks.peers import torch_net, torch_recipe
from benchmarks.peers.ranks import MEETING

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Part(nn.Sequential):
    """Blocks of a stage.

    wired_in, wired_out: whether activations come in, and go out, as [b, h, w, c].
    """

    wired_in = wired_out = False

    def forward(self, x):
        if x.requires_grad:  # gloo sends dx, and a sum of gradients with several layouts may have any layout
            x.register_hook(torch.Tensor.contiguous)
        y = super().forward(x.permute(0, 3, 1, 2) if self.wired_in else x)
        return (y.permute(0, 2, 3, 1) if self.wired_out else y).contiguous()


class Trainer:
    """A rank, which is stage k = rank + 1."""

    def __init__(self, side: side_specs.Side):
        rank, K = int(os.environ[serving.RANK]), side.K
        self.first, self.last = rank == 0, rank == K - 1
        torch_recipe.settle(side, seed=rank)
        self.batches = torch_recipe.Batches(side, side.batch_size)
        self.blocks = torch_net.blocks(side.model, self.batches.data.classes)
        assert side.split is not None
        self.cuts = [int(number) for number in side.split.split(",")]
        start, end = ([0, *self.cuts, len(self.blocks)][rank + i] for i in (0, 1))
        part = Part(*self.blocks[start:end]).to(memory_format=torch_recipe.layout(side))
        channels_last = side.options["layout"] == "channels-last"
        part.wired_in, part.wired_out = channels_last and not self.first, channels_last and not self.last
        self.optimizer = torch_recipe.optimizer(part)
        dist.init_process_group("gloo", init_method=f"file://{os.environ[MEETING]}", rank=rank, world_size=K)
        stage = PipelineStage(part, rank, K, torch.device("cpu"))
        self.schedule = SCHEDULES[side.options["schedule"]](stage, side.options["micro_batches"], torch_recipe.loss)

    def run(self, batches: int) -> dict[str, float]:
        return serving.clocked(lambda: self.train(batches))

    def train(self, batches: int) -> float:
        """Trains and returns the mean loss of the last batch's micro-batches; 0 on all ranks but the last."""
        losses = []
        for x, labels in self.batches(batches, images=self.first, labels=self.last):
            self.optimizer.zero_grad()
            losses = []
            inputs = (x,) if self.first else ()
            self.schedule.step(*inputs, target=labels, losses=losses if self.last else None, return_outputs=False)
            self.optimizer.step()
        return torch.stack(losses).mean().item() if losses else 0.0

    def about(self) -> dict[str, Any]:
        return torch_recipe.about(self.blocks) | {"cuts": self.cuts}

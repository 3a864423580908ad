"""Back-propagation in PyTorch: one process, one or more threads."""

# pyright: reportMissingImports=false

from typing import Any

from torch import nn

from benchmarks.harness.serving import clocked
from benchmarks.harness.side_specs import Side
from benchmarks.peers import torch_net, torch_recipe


class Trainer:
    def __init__(self, side: Side):
        torch_recipe.settle(side)
        self.batches = torch_recipe.Batches(side, side.batch_size)
        self.blocks = torch_net.blocks(side.model, self.batches.data.classes)
        self.net = nn.Sequential(*self.blocks).to(memory_format=torch_recipe.layout(side))
        self.optimizer = torch_recipe.optimizer(self.net)

    def run(self, batches: int) -> dict[str, float]:
        return clocked(lambda: self.train(batches))

    def train(self, batches: int) -> float:
        """The loss of the last batch."""
        value = None
        for x, labels in self.batches(batches):
            self.optimizer.zero_grad()
            value = torch_recipe.loss(self.net(x), labels)
            value.backward()
            self.optimizer.step()
        assert value is not None
        return value.item()

    def about(self) -> dict[str, Any]:
        return torch_recipe.about(self.blocks)

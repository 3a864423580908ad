"""Back-propagation in PyTorch: one process, on one or more threads of a CPU, or on a GPU."""

# pyright: reportMissingImports=false

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.harness import serving, side_specs
from benchmarks.peers import torch_net, torch_recipe
from fdg_jax.errors import BadInput

WARM_STEPS = 5  # before a step is recorded, to make the optimizer's state


class Trainer:
    def __init__(self, side: side_specs.Side):
        if side.device == "gpu" and not torch.cuda.is_available():
            raise BadInput("PyTorch finds no GPU here")
        torch_recipe.settle(side)
        self.side, self.batches = side, torch_recipe.Batches(side, side.batch_size)
        self.blocks = torch_net.blocks(side.model, self.batches.data.classes)
        net = nn.Sequential(*self.blocks).to(torch_recipe.device(side))
        self.net = net.to(memory_format=torch_recipe.layout(side))
        self.optimizer = torch_recipe.optimizer(self.net)
        self.step: Callable[..., torch.Tensor] = self.step_eagerly
        if side.options.get("graph"):
            self.step = self.recorded()

    def run(self, batches: int) -> dict[str, float]:
        return serving.clocked(lambda: self.train(batches))

    def train(self, batches: int) -> float:
        """Trains and returns the loss of the last batch; reading the loss waits until all is computed."""
        value = None
        for x, labels in self.batches(batches):
            value = self.step(x, labels)
        assert value is not None
        return value.item()

    def step_eagerly(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        with torch_recipe.computing(self.side):
            value = torch_recipe.loss(self.net(x), labels)
        value.backward()
        self.optimizer.step()
        return value

    def recorded(self) -> Callable[..., torch.Tensor]:
        """A step as one CUDA graph, made by PyTorch's own recipe, so that the host launches it once."""
        ((x, labels),) = self.batches(1)
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(WARM_STEPS):
                self.step_eagerly(x, labels)
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad()
        with torch.cuda.graph(graph):
            value = self.step_eagerly(x, labels)

        def step(next_x: torch.Tensor, next_labels: torch.Tensor) -> torch.Tensor:
            x.copy_(next_x)
            labels.copy_(next_labels)
            graph.replay()
            return value

        return step

    def about(self) -> dict[str, Any]:
        return torch_recipe.about(self.blocks)

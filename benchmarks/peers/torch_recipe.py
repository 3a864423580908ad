"""The common code of all peers in PyTorch: settings, images, augmentation, loss, optimizer, and their report.

The images are those of fdg_jax's sides, cropped, mirrored and normalised by the same rules. The random choices come
from PyTorch's generator, so they are different. The optimizer is PyTorch's SGD, which equals the paper's.
"""

# pyright: reportMissingImports=false

import platform
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.harness.side_specs import Side
from fdg_jax.data.dataset import Dataset
from fdg_jax.data.sets import synthetic
from fdg_jax.machine import huge_pages

LEARNING_RATE = 0.01  # as for fdg_jax's sides


def settle(side: Side, seed: int = 0) -> None:
    """Sets the threads and the seed of this process, before anything is computed."""
    torch.set_num_threads(side.options.get("threads", 1))
    for products in (torch.backends.cuda.matmul, torch.backends.cudnn):
        products.allow_tf32 = side.precision != "highest"
    torch.manual_seed(seed)


def device(side: Side) -> torch.device:
    return torch.device("cuda" if side.device == "gpu" else "cpu")


def computing(side: Side) -> Any:
    """A context for the forward pass, which sets its dtype."""
    in_bfloat16 = side.dtype == "bfloat16"
    return torch.autocast(device(side).type, torch.bfloat16, enabled=in_bfloat16, cache_enabled=False)


def layout(side: Side) -> torch.memory_format:
    """The memory format of images, activations and kernels, for `.to(memory_format=...)`."""
    return torch.channels_last if side.options["layout"] == "channels-last" else torch.contiguous_format


def optimizer(net: nn.Module) -> torch.optim.Optimizer:
    """The SGD of fdg_jax.recipe.paper_sgd; one kernel updates all parameters."""
    return torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=0.9, weight_decay=5e-4, fused=True)


loss = nn.CrossEntropyLoss()


class Batches:
    """Endless batches of `size` images; a process may ask for the labels only.

    The same seed gives the same images. Augmentation has a generator of its own.
    """

    def __init__(self, side: Side, size: int, seed: int = 0):
        self.layout, self.size, self.data, self.device = layout(side), size, synthetic.load(), device(side)
        self.images = torch.from_numpy(self.data.train_images).to(self.device)
        self.labels = torch.from_numpy(self.data.train_labels).long().to(self.device)
        self.order = torch.Generator(self.device).manual_seed(seed)
        self.choices = torch.Generator(self.device).manual_seed(seed + 1000)

    def __call__(self, n: int, images: bool = True, labels: bool = True) -> Iterator[tuple[Any, Any]]:
        """n batches (x float32 [size, c, h, w], labels [size]); None for images or labels that the caller does not
        want."""
        for _ in range(n):
            chosen = torch.randint(len(self.images), (self.size,), generator=self.order, device=self.device)
            yield self.augmented(self.images[chosen]) if images else None, self.labels[chosen] if labels else None

    def augmented(self, images: torch.Tensor) -> torch.Tensor:
        drawn = {"generator": self.choices, "device": self.device}
        down, right = torch.randint(2 * self.data.pad + 1, (2, len(images)), **drawn)
        mirrored = torch.randint(2, (len(images),), **drawn).bool()
        return augment(images, down, right, mirrored, self.data).to(memory_format=self.layout)


def augment(images, down, right, mirrored, data: Dataset) -> torch.Tensor:
    """Images [b, h, w, c] uint8 -> [b, c, h, w] float32, by the rules of fdg_jax.data.augment.

    down, right: pixels [b] cut off the padded image. mirrored: [b] bool.
    """
    b, h, w, c = images.shape
    pad, on = data.pad, images.device
    padded = torch.zeros(b, h + 2 * pad, w + 2 * pad, c, dtype=torch.uint8, device=on)
    padded[:, pad : pad + h, pad : pad + w] = images
    down_to, across = torch.arange(h, device=on), torch.arange(w, device=on)
    rows = down[:, None] + down_to  # [b, h]
    columns = torch.where(mirrored[:, None], w - 1 - across, across) + right[:, None]  # [b, w]
    cropped = padded[torch.arange(b, device=on)[:, None, None], rows[:, :, None], columns[:, None, :]]
    mean, std = (torch.tensor(numbers, device=on) * 255 for numbers in (data.mean, data.std))
    return cropped.float().sub_(mean).mul_(1 / std).permute(0, 3, 1, 2)


def about(blocks: Sequence[nn.Module]) -> dict[str, Any]:
    """The facts to report besides the side itself. blocks: all blocks of the network, even if this process trains only
    some of them."""
    parameters = sum(parameter.numel() for block in blocks for parameter in block.parameters())
    software = {"python": platform.python_version(), "torch": torch.__version__, "huge_pages": huge_pages.on()}
    return {"cuts": [], "blocks": len(blocks), "parameters": parameters, "staleness": [0], **software}

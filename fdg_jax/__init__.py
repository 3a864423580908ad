"""Fully decoupled learning with delayed gradients (FDG) in JAX and Flax.

Begin with `Pipeline` (fdg_jax/api.py). The names below are imported on first use (PEP 562). So `import fdg_jax` does
not import JAX, `fdg_jax.schedule` works without it, and a command can report bad input within a second.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_MODULE_OF = {
    "Pipeline": "api",
    "Metrics": "engine.losses",
    "Evaluation": "engine.evaluate",
    "Weighted": "stages.weighted",
    "from_functions": "stages.adapter",
    "from_nnx": "stages.from_nnx",
    "stage": "stages.adapter",
    "tie": "stages.tied",
    "BadInput": "errors",
    "emulate_cpu": "transport.devices",
    "join_processes": "transport.joining",
    "load": "checkpoint.weights",
    "load_run": "training.trained",
    "load_weights": "checkpoint.weights",
    "save_weights": "checkpoint.weights",
}

if TYPE_CHECKING:
    from fdg_jax.api import Pipeline as Pipeline
    from fdg_jax.checkpoint.weights import load as load
    from fdg_jax.checkpoint.weights import load_weights as load_weights
    from fdg_jax.checkpoint.weights import save_weights as save_weights
    from fdg_jax.engine.evaluate import Evaluation as Evaluation
    from fdg_jax.engine.losses import Metrics as Metrics
    from fdg_jax.errors import BadInput as BadInput
    from fdg_jax.stages.adapter import from_functions as from_functions
    from fdg_jax.stages.adapter import stage as stage
    from fdg_jax.stages.from_nnx import from_nnx as from_nnx
    from fdg_jax.stages.tied import tie as tie
    from fdg_jax.stages.weighted import Weighted as Weighted
    from fdg_jax.training.trained import load_run as load_run
    from fdg_jax.transport.devices import emulate_cpu as emulate_cpu
    from fdg_jax.transport.joining import join_processes as join_processes
else:
    __all__ = [*_MODULE_OF]


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})


def __getattr__(name: str):
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'fdg_jax' has no attribute {name!r}")
    return getattr(import_module(f"fdg_jax.{_MODULE_OF[name]}"), name)

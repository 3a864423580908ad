"""Corrections as a user would write them, that of docs/extending.md among them, and their folder."""

import re
import sys
from pathlib import Path

from fdg_jax import corrections

TAYLOR = """
import dataclasses

import jax
from fdg_jax.corrections.interface import Correction, CorrectionSpec, Late
from fdg_jax.errors import BadInput
from fdg_jax.options.fields import option


@dataclasses.dataclass(frozen=True)
class Options:
    strength: float = option(0.5, "taylor: how much of g * g * (weights now - weights then) is added.")

    def __post_init__(self):
        if self.strength < 0:
            raise BadInput(f"strength={self.strength}: it cannot be negative. Use 0.5, say.")


def make(late: Late, strength: float) -> Correction:
    def gradient(grads, then, now, state):
        compensated = lambda g, a, b: g + strength * g * g * (b - a)
        return jax.tree.map(compensated, grads, then, now), state

    return Correction(gradient=gradient)


CORRECTION = CorrectionSpec(name="taylor", summary="a first-order guess", make=make, options=Options)
"""
AHEAD = """
import dataclasses

import jax
import jax.numpy as jnp
from fdg_jax.corrections.interface import Correction, CorrectionSpec, Late
from fdg_jax.options.fields import option


@dataclasses.dataclass(frozen=True)
class Options:
    horizon: float = option(1.0, "ahead: how far ahead, in times of the staleness.", metavar="H")


def make(late: Late, horizon: float) -> Correction:
    rate = late.learning_rate(0)

    def gradient(grads, then, now, state):
        return grads, grads  # the newest gradient is what the next forward pass looks ahead with

    def forward(params, state):
        return jax.tree.map(lambda p, g: p - horizon * late.staleness * rate * g, params, state)

    return Correction(init=lambda params: jax.tree.map(jnp.zeros_like, params), forward=forward, gradient=gradient)


NEEDS = ("learning_rate",)
SUMMARY = "weights predicted from a gradient"
CORRECTION = CorrectionSpec(name="ahead", summary=SUMMARY, make=make, options=Options, needs=NEEDS)
"""


DOCS = Path(__file__).parent.parent / "docs" / "extending.md"
BLOCKS = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.S)
(SMOOTH,) = [block for block in BLOCKS if "CORRECTION = " in block]


def put_into(folder, monkeypatch):
    """Writes these files into a folder, and has corrections searched for there too."""
    (folder / "taylor.py").write_text(TAYLOR)
    (folder / "ahead.py").write_text(AHEAD)
    (folder / "smooth.py").write_text(SMOOTH)
    monkeypatch.setattr(corrections, "__path__", [*corrections.__path__, str(folder)])
    for name in ("taylor", "ahead", "smooth"):
        monkeypatch.delitem(sys.modules, f"fdg_jax.corrections.{name}", raising=False)

"""The programs of a correction (fdg_jax.corrections) on the packed weights and gradients of a stage."""

from collections.abc import Callable
from typing import Any

import jax

from fdg_jax.corrections.interface import Correction
from fdg_jax.stage.nonfinite import finite, where
from fdg_jax.stage.packing import Packing, Unpacked

Tree = Any


def forward_program(correction: Correction, params: Packing | Unpacked) -> Callable[[Tree, Tree], Tree] | None:
    """(weights, state of the correction) -> the weights to go forward with; None where these are the weights
    themselves."""
    change = correction.forward
    if change is None:
        return None
    return jax.jit(lambda now, state: params.pack(change(params.unpack(now), state)))


def gradient_program(correction: Correction, params: Packing | Unpacked, guard: bool) -> Callable[..., Any] | None:
    """(gradients, weights of their forward pass, weights now, state) -> (gradients, state); None where they stay as
    they are."""
    change = correction.gradient
    if change is None:
        return None

    def program(grads, then, now, state):
        grads, changed = guarded(change, guard)(*map(params.unpack, (grads, then, now)), state)
        return params.pack(grads), changed

    return jax.jit(program)


def guarded(change: Callable[..., tuple[Tree, Tree]], guard: bool) -> Callable[..., tuple[Tree, Tree]]:
    """With a guard, a gradient with a NaN or an infinity leaves the correction's state as it was; the update is then
    refused."""

    def changed(grads, then, now, state):
        corrected, after = change(grads, then, now, state)
        return corrected, where(finite(grads) & finite(corrected), after, state) if guard else after

    return changed

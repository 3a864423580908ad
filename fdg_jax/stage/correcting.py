"""Programs for what a correction does with a stage's packed weights and gradients.

What a correction adds to the optimizer is in the stage's optax chain (`fdg_jax.corrections.interface`).
"""

from collections.abc import Callable
from typing import Any

from fdg_jax.corrections.interface import Correction
from fdg_jax.machine import programs
from fdg_jax.stage.nonfinite import after_refusal, all_finite, select
from fdg_jax.stage.packing import Packing, Unpacked

Tree = Any


def weights_program(change: Callable | None, params: Packing | Unpacked) -> Callable[[Tree, Tree], Tree] | None:
    """Compiles the part of a correction that changes the weights of forward or of backward passes.

    Arguments:
        change: its `forward` or `backward`; None if it has none.
        params: how the stage's weights are packed.

    Returns: (weights, state of the correction) -> the weights for the pass; None if the correction has no such part.
    """
    if change is None:
        return None
    return programs.jit(lambda now, state: params.pack(change(params.unpack(now), state)))


def gradient_program(correction: Correction, params: Packing | Unpacked, guard: bool) -> Callable[..., Any] | None:
    """Compiles the part of a correction that changes gradients.

    Arguments:
        correction: the correction.
        params: how the stage's weights and gradients are packed.
        guard: whether the stage refuses updates with non-finite gradients.

    Returns: (gradients, weights of their forward pass, newest weights, state) -> (gradients, state); None if the
    correction has no such part.
    """
    change = correction.gradient
    if change is None:
        return None

    def program(grads, then, now, state):
        grads, changed = keep_state_if_nonfinite(change, guard)(*map(params.unpack, (grads, then, now)), state)
        return params.pack(grads), changed

    return programs.jit(program)


def updated_program(correction: Correction, params: Packing | Unpacked) -> Callable[..., Tree] | None:
    """Compiles what a correction remembers of an update.

    Returns: (weights before, weights after, state of the correction, whether the update was made, or None) -> its
    state; None if it remembers nothing of it.
    """
    change = correction.updated
    if change is None:
        return None

    def program(before, after, state, made):
        return keep_state_if_refused(change)(params.unpack(before), params.unpack(after), state, made)

    return programs.jit(program)


def keep_state_if_refused(change: Callable[..., Tree]) -> Callable[..., Tree]:
    """The correction's `updated`, of which a refused update moves only the counts of schedules. Its last argument is
    whether the update was made; None of a stage without a guard."""

    def changed(before, after, state, made):
        remembered = change(before, after, state)
        return remembered if made is None else select(made, remembered, after_refusal(state, remembered))

    return changed


def keep_state_if_nonfinite(change: Callable[..., tuple[Tree, Tree]], guard: bool) -> Callable[..., tuple[Tree, Tree]]:
    """The correction's `gradient`, with a guard: a NaN or an infinity leaves the correction's state unchanged."""

    def changed(grads, then, now, state):
        corrected, after = change(grads, then, now, state)
        return corrected, select(all_finite(grads) & all_finite(corrected), after, state) if guard else after

    return changed

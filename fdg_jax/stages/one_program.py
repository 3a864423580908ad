"""The only stage of a pipeline with K = 1, as one program a batch: forward and backward pass, and the update.

No other stage waits for this stage's messages, so three separate programs would gain nothing. One program costs the
host one dispatch, and XLA fuses operations across the three parts. One program rounds differently from three. On a CPU
it is slower, because XLA computes activations again inside the transposed convolutions (fdg_jax.stages.stage).
"""

from typing import Any

from fdg_jax.stages.functions import Spec
from fdg_jax.stages.stage import Stage, reported_update
from fdg_jax.transport.devices import Place

Tree = Any


class OneProgramStage(Stage):
    """An ordinary stage with K = 1 that updates its weights by every batch. Its states are those of `Stage`.

    done: the weights, optimizer state and reported values after the newest update. F computes them; B makes them
        current.
    """

    def __init__(self, spec: Spec, place: Place, **options: Any):
        super().__init__(spec, place, **options)
        forward, backward, rule = self.functions.forward, self.functions.backward, self.update_rule(spec)
        self.done: list[Any] = []

        def step(params, extra, opt_state, x, labels):
            messages, extra, closure = forward(params, extra, x, labels)
            grads, _ = backward(closure, params, x, None)
            return messages, extra, *reported_update(rule, params, opt_state, grads)

        takes, gives = "params extra opt_state x labels", "messages extra params opt_state report"
        self._step = self.program(step, takes, gives, donate_argnums=2)

    def forward(self, batch: int, x: Tree, labels: Tree = None) -> dict[str, Tree]:
        """Dispatches F, B and the update. Returns {"loss": loss}."""
        state = self.state
        messages, extra, *self.done = self._step(state.params, state.extra, state.opt_state, x, labels)
        self.state = state._replace(extra=extra)
        return messages

    def backward(self, batch: int, dy: Tree = None) -> dict[str, Tree]:
        """Makes the update of `forward` the stage's state."""
        params, opt_state, (self.bad, self.norm, _) = self.done
        self.state = self.state._replace(params=params, opt_state=opt_state)
        self.done, self.updates = [], self.updates + 1
        return {"dy": None}

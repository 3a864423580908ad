"""The hook into a running pipeline: every dispatch of its host loop goes through a function of the benchmark."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

from fdg_jax.engine.host_engine import HostEngine
from fdg_jax.schedule import Address, Op


class Call(NamedTuple):
    """A dispatch.

    what: an operation's kind ("F", "B", ...); "U": an update within an operation; "send": a message from stage to
        stage; "fill": a message that enters the pipeline; "enter": a batch, with the tick that follows; "loss": a loss
        to its reader; "tell": a loss or a count to all processes.
    k: the stage; for a message the receiving stage.
    batch: the number of the batch or micro-batch.
    address, sender: for a message, its target and the operation that sends it.
    message: the value that is sent, told or entered.
    like: for "tell", the shape of the value.
    """

    what: str
    k: int
    batch: int
    address: Address | None = None
    sender: Op | None = None
    message: Any = None
    like: Any = None


Hook = Callable[[Call, Callable[[], Any]], Any]  # (call, dispatch) -> the result of dispatch()


@contextmanager
def around(engine: HostEngine, hook: Hook) -> Iterator[None]:
    """A context in which the engine makes every dispatch through the hook."""
    loop, transport = engine.loop, engine.transport
    send, on_loss, step, tell = loop.send, loop.on_loss, loop.feed, transport.tell

    def hooked(stage: Any) -> dict[str, Callable]:
        run, update, batch_now = stage.run, stage.update, [0]

        def hooked_run(kind: str, batch: int, messages: dict[str, Any]) -> dict[str, Any]:
            batch_now[0] = batch
            return hook(Call(kind, stage.k, batch), lambda: run(kind, batch, messages))

        return {"run": hooked_run, "update": lambda: hook(Call("U", stage.k, batch_now[0]), update)}

    def hooked_send(address: Address, message: Any, sender: Op | None) -> Any:
        call = Call("send" if sender else "fill", address.k, address.batch, address, sender, message)
        return hook(call, lambda: send(address, message, sender))

    def hooked_tell(k: int, value: Any, like: Any) -> Any:
        return hook(Call("tell", k, 0, None, None, value, like), lambda: tell(k, value, like))

    replaced: list[tuple[Any, dict[str, Callable]]] = [(stage, hooked(stage)) for stage in engine.stages.values()]
    replaced.append((transport, {"tell": hooked_tell}))
    replaced.append((loop, {
        "send": hooked_send,
        "on_loss": lambda batch, loss: hook(Call("loss", 0, batch), lambda: on_loss(batch, loss)),
        "feed": lambda parts: hook(Call("enter", 1, loop.t + 1, message=parts), lambda: step(parts)),
    }))  # fmt: skip
    with ExitStack() as stack:
        for where, functions in replaced:
            for name, function in functions.items():
                stack.enter_context(mock.patch.object(where, name, function))
        yield


def is_operation(call: Call) -> bool:
    """Whether the call is an operation of a stage: F, B or a method's own, but not an update within one."""
    return call.what not in ("U", "send", "fill", "enter", "loss", "tell")

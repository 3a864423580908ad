"""Microseconds of Python that a stage call and a tick cost the host, and their share of a GPU's step.

    .venv/bin/python -m benchmarks.host_cost --model resnet20 --K 1 2 3 4 --packing on off

The stages are the model's own, with all their arrays, but the batch is tiny (one image of 8x8). The device then has
next to nothing to do. The cost of a dispatch depends on the number of a program's arrays, not on their size. There are
two clocks. Both give medians over many ticks in the steady state:

- calls: each dispatch alone (F forward, B backward, U update, send to the neighbour, entry of a batch). The wait
  for its results is not timed, and ends before the next call, so that nothing competes with this call.
- tick while computing: a whole tick as in training. The wait for the tick's end is not timed. It keeps the CPU's queue
  of 32 dispatches from filling. On a CPU, the computing threads compete with the host for the cores.

The bare calls of a stage's three programs are also compared with the call of one program that does the same. This shows
what one dispatch per tick and stage would save. `--packing off` shows the cost when every small array goes in and out
by itself (fdg_jax.stages.packing).

The loop's own part (schedule, mail, losses) is measured with stages that do nothing; `tick` is the sum of the
parts. On a GPU, launching a program's kernels costs extra time, which the same command measures there.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import fdg_jax
from benchmarks.harness import hooks, operation_times, report
from fdg_jax import models, split
from fdg_jax.data.augment import train_transform
from fdg_jax.data.sets import synthetic
from fdg_jax.engine import host_engine
from fdg_jax.engine.host_loop import HostLoop
from fdg_jax.machine import compile_cache
from fdg_jax.methods import fdg
from fdg_jax.recipe import paper_sgd
from fdg_jax.stages.shapes import zeros
from fdg_jax.stages.stage import Stage
from fdg_jax.training.job import cross_entropy
from fdg_jax.transport import devices

IMAGE = 8  # pixels a side
GPU_STAGE_MICROSECONDS = 1000.0  # an assumed GPU that runs a stage (F, B and U of one tick) in 1 ms


def count_leaves(stage: Stage, K: int) -> dict[str, int]:
    """Counts the arrays that go in and out of a stage's programs. The stage must hold a stash; stage K must just have
    made a stash."""
    last, first = stage.k == K, stage.k == 1
    params, extra, optimizer, *_ = (len(jax.tree.leaves(tree)) for tree in stage.state)
    closure = len(jax.tree.leaves(stage.stashes[0].closure))
    return {"F_leaves": params + extra + 1 + last + 1 + extra + closure,
            "B_leaves": closure + params + 1 + (not last) + params + (not first),
            "U_leaves": params + optimizer + params + params + optimizer}  # fmt: skip


def median_microseconds(tick: Callable[[Callable, Any], Any], state: Any, ticks: int) -> float:
    """Median microseconds of the calls in state = tick(call, state). The wait for each call is not timed."""
    taken = [0.0] * ticks
    for number in range(ticks):

        def call(function: Callable[..., Any], *arguments: Any, number: int = number) -> Any:
            start = time.perf_counter()
            result = function(*arguments)
            taken[number] += 1e6 * (time.perf_counter() - start)
            return jax.block_until_ready(result)

        state = tick(call, state)
    return statistics.median(taken)


def as_one(stage: Stage) -> Callable[..., Any]:
    """A stage's work in a tick (B, U and F) as one program. B and F have different batches, as in stages below K."""
    first = stage.k == 1

    def tick(closure, old, x, dy, state, next_x, labels):
        grads, dx = stage._backward(closure, old, x, dy)
        params, opt_state, _ = stage._update(state.params, state.opt_state, grads)
        messages, extra, closure = stage._forward(params, state.extra, next_x, labels)
        return closure, state._replace(params=params, extra=extra, opt_state=opt_state), messages, None if first else dx

    return jax.jit(tick)


class Small:
    """The model's pipeline on tiny images, filled. packs: whether arrays are packed."""

    def __init__(self, model: str, K: int, cut: str, batch_size: int, packs: bool = True):
        meta = synthetic.load()
        self.images, self.labels = meta.train_images[:256, :IMAGE, :IMAGE], meta.train_labels[:256]
        blocks = models.blocks(model, meta.classes)
        self.K, self.row, self.leaves = K, np.arange(batch_size), dict[int, dict[str, int]]()
        stages, transform = split.stages(blocks, split.parse(cut, model, K, len(blocks))), train_transform(meta, 0)
        pipeline = fdg_jax.Pipeline(stages, cross_entropy, paper_sgd(0.01), preprocess=transform)
        with mock.patch.object(Stage, "packs", packs):
            pipeline.init(jax.random.key(0), (self.images[self.row], self.labels[self.row]))
        assert isinstance(pipeline.engine, host_engine.HostEngine)
        self.engine = pipeline.engine
        with hooks.around(self.engine, self.count):
            for _ in range(2 * K):
                self.tick()
        self.wait()

    def count(self, call: hooks.Call, dispatch: Callable[[], Any]) -> Any:
        result = dispatch()
        if call.what == "F":
            self.leaves[call.k] = count_leaves(self.engine.stages[call.k], self.K)
        return result

    def wait(self) -> None:
        """Waits until everything is computed, including unused gradients."""
        jax.block_until_ready([(stage.state, list(stage.line)) for stage in self.engine.stages.values()])

    def tick(self) -> None:
        self.engine.train(self.images, self.labels, self.row[None])

    def calls(self, ticks: int) -> dict[tuple[str, int], float]:
        """Median microseconds of each dispatch, by (what, k): see `Clock`. ("send", 0) is the median of all
        messages."""
        clock = operation_times.Clock(self.engine)
        with hooks.around(self.engine, clock):
            for _ in range(ticks):
                clock.train(self.images, self.labels, self.row)
        sends = [seconds for (what, _), taken in clock.host.items() if what.startswith("send") for seconds in taken]
        found = {**clock.host, ("send", 0): sends or [0.0]}
        return {key: 1e6 * statistics.median(values) for key, values in found.items()}

    def programs(self, ticks: int) -> dict[int, tuple[float, float]]:
        """Median microseconds of the dispatches of stage k's B, U and F, as three programs and as one program.

        They are the bare calls, without the stage's work around them. The single program gets the same closure every
        time. The program would be compiled again for the closures that it returns, since these come from another
        tracing and have another type.
        """
        found = {}
        for k, stage in self.engine.stages.items():
            params, extra, place, run = stage.state.params, stage.state.extra, stage.place, as_one(stage)
            x, labels = place.put_batch(zeros((stage.spec.x, stage.spec.labels if k == self.K else None)))
            dy = None if k == self.K else place.put_batch(zeros(stage.spec.y))
            closure = stage._forward(params, extra, x, labels)[2]
            state = stage.state._replace(opt_state=jax.tree.map(jnp.copy, stage.state.opt_state))  # donated below

            def three(call, state, stage=stage, closure=closure, params=params, x=x, dy=dy, labels=labels):
                grads, _ = call(stage._backward, closure, params, x, dy)
                new, opt_state, _ = call(stage._update, state.params, state.opt_state, grads)
                _, extra, _ = call(stage._forward, new, state.extra, x, labels)
                return state._replace(params=new, opt_state=opt_state, extra=extra)

            def one(call, state, run=run, closure=closure, params=params, x=x, dy=dy, labels=labels):
                return call(run, closure, params, x, dy, state, x, labels)[1]

            found[k] = tuple(median_microseconds(tick, state, ticks) for tick in (one, three))[::-1]
        return found

    def ticks(self, ticks: int) -> tuple[float, float]:
        """Median microseconds of (a whole tick, the entry of a batch before the host loop)."""
        entered, step, taken = [0.0], self.engine.loop.feed, []

        def timed_step(parts):
            entered[0] = time.perf_counter()
            step(parts)

        with mock.patch.object(self.engine.loop, "feed", timed_step):
            for _ in range(ticks):
                start = time.perf_counter()
                self.tick()
                taken.append((time.perf_counter() - start, entered[0] - start))
                self.wait()
        whole, entry = (1e6 * statistics.median(column) for column in zip(*taken, strict=True))
        return whole, entry


class Nothing:
    """A stage that does nothing, to measure the loop itself."""

    def run(self, kind, batch, messages):
        return {"x": 0, "dy": 0, "loss": 0}


def loop_microseconds(K: int, ticks: int) -> float:
    """Median microseconds of a tick of the host loop without anything to dispatch."""
    stages = {k: Nothing() for k in range(1, K + 1)}
    loop = HostLoop(fdg.fdg(K), stages, lambda address, message, sender: message, lambda batch, loss: None)
    return median_microseconds(lambda call, state: call(loop.feed, [{"x": 0, "labels": 0}]), None, ticks)


def measure(model: str, K: int, packing: str, given: report.Given) -> list[dict[str, Any]]:
    """One row per stage, then a row for the tick."""
    small = Small(model, K, given.split, given.batch_size, packing == "on")
    whole, entry = small.ticks(given.ticks)
    calls, programs = small.calls(given.ticks), small.programs(given.ticks)
    about = {"model": model, "K": K, "packing": packing}
    rows = []
    for k in range(1, K + 1):
        bare = dict(zip(("three_programs", "one_program"), programs[k], strict=True))
        costs = {what: calls[what, k] for what in "FBU"} | bare
        costs = {f"{what}_microseconds": round(value, 1) for what, value in costs.items()}
        rows.append({**about, "row": "stage", "k": k, **small.leaves[k], **costs})
    stages = sum(calls[what, k] for k in range(1, K + 1) for what in "FBU")
    send, loop = calls["send", 0], loop_microseconds(K, given.ticks) + calls["loss", 0]
    entry += calls["fill x", 1] + calls["fill labels", K]
    alone = stages + (2 * K - 2) * send + entry + loop  # x to K-1 stages and dy to K-1 stages
    tick = {"stage_calls": stages / K, "send": send, "entry": entry, "loop": loop, "tick": alone}
    tick = {f"{name}_microseconds": each for name, each in (tick | {"tick_while_computing": whole}).items()}
    shares = {"share_percent": alone, "share_while_computing_percent": whole}
    tick |= {name: 100 * each / GPU_STAGE_MICROSECONDS for name, each in shares.items()}
    return [*rows, {**about, "row": "tick", **{name: round(value, 1) for name, value in tick.items()}}]


def fits(rows: report.Rows) -> list[dict[str, Any]]:
    """Least squares for F, B and U: microseconds of a call = fixed + each * number of arrays."""
    stages, found = [row for row in rows if row["row"] == "stage"], []
    for what in "FBU":
        leaves, costs = np.array([(row[f"{what}_leaves"], row[f"{what}_microseconds"]) for row in stages]).T
        if len(set(leaves)) > 1:  # else no line can be fitted
            each, fixed = np.polyfit(leaves, costs, 1)
            about = {"row": "fit", "what": what, "calls": len(stages)}
            costs = {"fixed_microseconds": round(float(fixed), 1), "leaf_microseconds": round(float(each), 2)}
            found.append({**about, **costs})
    return found


KIND: dict[str, report.Cell] = {"model": "{model}", "K": "{K}", "packing": "{packing}"}
STAGES = {
    **KIND, "k": "{k}", "arrays in and out of F, B, U": "{F_leaves}, {B_leaves}, {U_leaves}",
    **{f"{what} µs": f"{{{what}_microseconds:.0f}}" for what in "FBU"},
    "bare µs: 3, 1": "{three_programs_microseconds:.0f}, {one_program_microseconds:.0f}",
}  # fmt: skip
TICKS = {
    **KIND, "a stage's F+B+U µs": "{stage_calls_microseconds:.0f}", "a send µs": "{send_microseconds:.0f}",
    "entry µs": "{entry_microseconds:.0f}", "loop µs": "{loop_microseconds:.0f}", "tick µs": "{tick_microseconds:.0f}",
    "tick while computing µs": "{tick_while_computing_microseconds:.0f}",
    f"shares of {GPU_STAGE_MICROSECONDS / 1000:g} ms": "{share_percent:.0f}%, {share_while_computing_percent:.0f}%",
}  # fmt: skip


def table(rows: report.Rows, given: report.Given) -> str:
    stages, ticks, lines = ([r for r in rows if r["row"] == kind] for kind in ("stage", "tick", "fit"))
    one = rows[0]
    shown = "; ".join(f"{r['what']} {r['fixed_microseconds']:.0f} + {r['leaf_microseconds']:.2f}" for r in lines)
    about = "Shares are of a tick on GPUs on which a stage's F, B and U take 1 ms. "
    about += f"Linear fit, µs + µs for each array in and out: {shown or 'none'}. "
    about += f"Medians over {given.ticks} ticks, batch {given.batch_size}, images {IMAGE}x{IMAGE}, "
    about += f"split {given.split}. Devices {one['device']}; {report.place(one)}, {report.versions(one)}."
    return "\n\n".join([report.table(STAGES, stages), report.table(TICKS, ticks), about])


def parser() -> report.Parser:
    usual = {"model": ["resnet20"], "K": [1, 2, 3, 4], "split": "balanced", "ticks": 300, "batch_size": 1}
    made = report.parser("host_cost", __doc__, **usual)
    made.add_argument("--packing", choices=["on", "off"], nargs="+", default=["on"], help="small arrays (default on)")
    return made


def results(given: report.Given) -> list[dict[str, Any]]:
    devices.emulate_cpu(max(given.K))
    compile_cache.enable()
    rows = [row for model in given.model for K in given.K for packing in given.packing
            for row in measure(model, K, packing, given)]  # fmt: skip
    where = {"ticks": given.ticks, "batch_size": given.batch_size, "image_size": IMAGE}
    return [{**row, **where} for row in [*rows, *fits(rows)]]


main = report.run(__name__, parser, results, table, report.here)

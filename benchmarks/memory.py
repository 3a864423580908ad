"""The memory of every stage: predicted before training, and measured.

    .venv/bin/python -m benchmarks.memory --model resnet56 wrn16_4 --K 2 4 --batch-size 128
    .venv/bin/python -m benchmarks.memory --model resnet20 --K 2 4 --batch-size 8 --method fdg ddg fr dgl dni gpipe

The columns:
- Predicted: the most bytes that weights, optimizer, statistics, stashes, old weights and messages of a stage take
  together, from shapes and the schedule alone (fdg_jax.engine.memory). The training command prints the same number.
- Live: the bytes of all arrays on the stage's device, each buffer counted once. It is the largest count in a run into
  the steady state; bytes are counted before every operation of the host loop and after every tick.
- Stashes: the most that a stage keeps, by the schedule and as measured.
- One stash: the bytes kept of a batch, as predicted, and as the compiled forward program reports them (not for methods
  with their own stages).
- Temporary: XLA's buffers within the largest of the stage's programs. XLA does not report the runtime's own memory,
  such as a convolution's scratch.

Neither column of totals counts the gradient that exists between a backward pass and its update. This gradient is as
large as the weights.
"""

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.harness import bench_worker, hooks, live_bytes, report, side_specs
from fdg_jax import methods
from fdg_jax.engine import memory
from fdg_jax.engine.host_engine import HostEngine
from fdg_jax.errors import BadInput
from fdg_jax.machine import compile_cache
from fdg_jax.stages.stage import Stage
from fdg_jax.training import opening
from fdg_jax.transport import devices


def live(make: Callable[[], Any], step: Callable[[Any], Any], batches: int) -> tuple[Any, list[int], list[int]]:
    """Trains on so many batches and counts bytes and stashes.

    Arguments:
        make: make() -> an object whose `engine` is the host engine with one device per stage.
        step: enters a batch.

    Returns: (what `make` made, the most bytes on the devices of stages k = 1..K, the most stashes they had).
    """
    watch = live_bytes.Watch()
    made = make()
    with hooks.around(made.engine, watch.hook(made.engine)):
        for _ in range(batches):
            step(made)
            watch.look()
    stages = made.engine.stages.values()
    return made, [watch.most[stage.place.device] for stage in stages], [watch.stashes[stage.k] for stage in stages]


def programs(engine: HostEngine) -> list[dict[str, Any]]:
    """For each stage, bytes of one stash and of the largest temporary buffers, from its compiled programs.

    None if the platform does not report them, or if the method's stages have programs of their own.
    """
    found = []
    for stage in engine.stages.values():
        nothing = {"compiled_memo_bytes": None, "temporary_bytes": None, "temporary_of": "–"}
        if type(stage) is not Stage or engine.loop.schedule.micro_batches > 1:
            found.append(nothing)
            continue
        spec, state = stage.spec, stage.state
        labels, dy = (spec.labels, None) if spec.last else (None, spec.y)
        messages, extra, closure = stage._forward.eval_shape(state.params, state.extra, spec.x, labels)
        compiled = {"F": stage._forward.lower(state.params, state.extra, spec.x, labels).compile(),
                    "B": stage._backward.lower(closure, state.params, spec.x, dy).compile(),
                    "U": stage._update.lower(state.params, state.opt_state, state.params).compile()}  # fmt: skip
        analyses: dict[str, Any] = {name: program.memory_analysis() for name, program in compiled.items()}
        if None in analyses.values():
            found.append(nothing)
            continue
        given = analyses["F"].output_size_in_bytes - memory.tree_bytes(messages) - memory.tree_bytes(extra)
        kept = given + memory.tree_bytes((spec.x, state.extra))
        temporary = {name: analysis.temp_size_in_bytes for name, analysis in analyses.items()}
        largest = max(temporary, key=lambda name: temporary[name])
        of_largest = {"temporary_bytes": temporary[largest], "temporary_of": largest}
        found.append({"compiled_memo_bytes": kept, **of_largest})
    return found


def measured(model: str, method: str, K: int, weights: Any, given: report.Given) -> list[dict[str, Any]]:
    """One row per stage."""
    own = {"weights": weights} if "weights" in methods.find(method).answers_to else {}
    side = side_specs.Side(method, method, K, K, model, given.batch_size, split=given.split, options=own)
    trainer, bytes_live, stashes = live(lambda: bench_worker.Trainer(side), lambda trainer: trainer.run(1), 4 * K + 2)
    about = {"model": model, "method": method, "K": K, "weights": weights, "batch_size": given.batch_size}
    about |= {"cuts": list(trainer.job.partition.cuts)}
    rows, most, predicted = [], Counter[int](), memory.predict(trainer.engine)
    for k, moment in memory.over_time(trainer.engine):
        most |= Counter({k: moment.kept})
    for stash, here, held, compiled in zip(predicted, bytes_live, stashes, programs(trainer.engine), strict=True):
        kept = {"k": stash.k, "memos": most[stash.k], "held_memos": held}
        found = {"predicted_bytes": stash.total, "live_bytes": here, "live_over_predicted": here / stash.total}
        parts = {f"{name}_bytes": getattr(stash, name) for name in opening.PARTS}
        rows.append({**about, **kept, **found, "predicted_memo_bytes": stash.stash, **compiled, "predicted": parts})
    return rows


COLUMNS: dict[str, report.Cell] = {
    "model": "{model}", "method": "{method}", "K": "{K}", "weights": "{weights}", "k": "{k}",
    "predicted MB": lambda r: report.megabytes(r["predicted_bytes"]),
    "live MB": lambda r: report.megabytes(r["live_bytes"]), "live/predicted": "{live_over_predicted:.4f}",
    "stashes: schedule, held": "{memos}, {held_memos}",
    "one stash MB: predicted, compiled":
        lambda r: f"{report.megabytes(r['predicted_memo_bytes'])}, {report.megabytes(r['compiled_memo_bytes'])}",
    "temporary MB": lambda r: report.megabytes(r["temporary_bytes"])
        + (f" ({r['temporary_of']})" if r["temporary_bytes"] is not None else ""),
}  # fmt: skip


def table(rows: report.Rows, given: report.Given) -> str:
    one = rows[0]
    about = f"Batch {given.batch_size}, MB of 10^6 bytes. Device {one['device']}; {one['cpu']}, {report.versions(one)}."
    return report.table(COLUMNS, rows, about)


def parser() -> report.Parser:
    usual = {"model": ["resnet56", "wrn16_4"], "method": ["fdg"], "K": [2, 4], "batch_size": 128}
    made = report.parser("memory", __doc__, **usual)
    both = ["stashed", "current"]
    made.add_argument("--weights", nargs="+", choices=both, default=both, help="(default both)")
    made.add_argument("--split", help="paper, even, balanced or block numbers (default as in training)")
    return made


def results(given: report.Given) -> list[dict[str, Any]]:
    found, _ = devices.stage_devices(max(given.K))
    if len(set(found)) < max(given.K):
        fact = f"--K {max(given.K)} needs as many devices, but there are {len(set(found))}"
        raise BadInput(f"{fact}: stages on one device cannot be told apart. Use fewer, or JAX_PLATFORMS=cpu.")
    compile_cache.enable()
    asked = [methods.find(name) for name in given.method]
    for method in asked:
        if method.places:
            fact = f"--method {method.name} spreads a stage over several devices, which this benchmark cannot count"
            raise BadInput(f"{fact}. Leave it out.")
    rows = []
    for model, method, K in itertools.product(given.model, asked, given.K):
        for weights in given.weights if "weights" in method.answers_to else ["stashed"]:
            report.say(f"{model}, {method.name}, K={K}, {weights} ...")
            rows += measured(model, method.name, K, weights, given)
    return rows


main = report.run(__name__, parser, results, table, report.here)

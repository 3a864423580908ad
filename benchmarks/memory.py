"""The memory of every stage: predicted before training, and measured.

    .venv/bin/python -m benchmarks.memory --model resnet56 wrn16_4 --K 2 4 --batch-size 128
    .venv/bin/python -m benchmarks.memory --model resnet20 --K 2 4 --batch-size 8 --method fdg ddg fr dgl dni gpipe

The columns:
- Predicted: weights, optimizer, statistics, stashes, old weights and messages of a stage at their most, from shapes and
  the schedule alone (fdg_jax.engine.memory), as the training command prints it.
- Live: the bytes of all arrays on the stage's device, each buffer counted once. It is the most over a run into the
  steady state, counted before every operation of the host loop and after every tick.
- Stashes: the most that a stage keeps, by the schedule and as measured.
- One stash: the bytes kept of a batch, as predicted, and as the compiled forward program reports them (unless the
  method has stages of its own).
- Temporary: XLA's buffers within the largest of the stage's programs. XLA does not report the runtime's own memory,
  such as a convolution's scratch.

Neither column of totals counts the gradient that exists between a backward pass and its update. It is as large as the
weights.
"""

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import live_bytes, report
from benchmarks.harness.children import say
from benchmarks.harness.hooks import around
from benchmarks.harness.report import megabytes
from fdg_jax import methods
from fdg_jax.config import Config
from fdg_jax.data.dataset import Dataset
from fdg_jax.engine import memory
from fdg_jax.engine.host_engine import HostEngine
from fdg_jax.errors import BadInput
from fdg_jax.machine import compile_cache
from fdg_jax.stages.stage import Stage
from fdg_jax.training import opening
from fdg_jax.training.job import Job, prepare
from fdg_jax.transport import devices


def live(make: Callable[[], Any], step: Callable[[Any], Any], batches: int) -> tuple[Any, list[int], list[int]]:
    """Trains on so many batches and counts bytes and stashes.

    Arguments:
        make: make() -> a Pipeline on the host loop with one device per stage.
        step: enters a batch.

    Returns: (what `make` made, the most bytes on the devices of stages k = 1..K, the most stashes they had).
    """
    watch = live_bytes.Watch()
    pipeline = make()
    engine = pipeline.engine
    with around(engine, watch.hook(engine)):
        for _ in range(batches):
            step(pipeline)
            watch.look()
    stages = engine.stages.values()
    return pipeline, [watch.most[stage.place.device] for stage in stages], [watch.stashes[stage.k] for stage in stages]


def programs(engine: HostEngine) -> list[dict[str, Any]]:
    """For each stage, bytes of one stash and of the largest temporary buffers, from its compiled programs.

    None if the platform does not report them, or if the method's stages have programs of their own.
    """
    found = []
    for k, stage in engine.stages.items():
        nothing = {"k": k, "memo_bytes": None, "temporary_bytes": None, "temporary_of": "–"}
        if type(stage) is not Stage or engine.loop.schedule.micro_batches > 1:
            found.append(nothing)
            continue
        spec, state = stage.spec, stage.state
        labels, dy = (spec.labels, None) if spec.last else (None, spec.y)
        messages, extra, closure = stage._forward.eval_shape(state.params, state.extra, spec.x, labels)
        compiled = {
            "F": stage._forward.lower(state.params, state.extra, spec.x, labels).compile(),
            "B": stage._backward.lower(closure, state.params, spec.x, dy).compile(),
            "U": stage._update.lower(state.params, state.opt_state, state.params).compile(),
        }
        analyses: dict[str, Any] = {name: program.memory_analysis() for name, program in compiled.items()}
        if None in analyses.values():
            found.append(nothing)
            continue
        given = analyses["F"].output_size_in_bytes - memory.tree_bytes(messages) - memory.tree_bytes(extra)
        kept = given + memory.tree_bytes((spec.x, state.extra))
        temporary = {name: analysis.temp_size_in_bytes for name, analysis in analyses.items()}
        largest = max(temporary, key=lambda name: temporary[name])
        found.append({"k": k, "memo_bytes": kept, "temporary_bytes": temporary[largest], "temporary_of": largest})
    return found


def measured(model: str, method: str, K: int, weights: Any, given: report.Given) -> list[dict[str, Any]]:
    """One row per stage."""
    options = Config(
        method=method, K=K, weights=weights, model=model, batch_size=given.batch_size, dataset="synthetic",
        split=given.split, engine="pipeline", epochs=1,
    )  # fmt: skip
    random, jobs = np.random.default_rng(0), list[Job]()

    def make():
        jobs.append(prepare(options))
        return jobs[0].pipeline

    def step(pipeline):
        data = jobs[0].dataset
        assert isinstance(data, Dataset)  # synthetic images, in memory
        indices = random.integers(0, len(data.train_images), (1, given.batch_size), dtype=np.int32)
        pipeline.train(data.train_images, data.train_labels, indices)

    pipeline, bytes_live, stashes = live(make, step, 4 * K + 2)
    about = {"benchmark": "memory", "model": model, "method": method, "K": K, "weights": weights}
    about |= {"batch_size": given.batch_size, "cuts": list(jobs[0].partition.cuts)}
    rows, most, predicted = [], Counter[int](), memory.predict(pipeline.engine)
    for k, moment in memory.over_time(pipeline.engine):
        most |= Counter({k: moment.kept})
    for stash, here, held, compiled in zip(predicted, bytes_live, stashes, programs(pipeline.engine), strict=True):
        rows.append(
            {
                **about,
                "k": stash.k,
                "memos": most[stash.k],
                "held_memos": held,
                "predicted_bytes": stash.total,
                "live_bytes": here,
                "live_over_predicted": round(here / stash.total, 4),
                "predicted_memo_bytes": stash.stash,
                "compiled_memo_bytes": compiled["memo_bytes"],
                "temporary_bytes": compiled["temporary_bytes"],
                "temporary_of": compiled["temporary_of"],
                "predicted": {f"{name}_bytes": getattr(stash, name) for name in opening.PARTS},
                **report.here(),
            }
        )
    return rows


COLUMNS: dict[str, report.Cell] = {
    "model": "{model}", "method": "{method}", "K": "{K}", "weights": "{weights}", "k": "{k}",
    "predicted MB": lambda r: megabytes(r["predicted_bytes"]), "live MB": lambda r: megabytes(r["live_bytes"]),
    "live/predicted": "{live_over_predicted:.4f}", "stashes: schedule, held": "{memos}, {held_memos}",
    "one stash MB: predicted, compiled":
        lambda r: f"{megabytes(r['predicted_memo_bytes'])}, {megabytes(r['compiled_memo_bytes'])}",
    "temporary MB": lambda r: megabytes(r["temporary_bytes"])
        + (f" ({r['temporary_of']})" if r["temporary_bytes"] is not None else ""),
}  # fmt: skip


def table(rows: report.Rows, given: report.Given) -> str:
    one = rows[0]
    about = f"Batch {given.batch_size}, MB of 10^6 bytes. Device {one['device']}; {one['cpu']}, {report.versions(one)}."
    return f"{report.table(COLUMNS, rows)}\n\n{about}"


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
        fact = f"--K {max(given.K)} wants as many devices, and there are {len(set(found))}"
        raise BadInput(f"{fact}: stages that share one cannot be told apart. Use fewer, or JAX_PLATFORMS=cpu.")
    compile_cache.enable()
    asked = [methods.find(name) for name in given.method]
    for method in asked:
        if method.places:
            fact = f"--method {method.name} spreads a stage over several devices, which is not counted"
            raise BadInput(f"{fact}. Leave it out.")
    rows = []
    for model, method, K in itertools.product(given.model, asked, given.K):
        for weights in given.weights if "weights" in method.answers_to else ["stashed"]:
            say(f"{model}, {method.name}, K={K}, {weights} ...")
            rows += measured(model, method.name, K, weights, given)
    return rows


main = report.run(__name__, parser, results, table)

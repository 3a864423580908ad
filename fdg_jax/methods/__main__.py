"""The command `python -m fdg_jax.methods`: the paper's Tables 1 and 2 for every method and any K, and a third table
about corrections of late gradients.

All numbers are derived. Locks and times come from the schedules (fdg_jax.schedule.ideal), stashes and staleness from a
run on integers, and numbers of parameters from the shapes of the real pipeline.
"""

import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from fdg_jax import methods
from fdg_jax.machine import output
from fdg_jax.options.parser import Parser
from fdg_jax.schedule import Schedule, bp, check_K
from fdg_jax.schedule.drawing import draw
from fdg_jax.schedule.ideal import COMPARED, LENGTHS, Locks, Time, formula, free_time, locks, tick_time
from fdg_jax.schedule.running import steady_after, trace_run

BATCH_SIZE, IMAGE, CLASSES = 128, (32, 32, 3), 10  # the shapes of CIFAR-10
TOKENS = 128  # tokens of an example, for language models


class Row(NamedTuple):
    """A method's row in both tables.

    name, schedule: the method's name and schedule.
    locks: which of its operations wait.
    auxiliary: number of trained parameters that do not belong to the network.
    stashes: the largest number of stashes that any stage keeps.
    staleness: the average staleness of each stage 1..K in the full pipeline, in updates.
    old_weights: the most copies of old weights that a stage keeps for its stashes.
    time, speed_up: time per batch with a barrier after each tick, and the speed-up over BP.
    free, free_speed_up: the same without a barrier.
    """

    name: str
    schedule: Schedule
    locks: Locks
    auxiliary: int
    stashes: int
    staleness: tuple[float, ...]
    old_weights: int
    time: Time
    speed_up: Fraction
    free: Time
    free_speed_up: Fraction


def row(name: str, K: int, auxiliary: int, options: Mapping[str, int]) -> Row:
    """Derives a method's row.

    Arguments:
        name: the method.
        K: number of stages.
        auxiliary: the number of its auxiliary parameters.
        options: values of schedule options. Options that the method does not have are ignored.
    """
    method = methods.find(name)
    own = {option: n for option, n in options.items() if option in method.schedule_options}
    schedule, cost = method.schedule(K, **own), method.costs(K)
    trace = trace_run(schedule, steady_after(schedule))
    alone = tick_time(bp(K), methods.find("bp").costs(K), COMPARED).at(COMPARED)
    return Row(
        name=name,
        schedule=schedule,
        locks=locks(schedule),
        auxiliary=auxiliary,
        stashes=max(trace.stashes),
        staleness=schedule.mean_staleness,
        old_weights=max(map(max, trace.staleness)) if keeps_weights(name) else 0,
        time=tick_time(schedule, cost),
        speed_up=alone / tick_time(schedule, cost, COMPARED).at(COMPARED),
        free=free_time(schedule, cost),
        free_speed_up=alone / free_time(schedule, cost, COMPARED).at(COMPARED),
    )


def parameters(name: str, K: int, model: str) -> tuple[int, int]:
    """Counts trained parameters, from the shapes of the method's pipeline. Nothing is computed.

    It imports JAX and the models only when it is called, because --help and error messages need neither. It uses the
    CPU, so that no accelerator is started.

    Arguments:
        name: the method.
        K: number of stages.
        model: the network, with 10 classes.

    Returns: (parameters of the network, parameters that the method adds).
    """
    import jax
    import numpy as np
    import optax

    from fdg_jax import api, models, split
    from fdg_jax.transport import devices

    jax.config.update("jax_platforms", "cpu")
    blocks = models.blocks(model, CLASSES)
    way = "balanced" if models.paper_split(model, K) is None else "paper"
    inputs = jax.ShapeDtypeStruct((BATCH_SIZE, *IMAGE), np.float32)
    labels = jax.ShapeDtypeStruct((BATCH_SIZE,), np.int32)
    if models.takes(model) == "tokens":
        inputs = labels = jax.ShapeDtypeStruct((BATCH_SIZE, TOKENS), np.int32)
    costs = split.costs(blocks, inputs.update(shape=(1, *inputs.shape[1:]))) if way == "balanced" else None
    cuts = split.parse(way, model, K, len(blocks), costs)

    def loss(outputs, labels):
        return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()

    def init_and_list(key):
        where, _ = devices.stage_devices(K)
        pipeline = api.Pipeline(split.stages(blocks, cuts), loss, optax.sgd(0.1), name, devices=where)
        pipeline.init(key, (inputs, labels))
        return [stage["params"] for stage in pipeline.params], pipeline.engine.auxiliary()

    shapes = jax.eval_shape(init_and_list, jax.eval_shape(jax.random.key, 0))
    network, auxiliary = (sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in shapes)
    return network, auxiliary


def trains_more(name: str) -> bool:
    """Whether a method's stages train auxiliary parameters. If not, there is no need to build the pipeline to count
    them."""
    from fdg_jax.stages.stage import Stage

    return (methods.find(name).stage or Stage).auxiliary is not Stage.auxiliary


def keeps_weights(name: str) -> bool:
    """Whether a method's stages keep the weights of a batch's forward pass until its backward pass."""
    stage = methods.find(name).stage
    return stage is None or stage.keeps_weights


def table_1(rows: Sequence[Row]) -> str:
    """Table 1: lockings, auxiliary networks, stashes, staleness and old weights."""
    head = ["method", "forward", "backward", "update", "lockings", "auxiliary networks", "parameters"]
    table = [[*head, "stashes", "staleness", "old weights"]]
    for r in rows:
        three = ["locked" if locked else "-" for locked in (r.locks.forward, r.locks.backward, r.locks.update)]
        answers = ["Yes" if answer else "No" for answer in (r.locks.waits, r.auxiliary)]
        kept = [str(r.stashes), late(r.staleness), str(r.old_weights)]
        table.append([r.name, *three, *answers, f"{r.auxiliary:,}", *kept])
    return draw(table)


def late(staleness: Sequence[float]) -> str:
    """The staleness of the stages as text; for more than four stages, only that of stage 1."""
    shown = [f"{n:.3g}" for n in staleness]
    return " ".join(shown) if len(shown) <= 4 else f"{shown[0]} at most"


def table_3(K: int) -> str:
    """Table 3: for each correction of late gradients, what it changes, and its memory in a stage with late gradients.

    It imports JAX only when it is called, and computes only shapes. Options have their defaults, and beta is 0.5.
    """
    import jax
    import numpy as np
    import optax

    from fdg_jax import corrections
    from fdg_jax.corrections.interface import Late

    weights = {"w": jax.ShapeDtypeStruct((1000,), np.float32)}

    def copies(make) -> float:
        return round(sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(make, weights))) / 1000, 1)

    sgd, told = optax.sgd(0.1, momentum=0.9), Late(1, max(K, 2), 3.0, lambda n: 0.1, 0.9)
    table = [["correction", "changes", "remembers", "forward weights", "delay line"]]
    for name in corrections.names():
        kind = corrections.find(name)
        made = kind.make(told, **kind.accepted({"beta": 0.5}))
        parts = {
            "forward weights": made.forward, "backward weights": made.backward,
            "gradient": made.gradient or made.before, "update": made.optimizer,
        }  # fmt: skip
        changes = ", ".join(what for what, part in parts.items() if part) or "-"
        kept = copies(made.start) + copies(made.around(sgd).init) - copies(sgd.init)
        line = "-" if kind.weights == "current" else str(int(made.gradient is not None) * "staleness" or 0)
        table.append([name, changes, f"{kept:g}", str(int(made.forward is not None)), line])
    return draw(table)


def table_2(rows: Sequence[Row]) -> str:
    """Table 2: ideal times per batch."""
    table = [["method", "time per batch", "speed-up", "without a barrier", "speed-up"]]
    for r in rows:
        barrier = [formula(r.time), f"{float(r.speed_up):.2f}"]
        table.append([r.name, *barrier, formula(r.free), f"{float(r.free_speed_up):.2f}"])
    return draw(table)


def notes(rows: Sequence[Row], K: int, options: Mapping[str, int]) -> str:
    """Notes on how to read the tables, and on what Table 2 shows for this K."""
    others = f" except {', '.join(f'{name}={n}' for name, n in options.items())}" if options else ""
    lines = [
        "Locked, within a tick of the full pipeline: forward: a forward pass (F) waits for another stage's F;",
        "backward: a backward pass (B) waits for a later stage's B; update: a B waits for a later stage's F.",
        "Stashes: the largest number of batches that a stage keeps between ticks. Staleness of each stage: its",
        "updates between a batch's forward pass and the update with that batch's gradient, on average. Old weights:",
        f"the largest number of copies of a stage's weights beside the newest. Options have their defaults{others}.",
        "Time: the critical path through a tick of the full pipeline; the next tick begins when every stage is done",
        "(as in the paper). Stages take equal times, and communication takes none. Of different paths, the table has",
        f"the one that is longest at Tf = {LENGTHS.Tf}, Tb = {LENGTHS.Tb}, Taux = {LENGTHS.Taux}. Speed-ups over BP "
        "are those at Tb = 2 Tf, Taux = 0.",
        "Without a barrier, as in the host loop, a stage waits only for the messages that it needs.",
        "Table 3 counts stored arrays, forward weights that differ from the newest, and old weights that the delay",
        "line keeps while gradients wait (a pipeline keeps these in its stashes).",
    ]
    gained = [r for r in rows if r.free.at(LENGTHS) < r.time.at(LENGTHS)]
    linear = [r for r in gained if r.free == Time(Fraction(1, K), Fraction(1, K), Fraction(0))]
    if gained:
        ideal = f"; {names(linear)} then reach the speed of FDG" if linear else ""
        lines.append(f"Without a barrier, a stage may run ahead of others. This speeds up {names(gained)}{ideal}.")
    for r in rows:
        if r.schedule.micro_batches > 1 and K > 1:
            M, bubble = r.schedule.micro_batches, r.time.Tf * K
            lines.append(f"{r.name}: M = {M} micro-batches and their bubble take {bubble} times (Tf+Tb)/{K}.")
    return "\n".join(lines)


def names(rows: Sequence[Row]) -> str:
    """The names of methods, separated by commas."""
    return ", ".join(r.name for r in rows)


@output.command
def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables. Returns the exit code."""
    parser = Parser(
        prog="python -m fdg_jax.methods",
        description="Compares the training methods for K stages. Tables 1 (lockings, auxiliary networks) and 2 (ideal "
        "time per batch) are those of the paper, computed from the schedule of every method. Table 3 lists the memory "
        "of the corrections of late gradients.",
        epilog="Tf, Tb, Taux: times of the network's forward pass, its backward pass, and an auxiliary network. F, B: "
        "forward and backward pass of a stage. Draw a schedule: python -m fdg_jax.schedule --method ddg. Train: "
        "python -m fdg_jax.experiments.cifar --method ddg.",
    )
    parser.add_argument("--K", type=int, default=3, help="number of stages (default 3)")
    parser.add_argument(
        "--model",
        default="resnet20",
        help="network, with 10 classes, whose auxiliary parameters are counted; cut as by the authors, otherwise "
        "balanced (default resnet20)",
    )
    parser.add_argument("--accumulate", type=int, metavar="M", help="fdg, ddg: backward passes per update (default 1)")
    parser.add_argument("--micro-batches", type=int, metavar="M", help="gpipe: micro-batches of a batch (default 4)")
    given = parser.parse_args(arguments)
    K, known = given.K, methods.names()
    check_K(K)
    network, _ = parameters("bp", K, given.model)
    auxiliary = {name: parameters(name, K, given.model)[1] if trains_more(name) else 0 for name in known}
    asked = {"accumulate": given.accumulate, "micro_batches": given.micro_batches}
    options = {name: n for name, n in asked.items() if n is not None}
    rows, extra = [row(name, K, auxiliary[name], options) for name in known], table_3(K)
    print(f"Table 1: lockings and auxiliary networks (K={K}; {given.model} itself has {network:,} parameters)\n")
    print(f"{table_1(rows)}\n\nTable 2: ideal time per batch and speed-up (K={K})\n\n{table_2(rows)}\n")
    print("Table 3: extra memory of corrections (--correct) for each late stage, in copies of its weights\n")
    print(f"{extra}\n")
    print(notes(rows, K, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())

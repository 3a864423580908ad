"""Trains the runs of several seeds as one program of the scan engine: `jax.vmap` of one run's step.

Every array of the common state has a leading axis of seeds. Initial weights, batches, augmentation and dropout differ
between seeds. Beta and the learning rate may differ, too; everything else is the same. Each run keeps its `ScanEngine`,
whose state is a slice of the common state. So losses, checkpoints and results have the same form as in a run by itself,
and each run can be continued by itself.

The runs enter their batches one after the other; the last one starts the program. Rounding differs from that of a run
by itself, because sums over a batch are taken in another order (batch norms), and because convolutions are packed on a
GPU (fdg_jax.layers.packed).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax.engine.evaluate import Evaluation, Tally, averaged, evaluate, tally
from fdg_jax.engine.scan_engine import ScanEngine
from fdg_jax.machine import programs
from fdg_jax.stages import flat
from fdg_jax.stages.update import UpdateRule, evaluated

Tree = Any
# seed -> preprocess(inputs, step) -> inputs of stage 1. The seed is traced.
Transforms = Callable[[jax.Array], Callable[[Tree, jax.Array], Tree]]


class Seeds:
    """Trains the runs of several seeds together.

    run: the states of all runs, every array [S, ...].
    alive: the indices of the runs that still train. The program also computes the others, but ignores their results.

    Arguments:
        engines: one engine for each run. They have the same problem and the same number of entered batches.
        seeds: the seed of each run, 0 .. 2**32-1.
        transforms: transforms(seed) -> preprocess(inputs, step); None for no preprocessing.
        rules: makes the update rules of the stages from a run's own numbers, which are keyword arguments and traced.
        numbers: name -> [S, ...], the numbers of `rules` in which the runs differ; {} if only their seeds differ.
    """

    def __init__(
        self, engines: Sequence[ScanEngine], seeds: Sequence[int], transforms: Transforms | None = None,
        rules: Callable[..., list[UpdateRule]] | None = None, numbers: Mapping[str, np.ndarray] | None = None,
    ):  # fmt: skip
        first, self.engines, report = engines[0], list(engines), engines[0].problem.specs[-1].report
        self.numbers = first.place.put_weights((np.asarray(seeds, np.uint32), dict(numbers or {})))
        self.alive = set(range(len(engines)))
        self.entering: dict[int, np.ndarray] = {}
        self.evaluations: list[Evaluation] | None = None  # of the newest states
        self.resident: tuple[Any, Any, Tree] | None = None
        self.run = programs.jit(stacked)([engine.run for engine in engines])
        for engine in engines:
            engine.seeds, engine._run = self, None

        def one(run, numbers, inputs, labels, functions=first.functions, lines=first.lines):
            seed, own = numbers
            lines = lines._replace(rules=rules(**own)) if rules and own else lines
            inputs = transforms(seed)(inputs, run.entered) if transforms else inputs
            return first.step(run, inputs, labels, functions, lines)

        def batch(run, numbers, inputs, labels):
            return jax.vmap(one)(run, numbers, inputs, labels)

        def of_run(carried, numbers, inputs, labels):
            run, told = one(carried.unpack(), numbers, inputs, labels, *first.within)
            return flat.carried(run), told

        def window(run, numbers, images, labels, indices):  # indices [W, S, batch]
            def of_rows(carried, rows):
                return jax.vmap(of_run)(carried, numbers, images[rows], labels[rows])

            carried, told = jax.lax.scan(of_rows, jax.vmap(first.flattened)(run), indices)
            return jax.vmap(flat.plain)(carried), told

        def outputs(run, inputs):
            held = [(evaluated(s.params, s.opt_state), s.extra) for s in run.stages]
            return first.whole(held, inputs, [None for _ in held])

        self.batch, self.window = (programs.jit(function, donate_argnums=0) for function in (batch, window))
        self.taken, self.put = programs.jit(slice_of), programs.jit(with_slice, donate_argnums=0)
        self.parts = programs.jit(lambda told: [slice_of(told, i) for i in range(len(engines))])
        self.outputs = programs.jit(jax.vmap(outputs, (0, None)))
        self.tally = programs.jit(jax.vmap(lambda outputs, labels: tally(report, outputs, labels), (0, None)))

    def state_of(self, engine: ScanEngine) -> Tree:
        """A copy of the state of a run."""
        return self.taken(self.run, self.engines.index(engine))

    def replace(self, engine: ScanEngine, run: Tree) -> None:
        """Replaces the state of a run."""
        self.run, self.evaluations = self.put(self.run, self.engines.index(engine), run), None

    def enter(self, engine: ScanEngine, images: np.ndarray, labels: np.ndarray, indices: np.ndarray) -> None:
        """Enters the batches images[row], labels[row] of a run. When the last of the runs has entered its batches, the
        program starts.

        images, labels: the same for all runs. indices: [W, batch]; the shape is the same for all runs.
        """
        self.entering[self.engines.index(engine)] = indices
        if self.resident is None or self.resident[0] is not images or self.resident[1] is not labels:
            self.resident = images, labels, None
        self.start_if_complete()

    def leave(self, engine: ScanEngine) -> None:
        """Removes a run that has ended. It gets the state and numbers of another run, to keep its results finite."""
        slot = self.engines.index(engine)
        self.alive.discard(slot)
        self.entering.pop(slot, None)
        if self.alive:
            other = self.taken((self.run, self.numbers), min(self.alive))
            self.run, self.numbers = self.put((self.run, self.numbers), slot, other)
            self.start_if_complete()

    def start_if_complete(self) -> None:
        """Trains the entered batches, if all runs have entered theirs."""
        if not self.alive or self.alive - self.entering.keys():
            return
        entered, self.entering, self.evaluations = self.entering, {}, None
        runs, any_rows = [self.engines[i] for i in sorted(self.alive)], entered[min(self.alive)]
        rows = np.stack([entered.get(i, any_rows) for i in range(len(self.engines))], axis=1)  # [W, S, batch]
        W = len(rows)
        for run in runs:
            run.begin(W)
            run.within_tick = True  # until the new state is complete
        told = self.dispatched(rows, runs[0])
        for i, run in zip(sorted(self.alive), runs, strict=True):
            report, bad, norms = told[i]
            run.within_tick = False
            run.advance(W, report, bad, norms)

    def dispatched(self, rows: np.ndarray, engine: ScanEngine) -> Any:
        """Trains the batches with indices rows [W, S, batch]. Returns the arguments of `ScanEngine.advance` for each
        run, as arrays [W], or [] if W = 1."""
        assert self.resident
        (images, labels, arrays), put = self.resident, engine.place.put_weights
        if len(rows) == 1:  # without a loop, which slows down convolutions on a CPU
            batch = put((images[rows[0]], labels[rows[0]]))
            self.run, told = self.batch(self.run, self.numbers, *batch)
            return self.parts(told)
        if arrays is None:
            arrays = put((images, labels))
            self.resident = images, labels, arrays
        self.run, (report, bad, norms) = self.window(self.run, self.numbers, *arrays, put(rows))
        of_runs = jax.tree.map(lambda a: a.swapaxes(0, 1), (report, norms))
        return self.parts((of_runs[0], None if bad is None else bad[-1], of_runs[1]))

    def evaluate(
        self, engine: ScanEngine, batches: Iterable, transform: Callable[[Tree], Tree] | None
    ) -> Evaluation:
        """Loss and error of a run. The first run that calls this evaluates all runs, on its batches."""
        found = self.evaluations
        if found is None:
            first = self.engines[0]

            def run(inputs: Tree, labels: Tree) -> Tally:
                x = first.transformed(first.place.put_batch(inputs), transform)
                return self.tally(self.outputs(self.run, x), first.place.put_batch(labels))

            def of_each(tallies: Sequence[Tally], n: int) -> list[Evaluation]:
                return [averaged([slice_of(each, i) for each in tallies], n) for i in range(len(self.engines))]

            specs = first.problem.specs
            found = self.evaluations = evaluate(run, batches, None, (specs[0].x, specs[-1].labels), of_each)
        return found[self.engines.index(engine)]


def stacked(trees: Sequence[Tree]) -> Tree:
    """Stacks trees of the same structure into one tree, along a new leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def slice_of(tree: Tree, i: Any) -> Tree:
    """The slice of run i in a tree of arrays [S, ...]."""
    return jax.tree.map(lambda leaf: leaf[i], tree)


def with_slice(tree: Tree, i: Any, part: Tree) -> Tree:
    """Replaces the slice of run i in a tree of arrays [S, ...]."""
    return jax.tree.map(lambda leaf, new: leaf.at[i].set(new), tree, part)

"""The runs of several seeds as one program of the scan engine: `jax.vmap` of one run's step.

Every array of their states gets an axis of seeds in front. Initial weights, batches, augmentation and dropout are each
seed's own, and so may be beta and the learning rate; everything else is the same. Each run keeps its `ScanEngine`,
whose state is a slice of the common one. So losses, checkpoints and results are those of a run by itself, in the same
layout, and each run can go on by itself.

The runs enter their batches one after the other; the last one starts the program. A run by itself rounds otherwise:
sums over a batch are taken in another order (batch norms), and on a GPU convolutions are packed
(fdg_jax.layers.packed).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax.engine.evaluate import Evaluation, Tally, averaged, evaluate, tally
from fdg_jax.engine.scan_engine import ScanEngine
from fdg_jax.machine import programs
from fdg_jax.stages.update import UpdateRule, evaluated

Tree = Any
# seed -> preprocess(inputs, step) -> inputs of stage 1. The seed is traced.
Transforms = Callable[[jax.Array], Callable[[Tree, jax.Array], Tree]]


class Seeds:
    """Trains the runs of several seeds together.

    run: the states of all runs, every array [S, ...].
    alive: the runs that still train. The others compute along, and nobody looks at them.

    Arguments:
        engines: one for each run, of the same problem, with as many batches entered. They take part from now on.
        seeds: of the runs, 0 .. 2**32-1 each.
        transforms: makes the transform of a batch of a seed; None if nothing is done to a batch.
        rules: makes the update rules of the stages, of a run's own numbers by their names, which are traced.
        numbers: name -> [S, ...], the numbers of `rules` in which the runs differ; {}: they differ in their seeds only.
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

        def one(run, numbers, inputs, labels):
            seed, own = numbers
            lines = first.lines._replace(rules=rules(**own)) if rules and own else first.lines
            return first.step(run, transforms(seed)(inputs, run.entered) if transforms else inputs, labels, lines)

        def batch(run, numbers, inputs, labels):
            return jax.vmap(one)(run, numbers, inputs, labels)

        def window(run, numbers, images, labels, indices):  # indices [W, S, batch]
            return jax.lax.scan(lambda run, rows: batch(run, numbers, images[rows], labels[rows]), run, indices)

        def outputs(run, inputs):
            held = [(evaluated(s.params, s.opt_state), s.extra) for s in run.stages]
            return first.whole(held, inputs, [None for _ in held])

        self.batch, self.window = (programs.jit(function, donate_argnums=0) for function in (batch, window))
        self.taken, self.put = programs.jit(slice_of), programs.jit(with_slice, donate_argnums=0)
        self.parts = programs.jit(lambda told: [slice_of(told, i) for i in range(len(engines))])
        self.outputs = programs.jit(jax.vmap(outputs, (0, None)))
        self.tally = programs.jit(jax.vmap(lambda outputs, labels: tally(report, outputs, labels), (0, None)))

    def state_of(self, engine: ScanEngine) -> Tree:
        """The state of a run, as copies."""
        return self.taken(self.run, self.engines.index(engine))

    def replace(self, engine: ScanEngine, run: Tree) -> None:
        """Replaces the state of a run."""
        self.run, self.evaluations = self.put(self.run, self.engines.index(engine), run), None

    def enter(self, engine: ScanEngine, images: np.ndarray, labels: np.ndarray, indices: np.ndarray) -> None:
        """Enters batches images[row], labels[row] of a run. The last run that enters some starts the program.

        images, labels: the same for all runs. indices: [W, batch], of the same shape for all runs.
        """
        self.entering[self.engines.index(engine)] = indices
        if self.resident is None or self.resident[0] is not images or self.resident[1] is not labels:
            self.resident = images, labels, None
        self.start_if_complete()

    def leave(self, engine: ScanEngine) -> None:
        """A run has ended. It gets state and numbers of another, so that what it computes stays finite."""
        slot = self.engines.index(engine)
        self.alive.discard(slot)
        self.entering.pop(slot, None)
        if self.alive:
            other = self.taken((self.run, self.numbers), min(self.alive))
            self.run, self.numbers = self.put((self.run, self.numbers), slot, other)
            self.start_if_complete()

    def start_if_complete(self) -> None:
        """Trains the batches that have been entered, if those of all runs have been."""
        if not self.alive or self.alive - self.entering.keys():
            return
        entered, self.entering, self.evaluations = self.entering, {}, None
        runs, any_rows = [self.engines[i] for i in sorted(self.alive)], entered[min(self.alive)]
        rows = np.stack([entered.get(i, any_rows) for i in range(len(self.engines))], axis=1)  # [W, S, batch]
        W = len(rows)
        for run in runs:
            run.begin(W)
            run.within_tick = True  # until nothing can be half done any more
        told = self.dispatched(rows, runs[0])
        for i, run in zip(sorted(self.alive), runs, strict=True):
            report, bad, norms = told[i]
            run.within_tick = False
            run.advance(W, report, bad, norms)

    def dispatched(self, rows: np.ndarray, engine: ScanEngine) -> Any:
        """Trains batches [W, S, batch]. Returns what `ScanEngine.advance` takes of each run, with arrays [W] or []."""
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
        """Loss and error of a run. The first run that asks evaluates all of them, on its batches."""
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
    """Trees of the same structure as one, whose arrays have an axis for them in front."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def slice_of(tree: Tree, i: Any) -> Tree:
    """Of arrays [S, ...], those of one run."""
    return jax.tree.map(lambda leaf: leaf[i], tree)


def with_slice(tree: Tree, i: Any, part: Tree) -> Tree:
    """The inverse of `slice_of`: arrays [S, ...] with other ones of one run."""
    return jax.tree.map(lambda leaf, new: leaf.at[i].set(new), tree, part)

"""The training loop for every data set: dispatch, record, evaluate, save, until all batches have entered.

The loop uses only public methods of the pipeline. It waits for a device in two places. It waits for an evaluation,
whose numbers are printed. It waits around a dispatch that compiles, so that compiling is not counted in the speed. A
thread writes checkpoints, from arrays that may still be unfinished, while the loop goes on.

The batches are a function of (seed, step) alone, so that a resumed run sees the same batches.
"""

import math
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import jax
import numpy as np

from fdg_jax.checkpoint import run_checkpoints
from fdg_jax.config import Config
from fdg_jax.data.dataset import Dataset, Source
from fdg_jax.data.order import drawn, epoch_order
from fdg_jax.data.sampling import LENGTH, continued, sampled
from fdg_jax.data.stream import Loader, Loading, Stream, TestBatches, TrainBatches
from fdg_jax.data.text import Text, anywhere
from fdg_jax.errors import reason
from fdg_jax.machine.signals import Signals, Stopped
from fdg_jax.runs import run_files
from fdg_jax.runs.progress import Progress, count, per_second
from fdg_jax.training.policies import NonFinitePolicy, Saving, waiting, watchdog
from fdg_jax.training.record import Run

PROFILE, PERFETTO = "profile", "perfetto_trace.json.gz"
# Work of a run that pauses (`yield`) where runs that train together wait for one another. It pauses after batches have
# entered, and around work whose time does not count. A single run goes on at once.
Result = TypeVar("Result")
Steps = Generator[None, None, Result]
TEST_BATCH = 500  # upper bound; the largest divisor of the test examples is used, so that one shape is compiled


class Loop:
    """One session of a run: from the newest checkpoint (or the beginning) to the end or a signal. It is a context
    manager that closes what the loop opens.

    Arguments:
        run: what is trained. Its pipeline and its record are at the same batch.
    """

    def __init__(self, run: Run, signals: Signals, progress: Progress):
        self.run, self.job, self.options, self.pipeline = run, run.job, run.job.options, run.job.pipeline
        self.record, self.signals, self.progress = run.record, signals, progress
        o, alone = self.options, self.job.peers.processes == 1  # several processes obey a signal together, in `agree`
        # True from a call of the pipeline until the record has counted the batches. Pipeline.interrupted only shows an
        # interruption within a tick, but a dispatch may have many ticks.
        self.in_dispatch = False
        self.in_flight = self.pipeline.watch() if o.stall_seconds or not alone else None
        self.watchdog = watchdog(self.job, self.in_flight, run.path) if self.in_flight else None
        self.feed = feed(self.job.dataset, o, self.job.steps, signals.check if alone else lambda: None)
        self.first = FirstDispatches(o)
        self.transform = self.job.dataset.test_transform()
        self.sampled = sampled(o, self.job.dataset.classes)
        nonfinite = NonFinitePolicy(self.job, self.feed.batch, self.warn)
        self.record.on_nonfinite = nonfinite.handle_metrics
        self.saving = Saving(run, progress.say, nonfinite, self.in_flight)
        profiled = run.start.profile if self.job.peers.first else 0
        self.profile = Profile(profiled, run.path, self.paused, progress.say)

    def __enter__(self) -> "Loop":
        self.held = ExitStack()
        for close in (self.feed.close, self.saving.saver.close, self.profile.close):
            self.held.callback(close)
        if self.watchdog:
            self.held.enter_context(self.watchdog)
        return self

    def __exit__(self, *_) -> None:
        self.held.close()

    def warn(self, line: str) -> None:
        """Prints a warning about values that are not finite, and keeps it for the report."""
        self.progress.say(line)
        if self.job.peers.first:
            run_files.add_incident(self.run.path, self.record.step, line.removeprefix("WARNING: "))

    def train(self) -> Steps[None]:
        """Trains until `job.steps` batches have entered. Raises Stopped after a signal."""
        self.record.catch_up()
        while True:
            self.read_losses()
            if self.saving.due():
                with self.record.speed.pause():  # the first one compiles
                    yield
                    self.saving.save()
                    yield
            self.agree()
            if self.record.step >= self.job.steps:
                break
            if self.evaluation_due():
                yield from self.evaluate()
            yield from self.dispatch()

    def agree(self) -> None:
        """Acts on events in any process: a signal, or a checkpoint that could not be written.

        Raises Stopped, SaveFailed, Diverged.
        """
        met = self.job.peers.agree(failed_save=self.saving.saver.has_failed(), signal=self.signals.number)
        if "failed_save" in met:
            self.saving.check()
        if "signal" in met:
            raise Stopped(met["signal"])

    def dispatch(self) -> Steps[None]:
        """Enters the next batches into the pipeline: as many as one dispatch takes."""
        with waiting(self.in_flight, "L", self.record.step + 1):
            work = self.feed.next(self.record.step)
        may_compile = self.first.may_compile(work.shape)
        self.profile.before_dispatch(work.shape[0], may_compile)
        if self.watchdog:
            self.watchdog.may_compile = may_compile
        self.in_dispatch = True
        work.enter(self.pipeline)
        yield
        self.record.entered(work.shape[0], work.shape[0] * work.shape[1])
        self.in_dispatch = False
        if may_compile:
            self.pipeline.wait()
            self.record.speed.forget()
        self.profile.after_dispatch()
        epoch = (self.record.step - 1) // self.job.steps_per_epoch + 1
        self.progress.show(self.record.step, epoch, self.record.last_loss, self.record.rate, may_compile)

    def read_losses(self, wait: bool = False) -> None:
        """Records the losses that are finished; wait: waits for all of them."""
        self.record.losses(self.pipeline.losses(wait=wait))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context for work other than training, whose time is not counted. Waits for the devices first."""
        self.pipeline.wait()
        with self.record.speed.pause():
            yield

    def evaluation_due(self) -> bool:
        """Whether --evaluate-every asks for an evaluation after the newest batch that was not made yet."""
        every, step = self.job.evaluated_every, self.record.step
        return every > 0 and step > 0 and step % every == 0 and step != self.record.evaluated

    def evaluate(self) -> Steps[None]:
        """Evaluates. With --keep-best, saves a checkpoint if this evaluation is the best. Raises Stopped after a
        signal."""
        record = self.record
        with self.paused():  # with the newest weights, whether or not batches are in flight
            yield
            found = self.pipeline.evaluate(self.test_batches(), self.transform)
            self.read_losses(wait=True)  # so that their lines come before the evaluation's
            sample = self.sample()
            if record.evaluation(found.loss, found.error_percent or 0.0, sample) and self.options.keep_best:
                self.saving.save(best=True)
            yield
        self.progress.error = f"test error {record.error:.2f}%"
        measures = record.measures(record.test_loss).items()  # for text: bits per byte
        more = f", test loss {found.loss:.4f}" if record.unit == "tokens" else ""
        more += "".join(f", {value:.4f} {name.replace('_', ' ')}" for name, value in measures if value is not None)
        loss = f"{record.train_loss():.4f}" if record.recent else "not known yet"  # nan means that a run has diverged
        self.progress.say(
            f"epoch {round(record.step / self.job.steps_per_epoch, 2):g}: test error {record.error:.2f}%{more}, "
            f"training loss {loss}, {per_second(record.speed.mean(), record.unit)}, "
            f"learning rate {record.learning_rate(max(record.step, 1)):g}"
        )
        if sample is not None:
            self.progress.say(f"sample: {sample}")

    def sample(self) -> str | None:
        """A text continued by the network; None unless --sample asks for one."""
        if not self.sampled:
            return None
        codec, start = self.sampled
        o, job = self.options, self.job
        rows = math.lcm(*(place.parts for place in job.pipeline.places))  # each device takes an equal part

        def scores(block: np.ndarray) -> np.ndarray:
            self.agree()
            inputs = np.broadcast_to(block, (rows, *block.shape)).astype(job.dataset.dtype)
            return self.pipeline.predict(inputs, self.transform)[0]

        drawn = {"temperature": o.temperature, "top_k": o.top_k, "seed": o.seed}
        return codec.decode(continued(scores, start, LENGTH, job.dataset.per_example, **drawn))

    def test_batches(self) -> Iterator[tuple[Any, Any]]:
        """The test batches. A signal is obeyed between two batches."""
        for batch in self.feed.test():
            self.agree()
            yield batch

    def finish(self) -> Steps[tuple[str, str]]:
        """After the last batch: writes a checkpoint, uses up the batches in flight, and evaluates.

        Returns:
            sha256 of the parameters, and of the checkpoint's state. The checkpoint has the state before draining, so
            that a finished run can go on with more --steps.
        """
        self.saving.save()
        failed = None
        try:
            self.saving.check(last=True)
        except run_checkpoints.SaveFailed as error:  # the weights are lost, but their test error can still be reported
            failed = error
        with self.paused():
            self.read_losses(wait=True)
            self.record.speed.forget()  # batches in flight are partly computed already
            state_sha256 = self.pipeline.state_sha256()
            if self.options.drain:
                self.saving.drained = True
                self.pipeline.drain()
        yield
        self.read_losses(wait=True)
        self.record.late_refusals(self.pipeline.refused())
        self.record.last_line()
        yield from self.evaluate()
        if failed:
            raise failed
        self.record.flush()  # summary.json, written next, marks the run as finished: no line may be lost then
        return self.pipeline.parameters_sha256(), state_sha256


def to_end(work: Steps[Result]) -> Result:
    """Does work without pauses. Returns its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


class FirstDispatches:
    """Tells which dispatches may compile, so that their time is not counted as training.

    The first dispatch of a shape may compile. In the pipeline, a batch of a new size needs 2K ticks to go through all
    stages and back. With M accumulated batches, M-1 more ticks pass until the update. So 2K+M-1 dispatches may compile.
    """

    def __init__(self, options: Config):
        one_program = options.engine == "scan" or ((options.window or 1) > 1 and options.engine == "delay-line")
        self.each = 1 if one_program else 2 * options.K + options.accumulate - 1
        self.shapes: set[tuple[int, ...]] = set()  # of the dispatches so far
        self.left = 0  # how many of the next dispatches may still compile

    def may_compile(self, shape: tuple[int, ...]) -> bool:
        """Whether the next dispatch may compile. shape: [batches, examples in each]."""
        if shape not in self.shapes:
            self.shapes.add(shape)
            self.left = self.each
        self.left -= 1
        return self.left >= 0


class Profile:
    """`--profile N`: a trace by JAX's profiler of what devices and host do in N batches of a session.

    The trace begins when nothing compiles any more. JAX writes it in two forms: for ui.perfetto.dev, and for XProf
    (`pip install xprof`). The same programs run in the same order, so the run computes the same bits; only the traced
    batches are slower.

    Arguments:
        batches: how many are traced; 0: none.
        run: the run directory.
        paused: a function that waits for the devices and returns a context in which no training time is counted.
        say: prints a line.
    """

    def __init__(
        self, batches: int, run: Path, paused: Callable[[], AbstractContextManager], say: Callable[[str], None]
    ):
        self.left, self.folder, self.paused, self.say = batches, run / PROFILE, paused, say
        self.traced, self.on = 0, False

    def before_dispatch(self, batches: int, may_compile: bool) -> None:
        """Begins the trace before the first dispatch that does not compile, and counts its batches."""
        if self.left <= 0:
            return
        if not self.on and not may_compile:
            self.start()
        if self.on:
            self.left -= batches
            self.traced += batches

    def after_dispatch(self) -> None:
        """Ends the trace after the last batch to be traced."""
        if self.on and self.left <= 0:
            self.stop()

    def start(self) -> None:
        with self.paused():
            try:
                jax.profiler.start_trace(self.folder, create_perfetto_trace=True)
                self.on = True
            except Exception as error:  # another profiler, such as a debugger's, is active
                self.give_up(reason(error))

    def stop(self) -> None:
        """Ends the trace and prints where it is."""
        self.on = False
        with self.paused():
            try:
                jax.profiler.stop_trace()
            except Exception as error:
                self.give_up(reason(error))
                return
        found = sorted(self.folder.rglob(PERFETTO))
        where = found[-1] if found else self.folder
        batches = count(self.traced, "batch", "es")
        self.say(f"profile of {batches}: open {where} at ui.perfetto.dev, or xprof --logdir {self.folder}")

    def close(self) -> None:
        """Ends a trace that is still open at the end of the session."""
        if self.on:
            self.stop()
        elif self.left > 0 and not self.traced:
            self.give_up("all batches of this session may include compilation, so none was traced")

    def give_up(self, why: str) -> None:
        self.left = 0
        print(f"warning: --profile: {why}. The run is not affected.", file=sys.stderr, flush=True)


class Work(NamedTuple):
    """The batches of one dispatch."""

    shape: tuple[int, int]  # batches, examples in each
    enter: Callable[[Any], object]  # takes the pipeline


class InMemory:
    """Windows of batches, from a data set in memory (which the delay line keeps on its device) or from a text in files.

    A text is read batch by batch, so that the pipeline is between two batches when a read fails. If a file of the text
    has been cut short, reading a window or a test batch raises Damaged.
    """

    def __init__(self, dataset: Dataset | Text, options: Config, steps: int):
        self.dataset, self.options, self.steps = dataset, options, steps
        self.N = len(dataset.train_inputs)
        self.order: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int32))  # (epoch, its order)
        self.check = dataset.check if isinstance(dataset, Text) else lambda: None
        self.random = options.blocks == "random"
        self.inputs, self.labels = dataset.train_inputs, dataset.train_labels
        if self.random:
            self.inputs, self.labels = anywhere(self.inputs), anywhere(self.labels)

    def next(self, step: int) -> Work:
        """The next batches after `step`, at most --window and within the epoch. The smaller last batch of an epoch is
        dispatched alone."""
        self.check()
        rows = self.indices(step)
        shape = rows.shape[0], rows.shape[1]
        inputs, labels = self.inputs, self.labels
        if isinstance(self.dataset, Text):
            inputs, labels = inputs[rows.ravel()], labels[rows.ravel()]
            rows = np.arange(rows.size).reshape(shape)
        return Work(shape, lambda pipeline: pipeline.train(inputs, labels, rows))

    def indices(self, step: int) -> np.ndarray:
        """[W, batch] integers. Windows are counted from the epoch's start, so a resumed run has the same windows."""
        B, W, full = self.options.batch_size, self.options.window or 1, self.N // self.options.batch_size
        batch = step % -(-self.N // B)
        W = min(W - batch % W, max(1, full - batch), self.steps - step)
        return np.stack([self.rows(each) for each in range(step, step + W)])

    def rows(self, step: int) -> np.ndarray:
        """[batch] The numbers of the examples in the batch after `step`; for random blocks, their first tokens."""
        B = self.options.batch_size
        if self.random:
            return drawn(len(self.inputs), B, self.options.seed, step)
        epoch, batch = divmod(step, -(-self.N // B))
        if self.order[0] != epoch:
            self.order = epoch, epoch_order(self.N, self.options.seed, epoch)
        return self.order[1][batch * B : (batch + 1) * B]

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The batch after `step`, which may have been entered before."""
        rows = self.rows(step)
        return self.inputs[rows], self.labels[rows]

    def test(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Test batches of up to 500 images. A test batch of text, whose outputs are large, has at most as many examples
        as a training batch."""
        inputs, labels = self.dataset.test_inputs, self.dataset.test_labels
        size = even_size(len(inputs), TEST_BATCH if self.dataset.unit == "images" else self.options.batch_size)
        for start in range(0, len(inputs), size):
            self.check()
            rows = slice(start, start + size)
            yield np.asarray(inputs[rows]), np.asarray(labels[rows])

    def close(self) -> None: ...


class Streamed:
    """Batches decoded ahead of time by workers, which start with the first batch and live as long as the run.

    check: called repeatedly during the wait for a batch; an exception from it ends the wait.
    """

    def __init__(self, stream: Stream, options: Config, check: Callable[[], None]):
        self.stream, self.options, self.check = stream, options, check
        self.loader: Loading | None = None
        self.at = -1  # the loader's next batch is the one after this step

    def next(self, step: int) -> Work:
        """The batch after `step`. Raises Damaged if one of its images cannot be decoded, and LoaderFailed if a decoding
        process has died."""
        if self.loader is None or self.at != step:
            self.close()
            batches = TrainBatches(self.stream, self.options.batch_size, self.options.seed)
            self.loader = Loading(Loader(batches, start=step), self.check)
        batch = next(self.loader)
        self.at = step + 1
        return Work((1, len(batch[1])), lambda pipeline: pipeline.step(batch))

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The batch after `step`, decoded again."""
        return TrainBatches(self.stream, self.options.batch_size, self.options.seed)[step]

    def test(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Test batches, at most as large as a training batch, which is known to fit into the device's memory."""
        size = even_size(len(self.stream.test_inputs), self.options.batch_size)
        with Loading(Loader(TestBatches(self.stream, size)), self.check) as loader:
            yield from loader

    def close(self) -> None:
        if self.loader is not None:
            self.loader.close()
            self.loader = None


def feed(source: Source, options: Config, steps: int, check: Callable[[], None] = lambda: None) -> InMemory | Streamed:
    """The batches of a data set of any kind. check: as in `Streamed`."""
    if isinstance(source, Stream):
        return Streamed(source, options, check)
    return InMemory(cast(Dataset | Text, source), options, steps)


def even_size(examples: int, most: int) -> int:
    """Examples in a test batch: the largest divisor of `examples` up to `most`; if this divisor is small, `most`."""
    even = max(size for size in range(1, min(most, examples) + 1) if examples % size == 0)
    return even if even > most // 5 or even == examples else min(most, examples)

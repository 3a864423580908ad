"""The training loop that every data set shares: dispatch, write down, evaluate, save, until all batches have entered.

It knows the pipeline by its public methods only. It waits for a device where a person asked for a number (an
evaluation) and around a dispatch that compiles, so that the speed is that of training; nowhere else. A checkpoint is
written by a thread, from arrays that may still be unfinished, while the loop goes on.
"""

import math
from pathlib import Path

from fdg_jax.checkpoint import run_checkpoints
from fdg_jax.engine.unfinished import UnfinishedOperations
from fdg_jax.runs import incidents
from fdg_jax.runs.progress import Progress
from fdg_jax.training import feeding
from fdg_jax.training.evaluating import Evaluation
from fdg_jax.training.nonfinite_policy import NonFinitePolicy
from fdg_jax.training.peer_watchdog import PeerWatchdog
from fdg_jax.training.profiling import Profile
from fdg_jax.training.record import Record
from fdg_jax.training.save_policy import Saving
from fdg_jax.training.setup import Job
from fdg_jax.training.signals import Signals, Stopped
from fdg_jax.training.throughput import ThroughputClock
from fdg_jax.training.watchdog import HostOperations, Watchdog


class Loop:
    """One session of a run: from the newest checkpoint (or the beginning) to the end or a signal.

    Arguments:
        job: what is trained. Its pipeline stands where the record says.
        run: the run directory.
        fresh: whether the run has no checkpoint yet.
        profile: batches to be traced.
    """

    def __init__(
        self,
        job: Job,
        run: Path,
        signals: Signals,
        progress: Progress,
        record: Record,
        fresh: bool,
        profile: int = 0,
    ):
        self.job, self.options, self.pipeline = job, job.options, job.pipeline
        self.run, self.signals, self.progress, self.record = run, signals, progress, record
        alone = job.peers.processes == 1  # else a signal is obeyed where all processes meet
        # True from the call of the pipeline until the record counts its batches. Pipeline.interrupted knows of a cut
        # within a tick only, and a dispatch may be many ticks.
        self.in_dispatch = False
        o = job.options
        in_flight = job.pipeline.watch() if o.stall_seconds or not alone else None
        self.watchdog = watchdog(job, in_flight, run) if in_flight else None
        self.operations = HostOperations(in_flight)
        self.feed = feeding.feed(job.dataset, o, job.steps, signals.check if alone else lambda: None)
        self.clock = ThroughputClock(job.pipeline, record, o)
        self.evaluation = Evaluation(job, record, progress, self.feed.test, self.meet)
        nonfinite = NonFinitePolicy(o.on_nan, job.pipeline, self.feed.batch, self.warn)
        record.on_nonfinite = nonfinite.handle_metrics
        self.saving = Saving(job, run, record, progress, nonfinite, self.operations, fresh)
        self.profile = Profile(profile, run, self.clock.paused, progress.say)

    def warn(self, line: str) -> None:
        """Prints a warning about values that are not finite, and keeps it for the report."""
        self.progress.say(line)
        if self.job.peers.first:
            incidents.add(self.run, self.record.step, line.removeprefix("WARNING: "))

    def train(self) -> None:
        """Trains until `job.steps` batches have entered. Raises Stopped after a signal."""
        self.record.catch_up()
        while True:
            self.read_losses()
            if self.saving.due():
                self.saving.save()
            self.meet()
            if self.record.step >= self.job.steps:
                break
            if self.evaluation.due():
                self.evaluate()
            self.dispatch()

    def meet(self) -> None:
        """Acts on what has happened beside the training, in any process: a signal, a checkpoint that has failed.

        Raises Stopped, SaveFailed, Diverged.
        """
        met = self.job.peers.meet(failed_save=self.saving.saver.has_failed(), signal=self.signals.number)
        if "failed_save" in met:
            self.saving.check()
        if "signal" in met:
            raise Stopped(met["signal"])

    def dispatch(self) -> None:
        """Enters the next batches into the pipeline: as many as one dispatch takes."""
        with self.operations.waiting("L", self.record.step + 1):
            work = self.feed.next(self.record.step)
        may_compile = self.clock.before_dispatch(work.shape)
        self.profile.before_dispatch(work.shape[0], may_compile)
        if self.watchdog:
            self.watchdog.may_compile = may_compile
        self.in_dispatch = True
        work.enter(self.pipeline)
        self.record.entered(work.shape[0], work.shape[0] * work.shape[1])
        self.in_dispatch = False
        self.clock.after_dispatch(may_compile)
        self.profile.after_dispatch()
        epoch = (self.record.step - 1) // self.job.steps_per_epoch + 1
        self.progress.show(self.record.step, epoch, self.record.last_loss, self.record.rate, may_compile)

    def read_losses(self, wait: bool = False) -> None:
        """Writes down the losses that are finished; wait: all of them."""
        self.record.losses(self.pipeline.losses(wait=wait))

    def evaluate(self) -> None:
        """Evaluates, and saves a checkpoint if it is the best and wanted. Raises Stopped after a signal."""
        self.clock.paused(self.evaluate_and_keep_best)
        self.evaluation.say_result()

    def evaluate_and_keep_best(self) -> None:
        if self.evaluation.run() and self.options.keep_best:
            self.saving.save(best=True)

    def finish(self) -> tuple[str, str]:
        """After the last batch: a checkpoint, the batches in flight, the last evaluation.

        Returns:
            sha256 of the parameters, and of the checkpoint's state. That is the state before draining, so that a
            finished run can go on with more --steps.
        """
        self.saving.save()
        failed = None
        try:
            self.saving.check(last=True)
        except run_checkpoints.SaveFailed as error:  # the weights are lost, but their test error can still be reported
            failed = error
        self.clock.paused(self.hash_and_drain)
        self.read_losses(wait=True)
        self.record.late_refusals(self.pipeline.refused())
        self.record.last_line()
        self.evaluate()
        if failed:
            raise failed
        self.record.flush()  # summary.json, which is written next, says that the run is finished: no line may be lost
        return self.pipeline.parameters_sha256(), self.state_sha256

    def hash_and_drain(self) -> None:
        self.state_sha256 = self.pipeline.state_sha256()
        if self.options.drain:
            self.saving.drained = True
            self.pipeline.drain()


def watchdog(job: Job, in_flight: UnfinishedOperations, run: Path) -> Watchdog:
    """What looks after the operations under way, and after the messages of other processes."""
    seconds, peers = job.options.stall_seconds, job.peers
    if peers.processes == 1:
        return Watchdog(in_flight, seconds, run)
    processes = [device.process_index for device in job.pipeline.devices]
    return PeerWatchdog(in_flight, seconds or math.inf, run, peers.seconds, lambda k: processes[k - 1], peers.process)

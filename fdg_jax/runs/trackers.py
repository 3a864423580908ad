"""The curves of a run in TensorBoard. With `--track wandb,mlflow,trackio` the trackers' own clients get them, too.

The clients' own settings decide where the numbers go (a server, a folder, offline): `WANDB_MODE=offline`,
`MLFLOW_TRACKING_URI`, ... A client that fails ends its curves with a warning and never ends a run. `tracking.json` in
the run directory keeps the run's name in each tracker, so that a resumed run continues its curves. A tracker cannot
take points back, so batches repeated after a return to a checkpoint are not sent again.
"""

import importlib
import importlib.util
import os
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from fdg_jax import durable
from fdg_jax.config import FIELDS
from fdg_jax.errors import BadInput, did_you_mean, reason
from fdg_jax.machine import output
from fdg_jax.machine.facts import python_command
from fdg_jax.runs.run_files import SUMMARY, newest_points, read_json, write_json

PROJECT, TRACKING, OFF = "fdg_jax", "tracking.json", "none"
RESULTS = (
    *("test_error_percent", "test_loss", "test_bits_per_byte", "train_loss", "images_per_second", "tokens_per_second"),
    *("seconds", "parameters"),
)


class Client(Protocol):
    """One run in a tracker. `id`: identifies the run, to resume it."""

    id: str

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Adds a point to each curve, at this batch."""

    def finish(self, results: Mapping[str, float], code: int) -> None:
        """Ends the session. results: the run's results; {} if it has not finished. code: the exit code of the
        command."""


# The clients are optional extras, so each is imported by name when it is used.


class Wandb:
    def __init__(self, path: Path, config: Mapping[str, Any], id: str | None):
        wandb = importlib.import_module("wandb")
        # This package's streams survive a closed pipe; wandb's wrappers of them (its "console") would not.
        settings = wandb.Settings(console="off", silent=isinstance(sys.stdout, output.Quiet))
        where = {"project": PROJECT, "name": path.name, "dir": str(path)}
        self.run = wandb.init(**where, config=dict(config), id=id, resume="allow", settings=settings)
        self.id = self.run.id
        # wandb's own step would drop points of earlier batches: a loss may come after the test of a later batch.
        self.run.define_metric("*", step_metric="batch")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log({**values, "batch": step})

    def finish(self, results: Mapping[str, float], code: int) -> None:
        self.run.summary.update(dict(results))
        self.run.finish(exit_code=code)


class Mlflow:
    def __init__(self, path: Path, config: Mapping[str, Any], id: str | None):
        self.mlflow = importlib.import_module("mlflow")
        self.mlflow.set_experiment(PROJECT)
        self.id = self.mlflow.start_run(run_id=id, run_name=None if id else path.name).info.run_id
        if id is None:
            self.mlflow.log_params(dict(config))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.mlflow.log_metrics(dict(values), step=step, synchronous=False)  # a server may be slow

    def finish(self, results: Mapping[str, float], code: int) -> None:
        self.mlflow.log_metrics({f"result/{name}": value for name, value in results.items()})
        self.mlflow.end_run("FINISHED" if results else "KILLED" if code > 128 else "FAILED")


class Trackio:
    def __init__(self, path: Path, config: Mapping[str, Any], id: str | None):
        self.id = id or f"{path.name}-{uuid.uuid4().hex[:6]}"  # trackio identifies runs by name
        trackio = importlib.import_module("trackio")
        self.run = trackio.init(project=PROJECT, name=self.id, config=dict(config), resume="allow", embed=False)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def finish(self, results: Mapping[str, float], code: int) -> None:
        if results:
            self.run.log({f"result/{name}": value for name, value in results.items()})
        self.run.finish()


CLIENTS = {"wandb": Wandb, "mlflow": Mlflow, "trackio": Trackio}


class TensorBoard:
    """Curves in files below `folder`, for batches after `step`. Raises OSError if the files cannot be written.

    Points are written directly, without tensorboardX's SummaryWriter: its thread dies when the disk is full, and then
    every call that adds a number waits for ever.
    """

    id = ""  # the folder identifies the run

    def __init__(self, folder: Path, step: int):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog  # type: ignore

        durable.make_folder(folder)
        self.folder, self.writer = folder, EventsWriter(str(folder / "events"), f".{os.getpid()}")
        self.lost: OSError | None = None  # an error of another thread's flush
        if step:  # makes TensorBoard drop another session's points of later steps
            self.write(step + 1, session_log=SessionLog(status=SessionLog.START))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Adds a point to each curve, at this batch."""
        from tensorboardX.proto.summary_pb2 import Summary  # type: ignore

        points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self.write(step, summary=Summary(value=points))

    def write(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event  # type: ignore

        if self.lost is not None:
            raise self.lost
        self.writer.write_event(Event(wall_time=time.time(), step=step, **content))
        self.writer.flush()

    def flush(self) -> None:
        """Brings the points so far to the disk. Errors are reported at the next point."""
        try:
            for file in self.folder.glob(f"*.{os.getpid()}"):  # this process's files: one per return to a checkpoint
                durable.flush_file(file)
            durable.flush_folder(self.folder)
        except OSError as error:
            self.lost = error

    def finish(self, results: Mapping[str, float], code: int) -> None:
        """Closes the files."""
        self.writer.close()


class Trackers:
    """The trackers of a session: those whose clients work.

    newest: the batch of a tracker's newest point, by tracker and kind of curves: {"wandb/train": 9}.
    """

    def __init__(self, clients: Mapping[str, Client], newest: Mapping[str, int] = MappingProxyType({})):
        self.clients, self.newest = dict(clients), dict(newest)

    def add(self, step: int, values: Mapping[str, float | None]) -> None:
        """Adds a point to each curve. All curves are of one kind, such as "train" in train/learning_rate. None: no
        point."""
        known = {name: value for name, value in values.items() if value is not None}
        kind = next(iter(values), "").split("/")[0]
        for name, client in list(self.clients.items()):
            if step <= self.newest.get(f"{name}/{kind}", 0):
                continue
            try:
                client.log(step, known)
                self.newest[f"{name}/{kind}"] = step
            except Exception as error:
                self.lose(name, error)

    def flush(self) -> None:
        """Brings the points in TensorBoard's files to the disk. Another thread may call it."""
        for client in list(self.clients.values()):
            if isinstance(client, TensorBoard):
                client.flush()

    def write(self, run: Path) -> None:
        """Writes tracking.json, which a resumed session reads."""
        write_json(run / TRACKING, {name: client.id for name, client in self.clients.items()} | self.newest)

    def finish(self, run: Path, code: int) -> None:
        """Ends the session, with the results in summary.json if the run has finished. code: the command's exit code."""
        if not self.clients:
            return
        try:
            summary = read_json(run / SUMMARY)
        except BadInput:
            summary = {}
        results = {name: summary[name] for name in RESULTS if isinstance(summary.get(name), int | float)}
        for name, client in list(self.clients.items()):
            try:
                client.finish(results, code)
            except Exception as error:
                self.lose(name, error)

    def lose(self, name: str, error: Exception) -> None:
        """Removes a tracker that fails, with a warning."""
        del self.clients[name]
        say_lost(name, error)


def say_lost(name: str, error: Exception) -> None:
    """Warns that a tracker gets no more points."""
    fact = f"the curves in {name} end here: {reason(error)}"
    print(f"WARNING: {fact}. metrics.jsonl still gets all curves.", file=sys.stderr, flush=True)


NO_TRACKERS = Trackers({})


def tensorboard(run: Path, step: int, newest: Mapping[str, int]) -> Trackers:
    """TensorBoard's curves of a run, for batches after `step`.

    newest: for each kind of curves, the batch of the newest point written by earlier sessions. Losses are read late, so
        after a resume the loss of a batch up to `step` may be read again.
    """
    try:
        board = TensorBoard(run / "tensorboard", step)
    except OSError as error:
        say_lost("TensorBoard", error)
        return Trackers({})
    return Trackers({"TensorBoard": board}, {f"TensorBoard/{kind}": min(at, step) for kind, at in newest.items()})


def asked(track: str | None) -> list[str]:
    """The names in the value of --track."""
    words = [word.strip() for word in (track or OFF).split(",")]
    return [] if words == [OFF] else list(dict.fromkeys(words))


def installed(name: str) -> bool:
    """Whether a client can be imported. A folder of the same name in the current directory, such as wandb makes, does
    not count."""
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is not None


def check(track: str | None) -> None:
    """Raises BadInput for an unknown tracker, or a tracker whose client is not installed."""
    for name in asked(track):
        if name not in CLIENTS:
            hint = did_you_mean(name, CLIENTS) or f" Known are {', '.join(CLIENTS)}, and {OFF}."
            raise BadInput(f"--track {track}: {name!r} is not a tracker.{hint}")
        if not installed(name):
            fact = f"--track {track}: {name} is not installed here"
            raise BadInput(f"{fact}. Install it with {python_command()} -m pip install {name}")


def opened(track: str | None, run: Path, config: Mapping[str, Any], resumed: bool) -> Trackers:
    """The trackers in `track`; by default the trackers that the run had before. Raises BadInput if a tracker cannot be
    opened.

    Arguments:
        run: the run directory, which exists. config: the content of its config.json.
    """
    ids, newest = before(run) if resumed else ({}, {})
    names = list(ids) if track is None else asked(track)
    options = {name: config[name] for name in (*FIELDS, "versions", "git_commit") if name in config}
    clients: dict[str, Client] = {}
    for name in names:
        try:
            clients[name] = CLIENTS[name](run, options, ids.get(name))
        except Exception as error:
            Trackers(clients).finish(run, code=2)
            fact = f"--track {name}: its client could not begin a run: {reason(error)}"
            raise BadInput(f"{fact}. Set {name} up as its manual says, or use --track {OFF}.") from None
    found = Trackers(clients, newest)
    if clients or ids:
        found.write(run)
    return found


def before(run: Path) -> tuple[dict[str, str], dict[str, int]]:
    """Returns the run's names in its trackers, and `Trackers.newest`. Leaves out trackers that cannot be used any
    more."""
    try:
        found = read_json(run / TRACKING) if (run / TRACKING).exists() else {}
    except BadInput as error:
        print(f"warning: {error} The run gets a new entry in its trackers.", file=sys.stderr, flush=True)
        return {}, {}
    ids = {name: id for name, id in found.items() if name in CLIENTS and isinstance(id, str)}
    for name in [name for name in ids if not installed(name)]:
        print(f"warning: {name} is not installed any more, so it gets no more curves.", file=sys.stderr, flush=True)
        del ids[name]
    # metrics.jsonl has the points of the last session, tracking.json those of earlier sessions.
    points = {f"{name}/{kind}": step for name in ids for kind, step in newest_points(run).items()}
    kept = {name: step for name, step in found.items() if name.split("/")[0] in ids and isinstance(step, int)}
    return ids, {name: max(points.get(name, 0), kept.get(name, 0)) for name in points.keys() | kept.keys()}

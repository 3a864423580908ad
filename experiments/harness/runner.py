"""Makes the runs that a table lacks: starts the missing ones and continues interrupted ones, one process per core.

Each run is the command that `list` shows, in a process of its own, whose output goes to <runs-dir>/<name>.log
(fdg_jax.training.child_runs).
"""

from collections.abc import Sequence
from pathlib import Path

from experiments.harness.run_table import CUT_OFF, DONE, MISSING, ROOT, RUNNING, Run, command, state
from fdg_jax.training import child_runs
from fdg_jax.training.child_runs import Planned
from fdg_jax.training.signals import Signals

ORDER = {DONE: 0, RUNNING: 0, CUT_OFF: 1, MISSING: 2}  # those that are skipped, with a message, come first


def run_missing(runs: Sequence[Run], runs_dir: Path, data_dir: str | None, jobs: int) -> int:
    """Makes all runs that are neither done nor being made by another process, `jobs` at a time.

    Returns: the exit code, as of child_runs.make_all.
    """
    child_runs.cores_for(jobs)  # refuses numbers that cannot be, before directories are looked at
    runs_dir = runs_dir.resolve()
    data_dir = str(Path(data_dir).expanduser().resolve()) if data_dir else None  # the runs start in another directory
    waiting = sorted(runs, key=lambda run: ORDER[state(run, runs_dir).kind])
    with Signals() as signals:
        return child_runs.make_all([planned(run, runs_dir, data_dir) for run in waiting], jobs, signals, ROOT)


def planned(run: Run, runs_dir: Path, data_dir: str | None) -> Planned:
    """A run as child_runs takes it. Its state is looked at when it would start: another process may be at the table."""

    def words() -> tuple[list[str], str] | None:
        now = state(run, runs_dir)
        if now.kind in (DONE, RUNNING):
            print(f"{run.name}: {now}", flush=True)
            return None
        resume = now.kind == CUT_OFF
        made = command(run, data_dir, str(runs_dir / run.name), resume)[1:]
        return made, "continued" if resume else "started"

    return Planned(run.name, runs_dir / f"{run.name}.log", words)

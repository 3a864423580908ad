"""What the training commands share, which is everything but their name, their data sets and their defaults.

Exit codes: 0 done; 2 bad input (one message, before any long work); 130, 143, 129 and 138 stopped by SIGINT, SIGTERM,
SIGHUP and SIGUSR1, from the first batch on after a checkpoint; 1 anything else, a run that diverged or met a damaged
image included. Flags and files: `--help`, and the README.

Training goes on when nobody can read its output any more (fdg_jax.machine.output), and when the report at its end
cannot be made. The exit code is that of the training.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from fdg_jax.errors import BadInput
from fdg_jax.machine import output
from fdg_jax.runs import locking, option_checks, reading, run_files
from fdg_jax.runs.options import Options
from fdg_jax.training import command_line, launch
from fdg_jax.training.command_line import Program
from fdg_jax.training.signals import Signals, Stopped


def main(arguments: Sequence[str], program: Program) -> int:
    """Runs the command; returns its exit code."""
    with output.forgiving(), Signals() as signals:
        try:
            options, given = command_line.parse(arguments, program)
            return start(options, given, program, signals)
        except BadInput as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except Stopped as stopped:
            print(f"stopped by {stopped} before the first batch", flush=True)
            return 128 + stopped.number


def start(asked: Options, given: frozenset[str], program: Program, signals: Signals) -> int:
    """Everything cheap is checked, then the run directory is claimed, then the run is prepared."""
    if asked.resume_into is not None:
        from fdg_jax.training import resume_into

        return resume_into.start(asked, given, program, signals)
    if asked.resume and asked.run_dir is None:
        raise BadInput("--resume needs the run directory of the run to go on with: add --run-dir DIR.")
    option_checks.check(asked, given if not asked.resume else frozenset())
    claimed = locking.claim(Path(asked.run_dir), asked.resume) if asked.run_dir else locking.claim_new(asked)
    with claimed as (path, resume):
        if asked.resume == "auto":
            asked = dataclasses.replace(asked, resume=resume)
            option_checks.check(asked, given if not asked.resume else frozenset())
        options, config = asked, None
        if asked.resume:
            options, config = reading.resumed_options(path, asked, given)
            option_checks.check(options, frozenset())
            run_files.read_metrics(path / run_files.METRICS)  # what is damaged is refused before the work
            if launch.finished(path, options):
                from fdg_jax.training import closing

                closing.write_report(path, config)  # a process that was killed at its very end may lack it
                return 0
        return launch.prepare_and_run(options, config, path, program, signals)


def leave(code: int) -> None:
    """Ends the process of a command."""
    output.flush()
    if "fdg_jax.training.loading" in sys.modules:
        from fdg_jax.training import loading

        loading.leave(code)
    sys.exit(code)

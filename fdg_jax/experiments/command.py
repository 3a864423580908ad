"""Runs a training command. A command itself has only its name, its data sets and its defaults.

`start` checks what is cheap to check and claims the run directory; fdg_jax/training/lifecycle.py does the rest.

Exit codes: 0 done; 2 bad input (one message, before any long work); 130, 143, 129 and 138 stopped by SIGINT, SIGTERM,
SIGHUP and SIGUSR1 (after the first batch, with a checkpoint); 1 anything else, such as a run that diverged or a damaged
image. `--help` and the README explain flags and files.

Training goes on if its output can no longer be written (fdg_jax.machine.output). If the report cannot be written, the
training's exit code stays the same.
"""

import dataclasses
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from fdg_jax import cli
from fdg_jax.checks import options as checks
from fdg_jax.cli import CommandLine, Program
from fdg_jax.config import Config
from fdg_jax.data import stream
from fdg_jax.errors import BadInput
from fdg_jax.machine import output
from fdg_jax.machine.signals import Signals, Stopped
from fdg_jax.options.fields import as_flags
from fdg_jax.runs import locking, trackers
from fdg_jax.training import processes
from fdg_jax.training.processes import Elsewhere, Silent


def main(arguments: Sequence[str], program: Program) -> int:
    """Runs the command; returns its exit code."""
    words = None
    with output.forgiving(), as_flags(), Signals() as signals:
        try:
            words = cli.read(arguments, program)
            with output.quiet(words.start.quiet):
                return start(words, program, signals)
        except Elsewhere:  # another process prints the error
            return 2
        except Silent as error:
            print(f"error: {error} Find the cause, then restart all processes.", file=sys.stderr)
            return 1
        except BadInput as error:
            print(f"error: {words.explained(error) if words else error}", file=sys.stderr)
            return 2
        except Stopped as stopped:
            print(f"stopped by {stopped} before the first batch", flush=True)
            return 128 + stopped.number


def start(words: CommandLine, program: Program, signals: Signals) -> int:
    """Checks everything that is cheap to check, claims the run directory, then prepares and runs the training."""
    asked, given = words.options, words.given
    checks.check_joining(words.joining, words.joining_given, asked)
    checks.check_start(words.start, asked, words.joining)
    trackers.check(words.start.track)
    if words.start.several:
        from fdg_jax import sweep

        def make(found: Sequence[sweep.Combination], folder: Path) -> int:
            from fdg_jax import together

            return together.run(found, folder, program, signals, words.start)

        return sweep.run(words, program, signals, make)
    if asked.resume and asked.run_dir is None:
        raise BadInput("--resume needs the directory of the run: add --run-dir DIR.")
    checks.check(asked, given if not asked.resume else frozenset())
    from fdg_jax.training import lifecycle  # slow to import, so imported after the cheap checks

    if words.start.dry_run:
        return lifecycle.dry_run(asked, program, signals)
    peers = processes.join(words.joining, asked, given)
    with ExitStack() as held:
        path, resume = peers.from_zero(lambda: claim(asked, held))
        path = Path(path)
        if peers.processes > 1:
            processes.check_shared(path, peers)
        if asked.resume == "auto":
            asked = dataclasses.replace(asked, resume=resume)
            checks.check(asked, given if not asked.resume else frozenset())
        options, config = asked, None
        if asked.resume:
            options, config = peers.on_all(lambda: lifecycle.resumed(path, asked, given))
            if peers.from_zero(lambda: lifecycle.finished(path, options)):
                if peers.first:
                    lifecycle.write_report(path, config)  # a run that was killed at its very end may lack the report
                return 0
        return lifecycle.prepare_and_run(options, config, path, program, signals, peers, words.start)


def claim(asked: Config, held: ExitStack) -> tuple[str, bool]:
    """Claims the run directory. Returns its path, and whether it holds a run to resume. held: the stack that keeps the
    claim."""
    claimed = locking.claim(Path(asked.run_dir), asked.resume) if asked.run_dir else locking.claim_new(asked)
    path, resume = held.enter_context(claimed)
    return str(path), resume


def leave(code: int) -> None:
    """Ends the process of a command."""
    output.flush()
    stream.leave(code)
    processes.leave(code)
    sys.exit(code)

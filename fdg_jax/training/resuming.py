"""The run directory of a command: claimed, and read if the run in it goes on."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fdg_jax.checks import options as checks
from fdg_jax.config import Config
from fdg_jax.machine import output
from fdg_jax.runs import locking, reading, run_files
from fdg_jax.runs.progress import count


def claim(asked: Config, held: ExitStack) -> tuple[str, bool]:
    """Claims the run directory. Returns its path, and whether it holds a run to resume. held: keeps the claim."""
    claimed = locking.claim(Path(asked.run_dir), asked.resume) if asked.run_dir else locking.claim_new(asked)
    path, resume = held.enter_context(claimed)
    return str(path), resume


def resumed(path: Path, asked: Config, given: frozenset[str]) -> tuple[Config, dict[str, Any]]:
    """Returns the options of the resumed run and its config.json. Raises BadInput."""
    options, config = reading.resumed_options(path, asked, given)
    checks.check(options, frozenset())
    for _ in run_files.metrics(path / run_files.METRICS):  # a damaged line is refused before the work
        pass
    return options, config


def finished(path: Path, options: Config) -> bool:
    """Whether the run to be resumed is already finished; if so, prints that."""
    if (steps := reading.finished_steps(path, options)) is None:
        return False
    longer = f"--init-from {path} begins a new run with its weights"
    more = "With more --steps it goes on" if options.steps else longer
    print(f"{path} is finished: {count(steps, 'batch', 'es')}. Nothing to do. {more}.", file=output.loud())
    return True

"""The command `python -m fdg_jax.watch RUN`: shows a run that another process trains."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fdg_jax.errors import BadInput, reason
from fdg_jax.machine import output
from fdg_jax.options.parser import Parser
from fdg_jax.runs.run_files import CONFIG
from fdg_jax.watch import server, terminal
from fdg_jax.watch.seen import Watched
from fdg_jax.watch.view import MEANINGS, view

LOOK_SECONDS = 1.0
MEANT = "\n".join(["The columns of the stages:", "", *(f"  {name}: {what}." for name, what in MEANINGS.items())])
EPILOG = f"""{MEANT}

Files of the run are read and never written, so it may be watched by anybody who can read them, as often as one likes.

Exit codes: 0, the run has finished (with --once: or goes on); 1, it has failed, or was stopped or killed; 2, bad input;
130, Ctrl-C, which ends the view and not the run."""


def parser() -> Parser:
    """The flags."""
    made = Parser(
        prog="python -m fdg_jax.watch",
        description="Shows a run as it goes on, in another process or on another machine with the same files: how far "
        "it is, whether it learns, how busy each stage is and how late its gradients are, and what went wrong. It ends "
        "with the run.",
        epilog=EPILOG,
    )
    add = made.add_argument
    add("run", type=Path, metavar="RUN", help="The run directory: what was given as --run-dir.")
    add("--once", action="store_true", help="Show what there is now and end.")
    add("--browser", action="store_true", help="Show it as a page, which this machine alone can open.")
    add("--port", type=int, metavar="N", help="Of that page (one that is free).")
    add("--wait", type=float, default=60.0, metavar="SECONDS", help="Wait so long for a run that has not begun (60).")
    return made


@output.forgiving()
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    try:
        return answer(parser().parse_args(arguments))
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Not watched any more. The run goes on.", file=sys.stderr)
        return 130


def answer(given: argparse.Namespace) -> int:
    """The command. Raises BadInput."""
    if not 0 <= given.wait <= 10**7:
        raise BadInput(f"--wait {given.wait:g}: use a number of seconds, 0 or more.")
    if given.browser and given.once:
        raise BadInput("--browser goes on until the run ends, and --once does not. Leave one of them out.")
    if given.port is not None and not given.browser:
        raise BadInput(f"--port {given.port} is that of a page. Add --browser, or leave it out.")
    watched = Watched(given.run)
    wait_for(watched, 0.0 if given.once else given.wait)
    if given.once:
        seen = watched.look()
        print(terminal.text(view(seen), unicode=terminal.can_draw()))
        return seen.ended.code if seen.ended else 0
    if given.browser:
        return in_browser(watched, given.port or 0)
    screen = terminal.Drawn() if sys.stdout.isatty() else terminal.Plain()
    with screen:
        ended = terminal.follow(watched.look, screen.show, LOOK_SECONDS).ended
    return ended.code if ended else 0


def in_browser(watched: Watched, port: int) -> int:
    """Serves the page until the run ends; returns the exit code. Of a run that has ended, it only says so. Raises
    BadInput."""
    first = watched.look()
    if first.ended:
        print(f"The run has already ended, so there is nothing to follow. {terminal.clean(view(first).state)}")
        return first.ended.code
    with server.serving(first, port) as made:
        print(f"{made.url} shows {watched.run} to browsers of this machine.", flush=True)
        seen = terminal.follow(watched.look, made.page.update, LOOK_SECONDS)
        server.linger(made)
    print(terminal.clean(view(seen).state))
    return seen.ended.code if seen.ended else 0


def wait_for(watched: Watched, seconds: float) -> None:
    """Waits until the run has begun. Raises BadInput if it does not."""
    try:
        wait(watched, seconds)
    except OSError as error:
        fact = f"{watched.run} cannot be looked at: {reason(error)}"
        raise BadInput(f"{fact}. Name the run directory (--run-dir) of a run whose files you can read.") from None


def wait(watched: Watched, seconds: float) -> None:
    """Waits until the run has begun. Raises BadInput if it does not, and OSError."""
    run, until = watched.run, time.monotonic() + seconds
    if run.exists() and not run.is_dir():
        raise BadInput(f"{run} is no directory. Name the run directory: what was given as --run-dir.")
    told = False
    while not watched.begun():
        if runs := below(run):
            fact = f"{run} is no run directory: it holds {len(runs)} runs"
            raise BadInput(f"{fact}. Name one of them, such as {runs[0]}.")
        if time.monotonic() >= until:
            fact = f"{run} holds no run ({CONFIG} is not there)" if run.is_dir() else f"{run} is not there"
            raise BadInput(f"{fact}. Name the run directory (--run-dir), or wait longer for it with --wait SECONDS.")
        if not told:
            print(f"{run} holds no run yet. Waiting {seconds:g} s for it (--wait).", file=sys.stderr, flush=True)
            told = True
        time.sleep(min(0.2, max(0.0, until - time.monotonic())))


def below(folder: Path) -> list[Path]:
    """The run directories in a folder, such as those of a sweep."""
    try:
        return sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))[:1000]
    except OSError:
        return []


if __name__ == "__main__":
    sys.exit(main())

"""The command `python -m fdg_jax.schedule`: draws the schedule of a method."""

import sys
from collections.abc import Sequence

from fdg_jax import methods
from fdg_jax.errors import BadInput, ScheduleError
from fdg_jax.machine import output
from fdg_jax.options.parser import Parser
from fdg_jax.schedule.core import check_K
from fdg_jax.schedule.summary import describe


@output.forgiving()
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code: 0, or 2 for bad input."""
    parser = Parser(
        prog="python -m fdg_jax.schedule",
        description="Draw a method's schedule: which stage runs forward (F) and backward (B) on which batch at tick t.",
    )
    parser.add_argument("--K", type=int, default=3, help="number of stages (default 3)")
    parser.add_argument("--method", default="fdg", help="fdg, bp or any file of fdg_jax/methods (default fdg)")
    parser.add_argument("--ticks", type=int, help="ticks to draw (default: until the pipeline is full)")
    parser.add_argument("--order", help="fdg: backward-first (the paper's, default) or forward-first")
    parser.add_argument("--accumulate", type=int, metavar="M", help="fdg: backward passes an update (ADL; default 1)")
    parser.add_argument("--micro-batches", type=int, metavar="M", help="gpipe: parts of a batch (default 4)")
    try:
        given = parser.parse_args(arguments)
        check_K(given.K)
        if given.ticks is not None and given.ticks < 1:
            raise BadInput(f"--ticks {given.ticks}: there is nothing to draw. Use --ticks 1 or more.")
        method = methods.find(given.method)
        asked = {name: getattr(given, name) for name in ("order", "accumulate", "micro_batches")}
        options = {name: value for name, value in asked.items() if value is not None}
        schedule = method.schedule(given.K, **method.accepted(options)[0])
        print(describe(schedule, given.ticks, method.words))
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ScheduleError as error:  # of a file of one's own
        print(f"error: method {given.method}, schedule {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Checks that a method's schedule does what it says, before it trains anything."""

from fdg_jax.errors import BadInput, ScheduleError, sentence
from fdg_jax.methods.interface import Method
from fdg_jax.schedule import Schedule
from fdg_jax.schedule.running import validate

MOST_STAGES, MOST_OPERATIONS = 8, 600  # more would take time that a user waits for


def check(method: Method, schedule: Schedule) -> None:
    """Runs a schedule on integers until the pipeline is full and empty again: a few milliseconds.

    A wrong `tick` or `delays` would otherwise train, with gradients that are used at another moment than the one that
    is reported. It is done for the methods of the package as well, since a file of one's own lies beside theirs. With
    more than 8 stages it is left out; `python -m fdg_jax.schedule --method NAME --K K` does it for any number.

    Raises: BadInput, which names the method, the stage, and the numbers that disagree.
    """
    fullest = max((*schedule.delays, 0))
    batches = min(2 * fullest + 3, MOST_OPERATIONS // (2 * schedule.K * schedule.micro_batches))
    if schedule.K > MOST_STAGES or batches < 1:
        return
    try:
        validate(schedule, batches)
    except ScheduleError as error:
        fact = sentence(error).removeprefix(f"{schedule.name}: ")
        way_out = f"Correct the schedule in fdg_jax/methods/{method.name}.py."
        raise BadInput(f"method {method.name}: {fact} {way_out}") from None

"""What cannot work, or works otherwise than its name promises, is said before training begins."""

from collections.abc import Iterator, Sequence

import numpy as np

from fdg_jax import recipe
from fdg_jax.checks import schedules
from fdg_jax.checks.cancelled import CANCELS, divides_by_1
from fdg_jax.corrections.interface import Kind
from fdg_jax.machine.stderr import say
from fdg_jax.methods.interface import Method
from fdg_jax.runs.options import Options, spelled
from fdg_jax.runs.progress import count


def warn(options: Options, method: Method, corrected: Sequence[Kind], rates: np.ndarray) -> None:
    """Prints a warning for each option that does nothing here, or little. rates: [batches of the run], the learning
    rate of each."""
    found = warnings(options, method, {kind.name for kind in corrected})
    for line in [*found, *about_rates(options, rates)]:
        say(f"warning: {line}")


def warnings(options: Options, method: Method, corrected: set[str]) -> Iterator[str]:
    """The warnings, one sentence or two each."""
    o = options
    staleness = max(schedules.asked(method, o).mean_staleness)
    if o.K == 1 and not staleness:
        for name, value, nothing in (("correct", o.correct, "none"), ("beta", f"{o.beta:g}", "1")):
            if value != nothing:
                yield f"{spelled(name)} {value}: with --K 1 no gradient is late, so it does nothing. Use --K 2 or more."
        return
    if "rate" in corrected and staleness <= 1:
        yield f"--correct {o.correct}: {divides_by_1(staleness)}. Leave it out, or use a larger --K."
    has = {"beta": "beta" in method.answers_to or "shrink" in corrected, "scale": "scale" in method.answers_to}
    gate = "cosine" in corrected and o.gate_decay != 0
    factors = {name: f"{getattr(o, name):g}" for name, there in has.items() if there and getattr(o, name) != 1}
    factors |= {"gate_decay": f"{o.gate_decay:g}"} if gate else {}
    if o.optimizer in recipe.SCALE_FREE:
        gap_aware = {"correct": "gap_aware"} if "gap_aware" in corrected else {}
        for name, value in (factors | gap_aware).items():
            behind = ", or --correct rate, which stands behind the optimizer" if name != "scale" else ""
            way_out = f"Use --optimizer sgd where it is to matter{behind}."
            yield f"{spelled(name)} {value}: {o.optimizer} {CANCELS}. {way_out}"
    if "anticipate" in corrected:
        yield from about_prediction(o)
    if o.clip_norm and (factors or corrected - {"none", "shrink"}):
        fact = "each stage clips its own gradient, and K decides what a stage is"
        yield f"--clip-norm {o.clip_norm:g}: {fact}. Compare with --method bp at the same K and split."


def about_rates(o: Options, rates: np.ndarray) -> Iterator[str]:
    """A warning if the run ends within its warm-up. Runs that are only tried out do so, hence it is no error."""
    if (highest := float(rates.max())) < 0.999999 * o.learning_rate:  # the rates are float32
        flag = f"--warmup-steps {o.warmup_steps}" if o.warmup_steps else f"--warmup {o.warmup}"
        fact = f"the warm-up does not end within the run of {count(len(rates), 'batch', 'es')}, so the learning rate"
        way_out = "Use a shorter warm-up, or a longer run"
        yield f"{flag}: {fact} only reaches {highest:.3g} of {o.learning_rate:g}. {way_out}."


def about_prediction(o: Options) -> Iterator[str]:
    """Warnings about --correct anticipate."""
    if o.momentum == 0:
        smaller = "without momentum it makes the largest stable learning rate smaller"
        nothing = "without momentum it looks no update ahead"
        facts = {"last": f"{smaller} where the staleness is small", "spike": nothing, "nesterov": nothing}
        fact = facts.get(o.prediction, smaller)
        yield f"--prediction {o.prediction}: {fact}. Use --momentum 0.9, or --correct rate."
    if o.lr_schedule == "paper":
        fact = "for one update after each drop of the learning rate by 10 it looks 10 times too far ahead"
        yield f"--correct anticipate: {fact}. --lr-schedule cosine has no drops."

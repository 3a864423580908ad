"""The lines that open a run: what is trained on what, how it is cut, and when the learning rate changes."""

from typing import Any

from fdg_jax import models
from fdg_jax.config import Config
from fdg_jax.recipe import DROPS, learning_rate_changes, warmup_updates
from fdg_jax.runs.progress import count
from fdg_jax.training import stages
from fdg_jax.training.setup import Job


def tell(job: Job, known: list[dict[str, Any]]) -> list[str]:
    """The first lines that a person sees: method, data, model, stages with devices and staleness, schedule.

    Arguments:
        job: what is trained.
        known: the facts about the stages (fdg_jax.training.stages).
    """
    o, data, pipeline = job.options, job.dataset, job.pipeline
    asked = [f", {name}={getattr(o, name)}" for name in job.asked_for]
    own = "".join(f", {name}={getattr(o, name)}" for name in models.declared(o.model))
    blocks, auxiliary = len(job.partition.blocks), pipeline.auxiliary_parameter_count
    lines = [
        f"method     {o.method} with K={o.K}{''.join(asked)}, engine {o.engine}, seed {o.seed}",
        f"data       {data.name}: {data.described()}",
        f"model      {o.model}: {pipeline.parameter_count:,} parameters in {blocks} blocks, {o.dtype}{own}",
    ]
    if auxiliary:
        lines.append(f"auxiliary  {auxiliary:,} trained parameters that are not part of the network")
    lines += stages.lines(job, known)
    if o.remat != "none":
        lines.append(f"remat      {o.remat}: the backward pass computes the activations again")
    if o.K > 1:
        begin = "stage 2 begins" if o.K == 2 else f"stages 2 to {o.K} begin"
        cuts = ", ".join(map(str, job.partition.cuts))
        lines.append(f"split      {job.partition.name}: {begin} at block {cuts}{whose_split(job)}")
    if o.optimizer != "sgd" or o.clip_norm:
        lines.append(f"optimizer  {optimizer_sentence(o)}")
    lines.append(f"schedule   {schedule_sentence(o, job.steps_per_epoch)}{stop_clause(job)}")
    about = "engine" if o.engine == "delay-line" else "devices"
    return [*lines, f"{about:<10} {job.remark}"] if job.remark else lines


SHAPES = {
    "constant": "{}",
    "cosine": "{}, falling to 0 as a cosine",
    "wsd": "{}, falling linearly to 0 in the last fifth",
}


def optimizer_sentence(options: Config) -> str:
    """The optimizer, with what it was given. That of every stage sees the gradients of its stage only."""
    o = options
    text = f"{o.optimizer} with momentum {o.momentum:g}"
    text += "" if o.optimizer == "sgd" else f", b2 {o.b2:g}"
    text += f", weight decay {o.weight_decay:g}{' of matrices' if o.decay == 'matrices' else ''}"
    return f"{text}, gradients of a stage clipped to norm {o.clip_norm:g}" if o.clip_norm else text


def whose_split(job: Job) -> str:
    """Says that the split is the authors', or that they have none for this K."""
    o, parts = job.options, job.partition
    if parts.name == "paper":
        return " (as in the authors' code)"
    if parts.name == "balanced" and not parts.has_paper_split:
        return f" (the authors' code has no split of {o.model} for K={o.K}, so stages are of about equal {parts.unit})"
    return ""


def schedule_sentence(options: Config, per_epoch: int) -> str:
    """When the learning rate changes, and that this is the paper's schedule scaled, where it is."""
    text = f"{count(options.epochs, 'epoch')} of {count(per_epoch, 'batch', 'es')}; learning rate "
    if options.lr_schedule == "paper":
        *early, last = [f"{fraction * options.epochs:.4g}" for fraction in DROPS]
        text += f"{options.learning_rate:g}, divided by 10 after epochs {', '.join(early)} and {last}"
        text += "" if options.epochs == 300 else " (the paper's 150, 225 and 275 of 300, scaled)"
    else:
        text += SHAPES[options.lr_schedule].format(f"{options.learning_rate:g}")
    if options.warmup_steps:
        text += f"; before that it rises for {count(options.warmup_steps, 'batch', 'es')}"
    if options.warmup == "on":
        batches = warmup_updates(options.epochs * per_epoch)
        rate = learning_rate_changes(options.learning_rate, options.epochs * per_epoch, warmup=True)[0][1]
        text += f"; warm-up with {rate:g} for the first {count(batches, 'batch', 'es')} (3 of 300 epochs)"
    return text


def stop_clause(job: Job) -> str:
    """Where --steps ends the run before its schedule, and at what learning rate; else ""."""
    end, rates = job.steps, job.learning_rates
    if end == len(rates):
        return ""
    return f"; stops after {count(end, 'batch', 'es')} (--steps), at a learning rate of {rates[end - 1]:.3g}"

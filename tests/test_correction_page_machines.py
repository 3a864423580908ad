"""What both pages of corrections say of runs that were made on another kind of machine."""

import pytest
from correction_lines import line, tuned

from experiments import corrections_images, corrections_text
from experiments.tuning import arms, images, machines, texts

CPU, CARD = {"devices": ["cpu:0"], "backend": "cpu", "processor": "Z80"}, "gpu:0 (a card)"
GPU = {"devices": [CARD, CARD], "backend": "gpu", "processor": "6502", "xla_flags": "--deft"}
PAGES = (
    (corrections_images, images.FOUR, "K = 4"),
    (corrections_text, texts.GROWTH[1], "16 layers, BP, FDG and T1, K = 2"),
)


def made(run, hardware):
    return {**line(run, 22.0, loss=3.0), "versions": {"jax": "2"}, "hardware": hardware, "seconds": 1800.0}


@pytest.mark.parametrize(("page", "part", "title"), PAGES)
def test_a_page_says_which_runs_were_made_on_another_kind_of_machine(page, part, title):
    tuning, arm = part.chosen_by or part, part.arms[1]
    lines = {name: {**each, "hardware": CPU} for name, each in tuned(tuning, 1, 3.0).items()}
    assert page.of_machines(lines) == ""
    for seed in (0, 2):
        run = part.final_run(arm, tuning.choice(lines, arm), seed)
        lines[run.name] = made(run, GPU)
    said = page.of_machines(lines)
    counted = f"Of {len(lines)} runs 2 on {CARD} with JAX 2, the others on Z80 with JAX 1."
    where = f"Made elsewhere: {title}, final runs, seeds 0, 2: {arm.label}."
    assert said.startswith(f"**Several kinds of machine.** {counted} {where} ")
    assert said.endswith(" Before a command on a GPU: `XLA_FLAGS=--deft`.")


def test_tuning_made_elsewhere_is_named_and_a_second_processor_is_another_kind():
    part, arm = images.FOUR, images.FOUR.arms[1]
    lines = {name: {**each, "hardware": CPU} for name, each in tuned(part, 1).items()}
    for run, processor in zip(part.grid(arm), ("6502", "6809"), strict=False):
        lines[run.name] = made(run, {**CPU, "processor": processor})
    said = machines.several(images.PARTS, lines)
    assert f"Of {len(lines)} runs 1 on 6502 with JAX 2, 1 on 6809 with JAX 2, the others on Z80" in said
    assert said.endswith(f"Made elsewhere: K = 4, tuning: {arm.label}.")
    assert machines.before_a_command(lines) == ""


def test_hours_on_a_gpu_are_counted_apart():
    part, arm = images.FOUR, images.FOUR.arms[1]
    lines = {run.name: made(run, CPU) for run in part.grid(arm)}
    lines[part.grid(arm)[2].name]["hardware"] = GPU
    assert arms.tuning_cost(part, lines, arm) == "6 of 6 runs, 2.5 h, 0.5 h on a shared GPU"
    assert arms.hours([made(part.grid(arm)[0], GPU)]) == "0.5 h on a shared GPU"
    assert arms.hours([]) == "0.0 core-hours"

"""What both pages of corrections say of runs that were made on another kind of machine."""

import pytest
from correction_lines import line, tuned

from experiments import corrections_images, corrections_text
from experiments.tuning import arms, images, machines, texts

CPU, CARD = {"devices": ["cpu:0"], "backend": "cpu", "processor": "Z80"}, "gpu:0 (a card)"
GPU = {"devices": [CARD, CARD], "backend": "gpu", "processor": "6502", "xla_flags": "--deft"}
PAGES = (
    (corrections_images, images.FOUR, "K = 4", "seed by seed, whatever machine made a run. [BP and FDG on both]"),
    (corrections_text, texts.GROWTH[1], "16 layers, BP, FDG and T1, K = 2", "their difference contains what another"),
)


def made(run, hardware):
    return {**line(run, 22.0, loss=3.0), "versions": {"jax": "2"}, "hardware": hardware, "seconds": 1800.0}


@pytest.mark.parametrize(("seeds", "named"), [((1,), "seed 1"), ((0, 2), "seeds 0, 2")])
@pytest.mark.parametrize(("page", "part", "title", "changes"), PAGES)
def test_a_page_says_which_runs_were_made_on_another_kind_of_machine(page, part, title, changes, seeds, named):
    tuning, arm = part.chosen_by or part, part.arms[1]
    lines = {name: {**each, "hardware": CPU} for name, each in tuned(tuning, 1, 3.0).items()}
    assert page.of_machines(lines) == "" == page.of_machines({})
    for seed in seeds:
        run = part.final_run(arm, tuning.choice(lines, arm), seed)
        lines[run.name] = made(run, GPU)
    said = page.of_machines(lines)
    usual = f"Of {len(lines)} runs {len(lines) - len(seeds)} were made on Z80 with JAX 1."
    other = f"{len(seeds)} on {CARD} with JAX 2: {title}, final runs, {named}: {arm.label}. "
    assert said.startswith(f"**Several kinds of machine.** {usual} {other}") and changes in said
    assert said.endswith(" Before a command on a GPU: `XLA_FLAGS=--deft`.")


def test_each_kind_of_machine_has_its_runs_and_how_many_of_tuning():
    part, (first, second, *_) = images.FOUR, images.FOUR.arms
    lines = {name: {**each, "hardware": CPU} for name, each in tuned(part, 1).items()}
    for run in part.grid(first)[:2]:
        lines[run.name] = made(run, {**CPU, "processor": "6502"})
    bare = {name: value for name, value in GPU.items() if name != "xla_flags"}
    lines[part.grid(second)[0].name] = made(part.grid(second)[0], bare)
    usual, *others = machines.several(images.PARTS, lines).split(". ")
    assert usual.endswith("Z80 with JAX 1") and others == [
        f"2 on 6502 with JAX 2: K = 4, 2 of 6 tuning runs: {first.label}",
        f"1 on {CARD} with JAX 2: K = 4, 1 of 6 tuning runs: {second.label}.",
    ]
    assert machines.before_a_command(lines) == ""


def test_the_commit_that_git_did_not_know_on_the_first_gpu_is_told():
    run = images.FOUR.grid(images.FOUR.arms[1])[0]
    lines = {run.name: {**made(run, GPU), "git_commits": [corrections_images.UNSAVED]}}
    assert corrections_images.repeat_on_gpu(lines).endswith("`5d8f995da7-dirty` had the code of `d416e74349`.")
    lines[run.name]["git_commits"] = ["a" * 40]
    assert corrections_images.repeat_on_gpu(lines) == "Before a command on a GPU: `XLA_FLAGS=--deft`."


def test_hours_on_a_gpu_are_counted_apart():
    part, arm = images.FOUR, images.FOUR.arms[1]
    lines = {run.name: made(run, CPU) for run in part.grid(arm)}
    lines[part.grid(arm)[2].name]["hardware"] = GPU
    assert arms.tuning_cost(part, lines, arm) == "6 of 6 runs, 2.5 h, 0.5 h on a shared GPU"
    assert arms.hours([made(part.grid(arm)[0], GPU)]) == "0.5 h on a shared GPU"
    assert arms.hours([]) == "0.0 core-hours"

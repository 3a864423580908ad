"""What a newcomer sees first: the list of commands, --help, and the opening lines of a run in a terminal."""

import io
import re
import sys
from itertools import product
from pathlib import Path

import pytest
from cifar_processes import ROOT, printed

import fdg_jax.__main__ as overview
from fdg_jax import cli, data, methods, models
from fdg_jax.checks import options as checks
from fdg_jax.config import FIELDS
from fdg_jax.errors import did_you_mean
from fdg_jax.experiments import imagenet, tiny_imagenet
from fdg_jax.machine import output
from fdg_jax.options.fields import spelled
from fdg_jax.training import command, opening
from fdg_jax.training.record import Run

LINES = [
    "method     fdg with K=2, order=backward-first, accumulate=1, accumulation=sum, beta=1.0, weights=stashed, seed 0",
    "stage k=1  blocks 0 to 1, 52% of the FLOPs, 5,136 parameters, staleness 1 update, on cpu:0",
    "stage k=10  blocks 20 to 21, 52% of the FLOPs, 5,136 parameters, staleness 1 update, on cpu:0 of this machine",
    "  memory   28.5 MB + XLA's buffers: weights 0.02, optimizer 0.02, 2 stashes of 13.0; sends float32[32, 32, 16]",
]


# The list of commands


@pytest.mark.slow
def test_a_package_run_as_a_command_lists_the_commands():
    out = printed("-m", "fdg_jax.experiments")
    assert "fdg_jax.experiments.cifar " in out and "\n  benchmarks " in out


def test_every_module_that_can_be_run_is_in_the_list_and_no_other():
    found = set()
    for file in (ROOT / "fdg_jax").rglob("*.py"):
        if 'if __name__ == "__main__":' in file.read_text():
            found.add(".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__"))
    # The lists themselves, what is gone, and what the library starts for itself.
    found -= {"fdg_jax", "fdg_jax.experiments", "fdg_jax.watch", "fdg_jax.machine.leash"}
    listed = {name for group in overview.COMMANDS.values() for name in group}
    assert {name for name in listed if name.startswith("fdg_jax")} == found
    assert all(overview.can_run_here(name) for name in listed)


def test_the_examples_of_the_list_are_accepted(capsys):
    for example in overview.EXAMPLES:
        _, module, *words = example.split()
        if module == "fdg_jax.schedule":
            from fdg_jax.schedule import __main__

            assert __main__.main(words) == 0
        elif words != ["--help"]:
            options, given = cli.parse(words, module)
            checks.check(options, given)


@pytest.mark.parametrize(
    ("words", "said"),
    [(["cifar", "--K", "2"], "Write python -m fdg_jax.experiments.cifar."), (["shedule"], "Did you mean schedule")],
)
def test_a_command_named_as_an_argument_is_answered_with_the_module_to_run(words, said, capsys):
    assert overview.main(words) == 2
    assert said in capsys.readouterr().err


# --help


@pytest.mark.parametrize("program", [command.Program("x"), imagenet.PROGRAM, tiny_imagenet.PROGRAM])
def test_help_lists_every_method_model_and_data_set_that_can_be_asked_for(program):
    shown = {name: cli.listed(program.help.get(name, FIELDS[name].help), program)
             for name in ("method", "model", "dataset")}  # fmt: skip
    for name, known in (("method", methods.names()), ("model", models.names_and_patterns())):
        assert ", ".join(known) in shown[name]
    assert all(each in shown["dataset"] for each in program.datasets or data.names())
    assert "{" not in "".join(shown.values())


def test_an_unknown_model_is_answered_with_the_patterns_too():
    with pytest.raises(command.BadInput, match="wrn<d>_<k>"):
        models.blocks("wrn29_4", 10)


# The opening lines


def test_a_line_is_broken_between_words_and_goes_on_under_its_text():
    for line, width in product(LINES, (40, 80)):
        first, *others = output.wrapped(line, width).splitlines()
        indent = " " * (12 if "k=10" in line else 11)
        assert others and all(len(each) <= width for each in [first, *others])
        assert all(each.startswith(indent) and each[len(indent)] != " " for each in others)
        assert [*first.split(), *" ".join(others).split()] == line.split()
    assert output.wrapped(LINES[0], None) == LINES[0] == output.wrapped(LINES[0], len(LINES[0]))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stdout", "longest"), [(Terminal, 80), (io.StringIO, max(map(len, LINES)))])
def test_a_run_opens_with_lines_as_wide_as_the_terminal_and_with_whole_ones_in_a_file(monkeypatch, stdout, longest):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", stdout())
    monkeypatch.setattr(opening, "lines", lambda *_: LINES)
    opening.tell(Run(None, Path("/somewhere"), None, resumed=False, fresh=True), [])  # type: ignore[arg-type]
    lines = sys.stdout.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= longest and lines[-2:] == ["run        /somewhere", "compiling..."]
    assert (len(lines) == len(LINES) + 2) == (stdout is io.StringIO)


# What a message proposes for a name that is not known


FLAGS = [spelled(name) for name in FIELDS]


def proposed(name: str, known: list[str]) -> list[str]:
    found = re.fullmatch(r" Did you mean (.*)\?", did_you_mean(name, known))
    return found[1].split(" or ") if found else []


METHODS = [
    ("bpp", ["bp"]), ("bp1", ["bp"]), ("fgd", ["fdg"]), ("fdgg", ["fdg"]), ("FDGG", ["fdg"]), ("gpip", ["gpipe"]),
    ("scaled", ["scaled_bp"]), ("scaledbp", ["scaled_bp"]), ("parallel", ["data_parallel"]), ("fdg-K2", ["fdg"]),
    ("xy", []), ("af", []), ("b", []), ("", []), ("adl", ["dgl"]), ("nonsense", []), ("dp", []),
]  # fmt: skip


def test_a_method_is_proposed_where_it_was_meant():
    for written, names in METHODS:
        assert proposed(written, methods.names()) == names, written


def test_another_size_of_a_model_is_near():
    assert "wrn16_4" in proposed("wrn4_1", models.names()) and "resnet20" in proposed("resnet21", models.names())


NEAR = [
    ("--bta", "--beta"), ("--k", "--K"), ("--rate", "--learning-rate"), ("--no-dra", "--no-drain"), ("--x", None),
    ("--lr", None), ("--b", None),
]  # fmt: skip


def test_the_hyphens_of_a_flag_make_it_no_longer_than_it_is():
    for written, flag in NEAR:
        assert proposed(written, [*FLAGS, "--no-drain"]) == ([flag] if flag else []), written

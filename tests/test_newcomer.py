"""What a newcomer sees first: the list of commands, --help, and the opening lines of a run in a terminal."""

import re

import pytest
from cifar_processes import ROOT

import fdg_jax.__main__ as overview
from fdg_jax import cli, methods, models
from fdg_jax.checks import options as checks
from fdg_jax.errors import did_you_mean

# The list of commands


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


# What a message proposes for a name that is not known


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

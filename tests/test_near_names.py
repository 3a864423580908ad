"""What a message proposes for a name that is not known: the name that was meant, and nothing far-fetched."""

import re

from fdg_jax import methods, models
from fdg_jax.config import FIELDS
from fdg_jax.errors import did_you_mean
from fdg_jax.options.fields import spelled

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

"""What a message proposes for a name that is not known: the name that was meant, and nothing far-fetched."""

import itertools
import re
import string

import pytest

from fdg_jax import data, methods, models
from fdg_jax.errors import did_you_mean, edits
from fdg_jax.runs.options import FIELDS, spelled

KNOWN = {
    "method": methods.names(),
    "model": models.names(),
    "data set": data.names(),
    "flag": [spelled(name) for name in FIELDS],
}


def proposed(name: str, known: list[str]) -> list[str]:
    found = re.fullmatch(r" Did you mean (.*)\?", did_you_mean(name, known))
    return found[1].split(" or ") if found else []


@pytest.mark.parametrize(("written", "names"), [
    ("bpp", ["bp"]), ("bp1", ["bp"]), ("fgd", ["fdg"]), ("fdgg", ["fdg"]), ("FDGG", ["fdg"]), ("gpip", ["gpipe"]),
    ("scaled", ["scaled_bp"]), ("scaledbp", ["scaled_bp"]), ("parallel", ["data_parallel"]), ("fdg-K2", ["fdg"]),
    ("xy", []), ("af", []), ("b", []), ("", []), ("adl", []), ("nonsense", []), ("dp", []),
])  # fmt: skip
def test_a_method_is_proposed_where_it_was_meant(written, names):
    assert proposed(written, methods.names()) == names


def test_another_size_of_a_model_is_near():
    assert "wrn16_4" in proposed("wrn4_1", models.names()) and "resnet20" in proposed("resnet21", models.names())


@pytest.mark.parametrize(("written", "flag"), [
    ("--bta", "--beta"), ("--k", "--K"), ("--rate", "--learning-rate"), ("--no-dra", "--no-drain"), ("--x", None),
    ("--lr", None), ("--b", None),
])  # fmt: skip
def test_the_hyphens_of_a_flag_make_it_no_longer_than_it_is(written, flag):
    assert proposed(written, [*KNOWN["flag"], "--no-drain"]) == ([flag] if flag else [])


def test_words_of_one_or_two_letters_are_near_to_no_name_that_lacks_one_of_them():
    letters = string.ascii_lowercase + string.digits
    for word in map("".join, itertools.chain(letters, itertools.product(letters, repeat=2))):
        for name in proposed(word, [name for name in methods.names() if name != word]):
            assert len(name) == 3 and set(word) <= set(name), (word, name)


@pytest.mark.parametrize("kind", KNOWN)
def test_one_slip_of_the_hand_is_always_understood(kind):
    for name in KNOWN[kind]:
        start = 2 if kind == "flag" else 0
        for at in {start, (start + len(name)) // 2, len(name) - 1}:
            slips = {name[: at + 1] + name[at:]} if len(name) - start >= 2 else set()  # a letter twice
            if len(name) - start >= 3:
                slips |= {name[:at] + name[at + 1 :], name[:at] + "~" + name[at + 1 :]}  # left out, another one
                slips.add(name[:at] + name[at : at + 2][::-1] + name[at + 2 :])  # exchanged with the next
            for slip in slips - set(KNOWN[kind]):
                found, near = proposed(slip, KNOWN[kind]), did_you_mean(slip, [name])
                assert near and len(found) <= 3, (slip, found)
                closer = [other for other in found if other != name]
                assert name in found or len(closer) == 3, (slip, found)  # many models differ in one digit


def plainly(a: str, b: str) -> int:
    """The number of edits, by trying all of them."""
    if not a or not b:
        return len(a) + len(b)
    ways = [plainly(a[1:], b) + 1, plainly(a, b[1:]) + 1, plainly(a[1:], b[1:]) + (a[0] != b[0])]
    if len(a) > 1 and len(b) > 1 and a[:2] == b[1::-1]:
        ways.append(plainly(a[2:], b[2:]) + 1)
    return min(ways)


def test_edits_are_as_few_as_there_can_be():
    words = ["".join(each) for n in range(4) for each in itertools.product("abc", repeat=n)]
    words += ["abcab", "bacba", "ccabb"]
    for a, b in itertools.product(words, words):
        assert edits(a, b) == edits(b, a) == plainly(a, b)

"""Reads what the explorer's page holds, by its own words: the test's reading of fdg_jax/explorer/tables.py."""

import re
from fractions import Fraction
from typing import Any

from fdg_jax.explorer import choices


def numbers(text: str) -> list[int]:
    """0*3,4 -> [0, 0, 0, 4]"""
    found: list[int] = []
    for part in text.split(",") if text else ():
        number, _, times = part.partition("*")
        found += [int(number)] * int(times or 1)
    return found


def unfolded(text: str, n: int) -> list[int]:
    """4|0,1 -> the first n of 4, 0, 1, 0, 1, ..."""
    first, bar, again = text.partition("|")
    found = numbers(first)
    while bar and len(found) < n:
        found += numbers(again)
    assert len(found) >= n
    return found[:n]


def operations(data: dict[str, Any], key: str) -> list[list[tuple[str, int, int, bool]]]:
    """Of each stage of a schedule of the page: (kind, batch, version before it, whether it updates)."""
    made = []
    for row in data["schedules"][key]["rows"]:
        found = [re.fullmatch(r"([A-Z])(\d+):(\d+)(!?)", word) for word in data["rows"][row].split(" ")]
        made.append([(m[1], int(m[2]), int(m[3]), m[4] == "!") for m in found if m])
        assert len(made[-1]) == len(found)
    return made


Ran = tuple[str, int, Fraction, Fraction]


def begins(data: dict[str, Any], key: str, K: int, at: choices.Times) -> list[list[Ran]]:
    """Of each stage: (kind, batch, begin, end), in forward passes."""
    timing = data["timings"][data["schedules"][key]["timing"]]
    i, made = list(choices.times(K)).index(at), []
    for k, ops in enumerate(operations(data, key), 1):
        where = 3 * (i * K + k - 1)
        gaps = unfolded(data["gaps"][int(timing["gaps"][where : where + 3], 36)], len(ops))
        end, row = Fraction(0), []
        for (kind, batch, _, _), gap in zip(ops, gaps, strict=True):
            took = timing["lengths"][data["backward"].index(at.backward)][kind][k == K]
            begin = end + gap
            end = begin + took * (at.factor if at.slow == k else 1)
            row.append((kind, batch, begin / timing["unit"], end / timing["unit"]))
        made.append(row)
    return made


def seconds(data: dict[str, Any], key: str, K: int, at: choices.Times) -> Fraction:
    """Forward passes per batch in the steady state."""
    timing = data["timings"][data["schedules"][key]["timing"]]
    return Fraction(timing["seconds"].split(" ")[list(choices.times(K)).index(at)]) / timing["unit"]

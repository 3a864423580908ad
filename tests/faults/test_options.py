"""Whatever is given, flags and files: it is taken and can train a step, or it is refused in one sentence."""

import json
import shutil
from pathlib import Path

import pytest
from fuzzing import PLAIN, configure, fuzz, values, written
from hypothesis import strategies as st
from start_words import JSON, starts

from fdg_jax import cli, sweep
from fdg_jax.checks import options as checks
from fdg_jax.config import FIELDS, SWITCHES
from fdg_jax.experiments import cifar
from fdg_jax.options.fields import spelled
from fdg_jax.training import lifecycle, opening


@st.composite
def command_lines(draw):
    """A plain small run with up to four flags changed: valid, borderline and nonsense."""
    words = dict(PLAIN, run_dir="fresh", K=draw(st.sampled_from("1223")))
    bare = []
    for name in draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=4)):
        if name in SWITCHES:
            bare.append(draw(st.sampled_from(["--", "--no-", "--no_", "-"])) + name.replace("_", "-"))
        else:
            words[name] = draw(values(name))
    said = []
    for name, value in words.items():
        said += draw(st.sampled_from([[spelled(name), value], [spelled(name), value], [f"{spelled(name)}={value}"]]))
    stray = draw(st.sampled_from([[]] * 12 + [["x"], ["--bogus"], ["--K"], ["-K", "3"], ["--help"], ["--"], ["--=1"]]))
    return [*said, *bare, *stray]


@pytest.mark.slow
@pytest.mark.cases(sample=1, hundred=10)
def test_a_command_line_trains_or_is_refused_in_a_sentence(seed, all_of_them, place, capsys, tell):
    tell(fuzz(seed, 80 if all_of_them else 20, command_lines(), lambda words: words, place, capsys))


def test_flags_of_a_start_and_files_of_options_are_taken_or_refused_in_a_sentence(
    all_of_them, place, monkeypatch, capsys, tell
):
    """Up to where the work would begin; 500 with --hundred."""

    def children_understand(planned, *_):
        for one in planned:
            words, _ = one.command()
            checks.check(*cli.parse(words[2:], words[1]))
        return 0

    monkeypatch.setattr(lifecycle, "prepare_and_run", lambda *_: 0)
    monkeypatch.setattr(lifecycle, "dry_run", lambda *_: 0)
    monkeypatch.setattr(sweep, "make_all", children_understand)
    tell(fuzz(3, 500 if all_of_them else 25, starts(PLAIN, values), written(place), place, capsys))


@pytest.mark.slow
@pytest.mark.cases(sample=1, hundred=10)
def test_a_command_line_with_flags_of_a_start_trains_or_is_refused(
    seed, all_of_them, place, monkeypatch, capsys, tell
):
    """The work is done: a step trained, a dry run of a few batches, the first run of several."""

    def first(planned, *_):
        words, _ = planned[0].command()
        return cifar.main(words[2:])

    monkeypatch.setattr(sweep, "make_all", first)
    monkeypatch.setattr(opening, "FEW_SECONDS", 0.05)
    monkeypatch.setattr(opening, "MOST_BATCHES", 2)
    tell(fuzz(seed, 50 if all_of_them else 15, starts(PLAIN, values), written(place), place, capsys))


@pytest.mark.slow
@pytest.mark.cases(sample=1, hundred=10)
def test_a_config_with_other_values_goes_on_or_is_refused_in_a_sentence(seed, all_of_them, place, capsys, tell):
    known = sorted({*FIELDS, "asked", "note", "devices", "versions", "resumed", "cpu_devices", "xla_flags"})
    damages = st.dictionaries(st.sampled_from(known), JSON, max_size=2)  # none: it must go on

    def arranged(damage):
        configure(place, damage)
        return ["--run-dir", "run", "--resume"]

    tell(fuzz(seed, 20 if all_of_them else 10, damages, arranged, place, capsys))


@st.composite
def damages(draw):
    """What happens to one or two files of a run: which (by a number), how, and where in it."""
    how = st.sampled_from(["cut", "zeros", "gone", "flipped", "text", "json", "folder", "doubled"])
    one = st.tuples(st.integers(0, 999), how, st.integers(0, 10**6), JSON)
    return draw(st.lists(one, min_size=1, max_size=2))


def damage_file(file: Path, how: str, at: int, value) -> None:
    content = file.read_bytes()
    at %= len(content) + 1
    file.unlink()
    if how == "folder":
        file.mkdir()
    elif how != "gone":
        flipped = content[:at] + bytes(byte ^ 1 << at % 8 for byte in content[at : at + 1]) + content[at + 1 :]
        made = {"cut": content[:at], "zeros": bytes(len(content)), "flipped": flipped, "text": b"\xff not json {"}
        made |= {"json": json.dumps(value).encode(), "doubled": content + content[at:]}
        file.write_bytes(made[how])


@pytest.mark.slow
@pytest.mark.cases(sample=1, hundred=10)
def test_a_run_with_damaged_files_goes_on_or_is_refused_in_a_sentence(seed, all_of_them, place, begun, capsys, tell):
    def arranged(drawn):
        shutil.copytree(begun, place / "mine")
        # Those of its own level, which nothing protects, as often as the many of its checkpoints.
        files = sorted(file for file in (place / "mine").rglob("*") if file.is_file())
        own = [file for file in files if file.parent == place / "mine"]
        for number, *how in drawn:
            among = own if number % 2 else files
            file = among[number // 2 % len(among)]
            if file.is_file():
                damage_file(file, *how)
        return ["--run-dir", "mine", "--resume", "--steps", "4"]

    tell(fuzz(seed, 20 if all_of_them else 10, damages(), arranged, place, capsys))

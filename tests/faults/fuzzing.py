"""What the fuzzed command lines share: the words to draw from, a place with files, and what may come of an example."""

import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fdg_jax.config import FIELDS
from fdg_jax.experiments import cifar
from fdg_jax.training import loop

POOLS = {
    "whole number": "0 -1 1 2 3 4 5 8 1.5 two nan 1e3 0x10 1_0 +2 -0 999999999999 １ ½",
    "number": "0 -0.0 1 0.5 0.2 1e-320 1e-3 1e308 inf -inf nan 1e400 abc 0,5 1.0000001 -1 0.5 0.1 0.9",
    "word": "- -- None null ünïcode 🦆 ../x __init__ _x fdg FDG %s {}",
    "file": "fresh there nowhere/below file run empty damaged /proc/x /dev/null",
    "method": "fdg bp ddg fr dgl dni gpipe data_parallel fa dfa scaled_bp fgd _auxiliary __main__",
    "K": "1 2 3 4 5 6 0 -1 1000000000 two",
    "split": "paper even balanced 1 2 3 2,3 3,2 0 1,1 x 1, -1 99 1.5 ,",
    "remat": "none all 1 2 1,2 2,1 0 9 x 1,1 None",
    "model": "resnet8 wrn10_1 resnet9 resnet-8 resnet8 wrn10_0 wrn10_-1 wrn11_1 resnet2 resnet0 wrn _blocks",
    "dataset": "digits digits synthetic cifar11 CIFAR10 imagenet digits/ _x",
    "batch_size": "1 2 4 8 9 0",
    "train_size": "2 4 5 8 0 100000",
    "epochs": "1 2 0 300 1000000000000",
}
OWN = {name: words.split() for name, words in POOLS.items()}
WHOLE, REAL = [*OWN["whole number"], "", " 2", "2\n"], [*OWN["number"], ""]
WORDS = [*OWN["word"], "", " ", "a" * 5000, "a\n"]
FILES = [*OWN["file"], "", "x" * 300, "two\nlines"]
PLAIN = {"model": "resnet8", "dataset": "digits", "batch_size": "2", "train_size": "4", "epochs": "1"}


def values(name, pools=OWN):
    """A strategy for the words that an option may be given. pools: what it is given more often than others."""
    kind = FIELDS[name].kind
    if name in ("run_dir", "data_dir"):
        return st.sampled_from(FILES)
    own = pools.get(name, [])
    literal = [str(value) for value in getattr(kind, "__args__", ()) if isinstance(value, str)]
    if not literal and "int" in str(kind):
        return st.sampled_from([*own, *own, *own, *WHOLE])
    if "float" in str(kind):
        return st.sampled_from(REAL)
    return st.sampled_from([*4 * own, *4 * literal, *WORDS])


def one_step(run, signals):
    """In place of the training: what an accepted configuration must be able to do."""
    job, step = run.job, run.record.step
    loop.feed(job.dataset, job.options, job.steps).next(step).enter(job.pipeline)
    job.pipeline.drain()
    assert step + 1 in [each.step for each in job.pipeline.losses(wait=True)]
    return 0


def arrange(place: Path) -> None:
    """The files as they are before every example."""
    for each in place.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    (place / "file").write_text("not a directory")
    for name in ("there", "empty", "run", "damaged"):
        (place / name).mkdir()
    (place / "there" / "notes.txt").write_text("keep")
    (place / "damaged" / "config.json").write_text('{"K": 2')
    configure(place, {})


def configure(place: Path, damage) -> None:
    """The config.json of a run, with some values replaced."""
    defaults = {name: field.default for name, field in FIELDS.items() if name != "resume"}
    defaults |= {"model": "resnet8", "dataset": "digits", "batch_size": 2, "train_size": 4, "epochs": 1}
    config = {**defaults, "engine": "pipeline", "split": "3", "warmup": "off", "window": 1, "note": ""}
    config |= {"asked": defaults, "devices": ["cpu:0", "cpu:1"], "versions": {}}
    (place / "run" / "config.json").write_text(json.dumps(config | damage))


def outcome(words, capsys, main) -> str:
    """Runs the command here; fails on anything but its work done, --help, and a refusal of one line."""
    code = main(words) if "--help" not in words else help_of(words, main)
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    if code == 0:
        return "trained" if "--help" not in words else "help"
    assert code == 2, (code, err)
    told = [line for line in err.splitlines() if not line.lower().startswith("warning: ")]
    assert len(told) == 1 and re.match(r"error: .{10,}", told[0]), err
    return "refused"


def help_of(words, main) -> int:
    with pytest.raises(SystemExit) as leaving:
        main(words)
    return leaving.value.code or 0  # type: ignore[return-value]


# Nothing is shrunk: an example may take seconds, and has few words.
SETTINGS = settings(
    deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False, phases=[Phase.generate]
)


def written(place):
    """What writes the files of an example, and returns its words."""

    def arranged(drawn):
        words, files = drawn
        for name, text in files.items():
            (place / name).write_bytes(text.encode("utf-8", "surrogatepass"))
        return words

    return arranged


def fuzz(number, examples, strategy, arranged, place, capsys, main=cifar.main) -> str:
    """Tries so many examples, each with files arranged again; how many trained, and how many were refused."""
    counts: dict[str, int] = {}

    @seed(number)
    @settings(SETTINGS, max_examples=examples)
    @given(strategy)
    def attempt(drawn):
        arrange(place)
        found = outcome(arranged(drawn), capsys, main)
        counts[found] = counts.get(found, 0) + 1

    attempt()
    assert counts.get("trained"), counts
    return ", ".join(f"{count} {found}" for found, count in sorted(counts.items()))

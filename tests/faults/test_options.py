"""Whatever the command is given: it is taken and can train a step, or it is refused in one sentence."""

import re
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as draws
from hypothesis import strategies as st

from fdg_jax.config import FIELDS, SWITCHES
from fdg_jax.experiments import cifar
from fdg_jax.options.fields import spelled
from fdg_jax.training import lifecycle, loop

POOLS = {
    "whole number": "0 -1 1 2 3 4 5 8 1.5 two nan 1e3 0x10 1_0 +2 -0 999999999999 １ ½",
    "number": "0 -0.0 1 0.5 0.2 1e-320 1e-3 1e308 inf -inf nan 1e400 abc 0,5 1.0000001 -1 0.5 0.1 0.9",
    "word": "- -- None null ünïcode 🦆 ../x __init__ _x fdg FDG %s {}",
    "file": "fresh there nowhere/below file empty /proc/x /dev/null",
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
PLAIN = {"model": "resnet8", "dataset": "digits", "batch_size": "2", "train_size": "4", "epochs": "1"}


def values(name):
    """A strategy for the words that an option may be given; those of its own pool come more often than others."""
    kind = FIELDS[name].kind
    if name in ("run_dir", "data_dir"):
        return st.sampled_from([*OWN["file"], "", "x" * 300, "two\nlines"])
    own = OWN.get(name, [])
    literal = [str(value) for value in getattr(kind, "__args__", ()) if isinstance(value, str)]
    if not literal and "int" in str(kind):
        return st.sampled_from([*3 * own, *OWN["whole number"], "", " 2", "2\n"])
    if "float" in str(kind):
        return st.sampled_from([*OWN["number"], ""])
    return st.sampled_from([*4 * own, *4 * literal, *OWN["word"], "", " ", "a" * 5000, "a\n"])


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


def one_step(run, signals):
    """In place of the training: what an accepted configuration must be able to do."""
    job, step = run.job, run.record.step
    yield loop.feed(job.dataset, job.options, job.steps).next(step).enter(job.pipeline)
    job.pipeline.drain()
    assert step + 1 in [each.step for each in job.pipeline.losses(wait=True)]
    return 0


def arrange(place: Path) -> None:
    """The files as they are before every example."""
    for each in place.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    (place / "file").write_text("not a directory")
    for name in ("there", "empty"):
        (place / name).mkdir()
    (place / "there" / "notes.txt").write_text("keep")


def outcome(words, capsys) -> str:
    """Runs the command here; fails on anything but its work done, --help, and a refusal of one line."""
    if "--help" in words:
        with pytest.raises(SystemExit) as leaving:
            cifar.main(words)
        assert not leaving.value.code
        return "help"
    code = cifar.main(words)
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    if code == 0:
        return "trained"
    assert code == 2, (code, err)
    told = [line for line in err.splitlines() if not line.lower().startswith("warning: ")]
    assert len(told) == 1 and re.match(r"error: .{10,}", told[0]), err
    return "refused"


@pytest.mark.slow
@pytest.mark.cases(sample=1, hundred=10)
def test_a_command_line_trains_or_is_refused_in_a_sentence(seed, all_of_them, tmp_path, monkeypatch, capsys, tell):
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):  # nothing is downloaded
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "nothing"))
    monkeypatch.setattr(lifecycle, "train", one_step)
    place, counts = tmp_path / "place", dict.fromkeys(("trained", "refused", "help"), 0)
    place.mkdir()
    monkeypatch.chdir(place)

    # Nothing is shrunk: an example may take seconds, and has few words.
    @draws(seed)
    @settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False,
              phases=[Phase.generate], max_examples=80 if all_of_them else 20)  # fmt: skip
    @given(command_lines())
    def attempt(words):
        arrange(place)
        counts[outcome(words, capsys)] += 1

    attempt()
    assert counts["trained"], counts
    tell(", ".join(f"{count} {found}" for found, count in counts.items()))

"""Whatever is given, flags and files: it is taken and can train a step, or it is refused in one sentence."""

import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from start_words import JSON, starts

from fdg_jax.experiments import cifar
from fdg_jax.runs import option_checks
from fdg_jax.runs.options import FIELDS, SWITCHES, spelled
from fdg_jax.training import child_runs, command_line, dry_run, feeding, launch

TRAIN = launch.train
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


def values(name):
    kind = FIELDS[name].type
    if name in ("run_dir", "data_dir"):
        return st.sampled_from(FILES)
    own = OWN.get(name, [])
    literal = [str(value) for value in getattr(kind, "__args__", ()) if isinstance(value, str)]
    if not literal and "int" in str(kind):
        return st.sampled_from([*own, *own, *own, *WHOLE])
    if "float" in str(kind):
        return st.sampled_from(REAL)
    return st.sampled_from([*4 * own, *4 * literal, *WORDS])


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


def one_step(job, path, program, signals, begun):
    """In place of the training: what an accepted configuration must be able to do."""
    step = begun.record.step
    feeding.feed(job.dataset, job.options, job.steps).next(step).enter(job.pipeline)
    job.pipeline.drain()
    assert step + 1 in [each.step for each in job.pipeline.losses(wait=True)]
    return 0


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory to work in, in which nothing is downloaded."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("place")
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            patch.setenv(name, "http://127.0.0.1:9")
        for name in ("no_proxy", "NO_PROXY"):
            patch.setenv(name, "")
        patch.setenv("TFDS_DATA_DIR", str(path / "nothing"))
        patch.setattr(launch, "train", one_step)
        patch.chdir(path)
        yield path


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


def outcome(words, capsys) -> str:
    """Runs the command here; fails on anything but a step trained, --help, and a refusal of one line."""
    code = cifar.main(words) if "--help" not in words else help_of(words)
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    if code == 0:
        return "trained" if "--help" not in words else "help"
    assert code == 2, (code, err)
    told = [line for line in err.splitlines() if not line.lower().startswith("warning: ")]
    assert len(told) == 1 and re.match(r"error: .{10,}", told[0]), err
    return "refused"


def help_of(words) -> int:
    with pytest.raises(SystemExit) as leaving:
        cifar.main(words)
    return leaving.value.code or 0  # type: ignore[return-value]


# Nothing is shrunk: an example may take seconds, and has few words.
SETTINGS = settings(
    deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False, phases=[Phase.generate]
)


@pytest.mark.slow
@pytest.mark.cases(sample=1, hundred=10)
def test_a_command_line_trains_or_is_refused_in_a_sentence(seed, all_of_them, place, capsys, tell):
    tell(fuzz(seed, 80 if all_of_them else 20, command_lines(), lambda words: words, place, capsys))


def written(place):
    """What writes the files of an example, and returns its words."""

    def arranged(drawn):
        words, files = drawn
        for name, text in files.items():
            (place / name).write_bytes(text.encode("utf-8", "surrogatepass"))
        return words

    return arranged


def test_flags_of_a_start_and_files_of_options_are_taken_or_refused_in_a_sentence(
    all_of_them, place, monkeypatch, capsys, tell
):
    """Up to where the work would begin; 500 with --hundred."""

    def children_understand(planned, *_):
        for one in planned:
            words, _ = one.command()
            option_checks.check(*command_line.parse(words[2:], words[1]))
        return 0

    monkeypatch.setattr(launch, "prepare_and_run", lambda *_: 0)
    monkeypatch.setattr(dry_run, "tell", lambda *_: 0)
    monkeypatch.setattr(child_runs, "make_all", children_understand)
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

    monkeypatch.setattr(child_runs, "make_all", first)
    monkeypatch.setattr(dry_run, "FEW_SECONDS", 0.05)
    monkeypatch.setattr(dry_run, "MOST_BATCHES", 2)
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


@pytest.fixture(scope="module")
def begun(place, tmp_path_factory):
    """A real run that ended after 3 of 4 batches, with its checkpoints."""
    path = tmp_path_factory.mktemp("begun") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "train", TRAIN)
        words = [word for name, value in PLAIN.items() for word in (spelled(name), value)]
        more = ["--epochs", "2", "--steps", "3", "--K", "2", "--checkpoint-every", "1", "--no-tensorboard", "--run-dir"]
        assert cifar.main([*words, *more, str(path)]) == 0
    return path


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


def fuzz(number, examples, strategy, arranged, place, capsys) -> str:
    """Tries so many examples, each with files arranged again; how many trained, and how many were refused."""
    counts: dict[str, int] = {}

    @seed(number)
    @settings(SETTINGS, max_examples=examples)
    @given(strategy)
    def attempt(drawn):
        arrange(place)
        found = outcome(arranged(drawn), capsys)
        counts[found] = counts.get(found, 0) + 1

    attempt()
    assert counts.get("trained"), counts
    return ", ".join(f"{count} {found}" for found, count in sorted(counts.items()))

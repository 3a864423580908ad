"""Options that a method's file declares: a file as a user would write it, in Python and in the command."""

import inspect
import json
import sys
from pathlib import Path

import pytest
from cifar_processes import finish, started
from small import batches, pipeline

import fdg_jax
from fdg_jax import cli, config, methods
from fdg_jax.config import FIELDS, OF_CORRECTIONS, OF_METHODS, TAKEN, Config, declared
from fdg_jax.errors import BadInput
from fdg_jax.options.fields import KEYWORDS
from fdg_jax.runs import reading, run_files

ROOT = Path(__file__).parents[1]
IN_INIT = {"key", "example_batch", "variables"}
MINE = '''"""BP with two options: one for the schedule, one for the stages."""

import dataclasses
from typing import Literal

import jax

from fdg_jax.errors import BadInput
from fdg_jax.methods.interface import Method
from fdg_jax.options.fields import option
from fdg_jax.schedule import bp
from fdg_jax.stages.stage import Stage

Pace = Literal["walk", "run"]


@dataclasses.dataclass(frozen=True)
class Options:
    pace: Pace = option("walk", "mine: what the schedule is called.")
    gain: float = option(1.0, "mine: what every gradient is multiplied by.", metavar="G")

    def __post_init__(self):
        if self.gain <= 0:
            raise BadInput(f"gain={self.gain}: a gradient is multiplied by a positive number. Use 1, say.")


def schedule(K, pace):
    return bp(K)._replace(name=pace)


class Louder(Stage):
    def use(self, grads, version):
        super().use(jax.tree.map(lambda leaf: leaf * self.spec.options["gain"], grads), version)


METHOD = Method(name="mine", summary="BP with a gain", schedule=schedule, options=Options, stage=Louder)
'''
# The command where a folder of one's own is searched for methods too.
COMMAND = (
    "import sys, fdg_jax.methods as methods\n"
    "methods.__path__.append(sys.argv.pop(1))\n"
    "from fdg_jax.experiments import cifar\n"
    "sys.exit(max(cifar.main(words.split()) for words in sys.argv[1:]))\n"
)


def test_every_keyword_of_pipeline_is_taken():
    """A method's option is a keyword of Pipeline too, so it cannot have the name of one with another meaning."""
    keywords = set(inspect.signature(fdg_jax.Pipeline).parameters)
    assert keywords - OF_METHODS.keys() - OF_CORRECTIONS.keys() == KEYWORDS - IN_INIT


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder whose files are methods, with none in it."""
    path = tmp_path / "own_methods"
    path.mkdir()
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(path)])
    forget_added_methods()  # of other tests, which may have used the same name
    yield path
    forget_added_methods()


def forget_added_methods():
    """Drops the imported modules of method files that lie outside the package."""
    own = ROOT / "fdg_jax" / "methods"
    for name, module in list(sys.modules.items()):
        if name.startswith("fdg_jax.methods.") and Path(str(module.__file__)).parent != own:
            del sys.modules[name]


def run(folder: Path, *lines: str, script: str = COMMAND) -> tuple[int, str, str]:
    """Command lines in a process of its own, with that folder searched for methods; the largest exit code."""
    return finish(started("-c", script, str(folder), *lines, cwd=folder))


@pytest.mark.slow
def test_a_pipeline_takes_the_options_of_a_file_that_was_added(folder):
    (folder / "mine.py").write_text(MINE)
    data = batches(3)

    def trained(**options):
        ours = pipeline(2, data[0], **options)
        for batch in data:
            ours.step(batch)
        return ours.parameters_sha256()

    assert trained(method="mine") == trained(method="mine", pace="run", gain=1.0) == trained(method="bp")
    assert trained(method="mine", gain=2.0) != trained(method="bp")
    assert pipeline(2, data[0], method="mine", pace="run").schedule.name == "run"


@pytest.mark.parametrize(("options", "match"), [
    ({"gain": "2"}, r"gain='2' is not a number\. The default is 1\.0"),
    ({"gain": -1.0}, r"gain=-1\.0: a gradient is multiplied by a positive number"),
    ({"pace": "crawl"}, r"pace='crawl' is not known\. Use walk \(the default\) or run\."),
    ({"beta": 0.5}, r"beta=0\.5: method mine has no such option \(it has: pace, gain\)"),
    ({"method": "dni", "conditional": "yes"}, "conditional='yes' is not true or false"),
])  # fmt: skip
def test_a_value_of_another_type_is_refused_in_python(options, match, folder):
    (folder / "mine.py").write_text(MINE)
    with pytest.raises(BadInput, match=match):
        pipeline(1, batches(1)[0], **{"method": "mine", **options})


@pytest.mark.slow
def test_a_method_of_an_added_file_is_trained_by_the_command_and_goes_on(folder):
    (folder / "mine.py").write_text(MINE)
    short = "--dataset digits --model resnet8 --train-size 2 --batch-size 2 --epochs 1 --K 1 --no-tensorboard"
    words = f"{short} --method mine --pace run --gain 0.5 --run-dir run"
    code, _, err = run(folder, words, "--run-dir run --resume --gain 2")
    assert code == 2 and err.startswith("error: ") and "--gain 2.0 contradicts" in err
    for name in ("config", "summary"):
        assert json.loads((folder / "run" / f"{name}.json").read_text())["gain"] == 0.5


WHOLE = """
import dataclasses
from typing import Literal

from fdg_jax.methods.interface import Method
from fdg_jax.options.fields import option
from fdg_jax.schedule import bp


@dataclasses.dataclass(frozen=True)
class Options:
    LINE


METHOD = Method(name="mine", summary="", schedule=lambda K: bp(K), options=Options)
"""


@pytest.mark.parametrize(("line", "match"), [
    ("gain: float = 1.0", r"gain is not made by option.*Write gain: float = option\(0\.5, "),
    ("gain: complex = option(1j, 'the gain')", "gain is of a type that an option cannot have"),
    ("gain: int = option(1.5, 'the gain')", r"Options\.gain has the default 1\.5, not a whole number"),
    ("accumulate: int = option(2, 'fewer updates')", "mine.py and fdg_jax/methods/ddg.py declare .*differ"),
    ("seed: int = option(2, 'another seed')", "declares the option seed, a name that is already in use"),
])  # fmt: skip
def test_a_file_whose_options_cannot_be_is_left_out_and_the_command_says_why(line, match, folder, monkeypatch):
    (folder / "mine.py").write_text(WHOLE.replace("LINE", line))
    found, wrong = declared(methods.FOLDER, lambda name: methods.find(name).declared, TAKEN)
    assert found == OF_METHODS
    assert "\n" not in str(wrong)
    monkeypatch.setattr(config, "UNREADABLE", wrong)
    with pytest.raises(BadInput, match=match):
        cli.parse([], "command")


def test_two_files_may_declare_the_same_option(folder):
    text = "micro_batches: int = option(4, 'parts of a batch')"
    (folder / "mine.py").write_text(WHOLE.replace("LINE", text))
    found, wrong = declared(methods.FOLDER, lambda name: methods.find(name).declared)
    assert wrong is None
    assert found["micro_batches"].by == ("gpipe", "mine")


@pytest.mark.parametrize(("changed", "match"), [
    (("options=Options, ", ""), r"mine\.py has a class Options, which its METHOD does not name\. Add options=Options"),
    (('name="mine"', 'name="yours"'), r"mine\.py: METHOD has the name 'yours', but the file has 'mine'\."),
    (("@dataclasses.dataclass(frozen=True)\n", ""), "Options is not a dataclass"),
])  # fmt: skip
def test_a_file_that_contradicts_itself_is_refused_where_the_method_is_chosen(changed, match, folder):
    (folder / "mine.py").write_text(MINE.replace(*changed))
    with pytest.raises(BadInput, match=match):
        methods.find("mine")


def test_a_run_that_is_older_than_the_file_of_another_method_can_still_be_read(tmp_path):
    values = {name: getattr(Config(), name) for name in FIELDS if name not in ("resume", "aux", "correct")}
    rest = {"note": "", "devices": ["cpu:0"], "versions": {}, "asked": values}
    run_files.write_json(tmp_path / "config.json", {**values, **rest})
    found = reading.config(tmp_path)
    assert (found["aux"], found["correct"]) == ("mlp-sr", "none")
    run_files.write_json(tmp_path / "config.json", {**values, **rest, "method": "dgl"})
    with pytest.raises(BadInput, match="lacks 'aux'"):
        reading.config(tmp_path)


@pytest.mark.parametrize(("words", "values"), [
    ("--weight-decay -1e-3", {"weight_decay": -1e-3}),
    ("--weight_decay=-.5 --train_size 7", {"weight_decay": -0.5, "train_size": 7}),
    ("--learning-rate -inf", {"learning_rate": float("-inf")}),
    ("--steps None --K 3", {"steps": None, "K": 3}),
    ("--no_drain --no-conditional", {"drain": False, "conditional": False}),
])  # fmt: skip
def test_words_become_values(words, values):
    options, given = cli.parse(words.split(), "command")
    assert {name: getattr(options, name) for name in given} == values


def test_no_flag_may_be_abbreviated():
    for word in ("--epoch", "--no-dra", "--r"):
        with pytest.raises(BadInput, match=f"{word} is not a flag of this command"):
            cli.parse([word, "3"], "command")

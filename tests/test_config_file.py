"""Options from a file: what each format may say, which line is wrong with which words, and what goes before what."""

import json

import pytest

from fdg_jax import cli, config_file
from fdg_jax.checks import options as checks
from fdg_jax.config import FIELDS, OF_JOINING, OF_START, Config
from fdg_jax.errors import BadInput

SAME = {
    "a.toml": 'K = 3\nbeta = 0.5\ntrain-size = 7\nsplit = 3\ndrain = false\nlearning_rate = 1e-3\nwarmup = "on"\n',
    "a.yaml": "K: 3\nbeta: 0.5\ntrain-size: 7\nsplit: 3\ndrain: no\nlearning_rate: 1e-3\nwarmup: on  # not True\n",
    "a.json": json.dumps({"K": 3, "beta": 0.5, "train-size": 7, "split": 3, "drain": False, "learning_rate": 1e-3,
                          "warmup": "on"}),
}  # fmt: skip
MEANT = {"K": 3, "beta": 0.5, "train_size": 7, "split": "3", "drain": False, "learning_rate": 1e-3, "warmup": "on"}


def written(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    return tmp_path / name


def parsed(words, path):
    return cli.parse(["--config", str(path), *words.split()], "command")


@pytest.mark.parametrize("name", SAME)
def test_the_three_formats_say_the_same(name, tmp_path):
    found = config_file.read(written(tmp_path, name, SAME[name]))
    assert found.options == MEANT and found.given == MEANT.keys() and not found.own
    assert {name: type(value) for name, value in found.options.items()} == {k: type(v) for k, v in MEANT.items()}


def test_the_command_line_goes_before_the_file_and_the_file_before_the_defaults(tmp_path):
    path = written(tmp_path, "a.toml", "K = 3\nbeta = 0.5\nresume = 'auto'")
    options, given = parsed("--K 4", path)
    assert (options.K, options.beta, options.resume, options.epochs) == (4, 0.5, "auto", 300)
    assert given == {"K", "beta", "resume"}


WRONG = {
    "a.toml": {
        "K = 2\n\nlearnin_rate = 0.1": "line 3: there is no option 'learnin_rate'. Did you mean learning_rate?",
        "K = 'two'": "line 1: K is 'two', not a whole number",
        "beta = true": "line 1: beta is true, not a number",
        "quiet = true": "--quiet is not stored with a run",
        "train_size = 4\ntrain-size = 5": "line 2: train-size is there twice (before: ",
        "K = ": "is not valid TOML: Invalid value (at end of document)",
    },
    "a.yaml": {
        "K: 2\nbta: 0.5": "line 2: there is no option 'bta'. Did you mean beta?",
        "K: two": "line 1: K: 'two' is not a whole number",
        "K: 2\n K: 3": "line 2 is not valid YAML",
        "- 1": "has no lines such as K: 3",
        "K: 2\nK: 3": "line 2: K is there twice",
    },
    "a.json": {
        '{"K": 2,\n "bta": 0.5}': "line 2: there is no option 'bta'. Did you mean beta?",
        '{"K": NaN}': "it has NaN, which is not a number",
        "[1]": "is not a JSON object",
        '{"K": 2, "beta": 1, "K": 3}': "it has the key 'K' twice. Correct the file",
    },
    "a.ini": {"K = 2": "its name must end in .toml, .yaml, .yml or .json"},
}


def test_what_is_wrong_is_named_with_its_line(tmp_path):
    for name, text, said in ((name, *each) for name, cases in WRONG.items() for each in cases.items()):
        with pytest.raises(BadInput) as refused:
            config_file.read(written(tmp_path, name, text))
        assert said in str(refused.value) and "\n" not in str(refused.value), text
        assert str(tmp_path / name) in str(refused.value)


def test_what_is_no_file_is_refused(tmp_path):
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "large.toml").write_bytes(b"#" * (config_file.MOST_BYTES + 1))
    (tmp_path / "latin.toml").write_bytes(b"model = '\xe9'")
    said = {"folder": "is not a file", "large": "bytes", "latin": "not text in UTF-8", "nowhere": "No such file"}
    for name, words in said.items():
        with pytest.raises(BadInput, match=words):
            config_file.read(tmp_path / f"{name}.toml")


def test_a_value_that_no_run_can_have_is_refused_with_the_line_of_the_file(tmp_path, capsys):
    from fdg_jax.experiments.cifar import main

    path = written(tmp_path, "a.toml", "K = 2\nbeta = 1.5")
    assert main(["--config", str(path)]) == 2
    assert capsys.readouterr().err.endswith(f"Use 1 for no shrinking. ({path}, line 2)\n")
    assert main(["--config", str(path), "--beta", "1.25"]) == 2
    assert "line 2" not in capsys.readouterr().err


# A run's own config.json


def of_a_run(tmp_path, **values):
    """config.json as fdg_jax.runs.run_files makes it, of a run that settled what was left open."""
    asked = {name: field.default for name, field in FIELDS.items() if name != "resume"} | values
    used = asked | {"engine": "pipeline", "split": "3", "warmup": "off", "window": 1, "train_size": 50_000}
    used |= {"dataset": "cifar10", "run_dir": "runs/old"}
    facts = {"asked": asked, "versions": {"jax": "0"}, "devices": ["cpu:0"], "stages": [], "note": "", "started": "now"}
    return written(tmp_path, "config.json", json.dumps(used | facts, indent=2))


def test_a_runs_own_config_makes_the_run_again(tmp_path):
    options, given = parsed("", of_a_run(tmp_path, K=3, beta=0.5, data_dir="data"))
    assert options == Config(K=3, beta=0.5, data_dir="data", dataset="cifar10")
    assert given == {"K", "beta", "data_dir", "dataset"}


def test_a_runs_own_config_goes_with_another_K_or_method(tmp_path):
    path = of_a_run(tmp_path, beta=0.5)
    options, given = parsed("--K 4", path)
    assert (options.K, options.split, options.beta) == (4, None, 0.5)
    options, given = parsed("--method bp", path)
    checks.check(options, given)  # bp has no beta, and nobody asked for one
    assert options.beta == 1 and "beta" not in given


def test_an_edited_config_of_a_run_counts_as_it_stands(tmp_path):
    path = of_a_run(tmp_path, K=3)
    path.write_text(path.read_text().replace('"K": 3', '"K": 4', 1))
    assert parsed("", path)[0].K == 4


def test_no_option_is_named_like_a_flag_of_a_start():
    assert not FIELDS.keys() & {*OF_START, *OF_JOINING}

"""The tables: which runs they have, how far those are, and that no number is shown that no result line has.

No training happens here: run directories and result lines are made up, and a few lines of Python stand in for the
training command.
"""

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from made_up_runs import config, events, make, rows

import experiments
from experiments import __main__ as overview
from experiments import cifar10_short
from experiments.harness import curve_plot, markdown, result_files, run_table, runner, table_command
from experiments.harness.run_table import Run
from fdg_jax.errors import BadInput
from fdg_jax.runs import option_checks
from fdg_jax.training import command_line

TABLE, ROOT = cifar10_short.TABLE, run_table.ROOT
NAMES = [
    "bp", "fdg-K2-beta1", "fdg-K2-beta0.5", "fdg-K3-beta1", "fdg-K3-beta0.5", "fdg-K4-beta1", "fdg-K4-beta0.5"
]  # fmt: skip


def run_of(name: str) -> Run:
    return next(run for run in TABLE.runs if run.name == name)


# The list


def test_the_short_table_has_the_runs_that_were_agreed_on():
    assert [run.name for run in TABLE.runs] == NAMES


@pytest.mark.parametrize("name", experiments.names())
def test_every_table_is_found_by_its_file_name_and_its_runs_have_different_names(name):
    table = experiments.find(name)
    assert table.name == name
    assert len({run.name for run in table.runs}) == len(table.runs)


@pytest.mark.parametrize("run", TABLE.runs, ids=NAMES)
def test_every_command_line_is_one_the_training_command_accepts(run):
    words = run_table.command(run, "data", "somewhere")
    options, given = command_line.parse(words[3:], words[2])
    option_checks.check(options, given)
    assert {name: getattr(options, name) for name in run.flags} == run.flags


def test_the_tables_are_listed_in_one_line_each():
    done = subprocess.run([sys.executable, "-m", "experiments"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.split("\n\n")[0].splitlines()] == experiments.names()


def test_a_table_can_be_worked_on_by_its_name(tmp_path, capsys):
    assert overview.main(["cifar10_short", "list", "--runs-dir", str(tmp_path), "--only", "bp"]) == 0
    assert "bp: missing" in capsys.readouterr().out
    assert overview.main(["cifar10_shrt", "list"]) == 2
    said = capsys.readouterr().err
    assert "no table 'cifar10_shrt'. Did you mean cifar10_short? There are" in said
    assert overview.main(["nonsense"]) == 2
    said = capsys.readouterr().err
    assert "Did you mean" not in said and all(name in said for name in experiments.names())
    assert overview.main(["--help"]) == 0
    assert set(experiments.names()) <= set(capsys.readouterr().out.split())


def test_listing_imports_neither_jax_nor_matplotlib():
    code = "import sys, experiments as e; list(map(e.find, e.names())); "
    code += "sys.exit('jax' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


# States


def test_a_run_is_missing_then_cut_off_then_done(tmp_path):
    run = TABLE.runs[1]
    assert str(run_table.state(run, tmp_path)) == "missing"
    path = make(tmp_path, run, error=None, trained=2)
    assert str(run_table.state(run, tmp_path)) == "cut off at epoch 2.00"
    summary = {"steps": 1955, "epochs": 5, "seconds": 9.0, "test_error_percent": 30.0}
    (path / "summary.json").write_text(json.dumps(summary))
    assert str(run_table.state(run, tmp_path)) == "done, test error 30.00%"


def test_a_run_that_ended_before_its_last_epoch_is_not_done(tmp_path):
    make(tmp_path, TABLE.runs[0], trained=4)
    assert run_table.state(TABLE.runs[0], tmp_path).kind == run_table.CUT_OFF


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux tells who holds a lock")
def test_a_run_that_a_process_is_writing_is_running(tmp_path):
    path = make(tmp_path, TABLE.runs[0], error=None, trained=3)
    handle = os.open(path, os.O_RDONLY)  # as fdg_jax.runs.locking does
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert str(run_table.state(TABLE.runs[0], tmp_path)) == "running at epoch 3.00"
    finally:
        os.close(handle)
    assert run_table.state(TABLE.runs[0], tmp_path).kind == run_table.CUT_OFF


@pytest.mark.parametrize("changed", [{"epochs": 6}, {"seed": 1}, {"train_size": 500}, {"steps": 9}, {"order": "x"}])
def test_a_directory_with_another_run_is_refused_by_name_of_the_option(tmp_path, changed):
    make(tmp_path, TABLE.runs[0], **changed)
    with pytest.raises(BadInput, match=f"another run than bp: {next(iter(changed))} is"):
        run_table.state(TABLE.runs[0], tmp_path)


def test_what_changes_no_number_may_differ(tmp_path):
    make(tmp_path, TABLE.runs[0], checkpoint_every=7, evaluate_every=2, tensorboard=False)
    assert run_table.state(TABLE.runs[0], tmp_path).kind == run_table.DONE


def test_list_shows_state_and_command_and_how_to_go_on(tmp_path, capsys):
    make(tmp_path, run_of("bp"))
    make(tmp_path, run_of("fdg-K3-beta0.5"), error=None, trained=1)
    make(tmp_path, run_of("fdg-K4-beta1"), epochs=6)
    assert table_command.main(TABLE, ["list", "--runs-dir", str(tmp_path), "--data-dir", "data"]) == 0
    out = capsys.readouterr().out
    assert "bp: done, test error 31.25%\n  .venv/bin/python -m fdg_jax.experiments.cifar --dataset cifar10" in out
    assert f"--K 3 --beta 0.5 --data-dir data --run-dir {tmp_path}/fdg-K3-beta0.5 --resume\n" in out
    assert f"--K 2 --beta 1 --data-dir data --run-dir {tmp_path}/fdg-K2-beta1\n" in out
    assert out.count("missing\n") == 4
    assert f"fdg-K4-beta1: {tmp_path}/fdg-K4-beta1 holds another run than fdg-K4-beta1: epochs is 6" in out
    assert out.count("--resume") == 1


def test_a_run_made_before_the_command_learnt_an_option_is_still_the_tables(tmp_path):
    path = make(tmp_path, TABLE.runs[0])
    content = json.loads((path / "config.json").read_text())
    for options in (content, content["asked"]):
        del options["drain"]
    (path / "config.json").write_text(json.dumps(content))
    assert run_table.state(TABLE.runs[0], tmp_path).kind == run_table.DONE


# Running

STAND_IN = """
import json, os, signal, sys, time
from pathlib import Path
config, seconds, code, path = json.loads(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
if code:
    sys.exit("error: no such data" if code == 1 else code)
path.mkdir(parents=True, exist_ok=True)
(path / "config.json").write_text(json.dumps(config))
(path / "cores").write_text(json.dumps(sorted(os.sched_getaffinity(0))))
def leave(number, frame):
    (path / "checkpointed").touch()
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, leave)
print("epoch 1/5", flush=True)
(path / "ready").touch()
time.sleep(seconds)
(path / "summary.json").write_text(json.dumps({"steps": 1955, "epochs": 5, "seconds": 9.0, "test_error_percent": 20.0}))
(path / "resumed").write_text(str("--resume" in sys.argv))
print("done: test error 20%")
"""


@pytest.fixture
def stand_in(monkeypatch):
    """Instead of the training command: a process that makes a run directory within a moment."""

    def use(seconds: float = 0.0, code: int = 0):
        def command(run, data_dir, run_dir, resume=False):
            told = [json.dumps(config(run)), str(seconds), str(code), run_dir]
            return ["python", "-c", STAND_IN, *told, *(["--resume"] * resume)]

        monkeypatch.setattr(runner, "command", command)
        monkeypatch.setattr(runner, "POLL_SECONDS", 0.01)

    return use


def test_run_starts_what_is_missing_continues_what_was_cut_off_and_leaves_the_rest(tmp_path, stand_in, capsys):
    stand_in()
    finished, cut = make(tmp_path, TABLE.runs[0]), make(tmp_path, TABLE.runs[1], error=None, trained=2)
    before = (finished / "summary.json").read_text()
    assert table_command.main(TABLE, ["run", "--runs-dir", str(tmp_path)]) == 0
    assert (finished / "summary.json").read_text() == before
    assert (cut / "resumed").read_text() == "True"
    assert [(tmp_path / name / "resumed").read_text() for name in NAMES[2:]] == ["False"] * 5
    out = capsys.readouterr().out
    assert out.index("fdg-K2-beta1: continued") < out.index("fdg-K2-beta0.5: started")
    assert "fdg-K4-beta1: finished: done: test error 20%" in out


def test_only_the_runs_asked_for_are_run(tmp_path, stand_in):
    stand_in()
    assert table_command.main(TABLE, ["run", "--runs-dir", str(tmp_path), "--only", "bp", "fdg-K4-beta1"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["bp", "fdg-K4-beta1"]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot pin a process")
def test_each_of_several_runs_has_a_core_to_itself(tmp_path, stand_in):
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        pytest.skip("needs two cores")
    stand_in(seconds=0.3)
    assert table_command.main(TABLE, ["run", "--runs-dir", str(tmp_path), "--jobs", "2", "--only", *NAMES[:2]]) == 0
    assert [json.loads((tmp_path / name / "cores").read_text()) for name in NAMES[:2]] == [
        [mine[0]],
        [mine[1]],
    ]
    assert sorted(os.sched_getaffinity(0)) == mine


def test_after_a_refusal_no_other_run_is_started(tmp_path, stand_in, capsys):
    stand_in(code=2)
    assert table_command.main(TABLE, ["run", "--runs-dir", str(tmp_path)]) == 2
    assert "not starting the other 6" in capsys.readouterr().out


def test_after_a_failure_the_others_are_run_and_the_exit_code_tells(tmp_path, stand_in, capsys):
    stand_in(code=1)
    assert table_command.main(TABLE, ["run", "--runs-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().out.count("ended with exit code 1: error: no such data") == 7


def test_a_signal_is_handed_on_once_and_nothing_more_is_started(tmp_path, stand_in):
    stand_in(seconds=60)
    code = (
        "import sys; from pathlib import Path; from experiments.harness import runner\n"
        "from experiments import cifar10_short as c\n"
        "runner.command = lambda run, data, path, resume=False: sys.argv[2:-1] + [path]\n"
        "sys.exit(runner.run_missing(c.RUNS, Path(sys.argv[1]), None, 1))"
    )
    told = ["python", "-c", STAND_IN, json.dumps(config(TABLE.runs[0])), "60", "0", "last"]
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), *told], cwd=ROOT)
    try:
        deadline = time.monotonic() + 30
        while not (tmp_path / "bp" / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 128 + signal.SIGTERM
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert (tmp_path / "bp" / "checkpointed").exists()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["bp"]


@pytest.mark.parametrize("jobs", [0, -1, 100_000])
def test_jobs_that_cannot_be_are_refused(tmp_path, jobs, capsys):
    if jobs > 0 and not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system cannot pin a process")
    assert table_command.main(TABLE, ["run", "--runs-dir", str(tmp_path), "--jobs", str(jobs)]) == 2
    assert f"--jobs {jobs}: " in capsys.readouterr().err


# Collecting


def test_a_line_has_the_run_and_nothing_of_where_it_was_made(tmp_path):
    make(tmp_path, run_of("fdg-K2-beta0.5"))
    result_files.collect(TABLE, tmp_path, tmp_path / "results")
    text = (tmp_path / "results" / "cifar10_short.jsonl").read_text()
    (line,) = map(json.loads, text.splitlines())
    assert "someone" not in text
    assert str(tmp_path) not in text
    assert not {"data_dir", "run_dir"} & set(line["options"])
    assert line["command"].endswith(" --K 2 --beta 0.5")  # no directory: the true one is left out, none put in
    assert (line["test_error_percent"], line["staleness"], line["images_per_second"]) == (
        31.25,
        [1, 0],
        123.4,
    )
    assert line["git_commits"] == ["a" * 40, "b" * 40 + "-dirty"]
    assert line["hardware"]["platform"] == "Linux-6.1.2-x86_64-with-glibc2.36"
    assert [test["epoch"] for test in line["evaluations"]] == [1, 2, 3, 4, 5]
    assert line["evaluations"][4]["test_error_percent"] == 40.0


def test_a_line_says_what_it_ran_on_as_far_as_the_run_wrote_it_down(tmp_path):
    path = make(tmp_path, run_of("bp"))
    old = result_files.line(TABLE, run_of("bp"), path)["hardware"]
    assert markdown.machine(old) == "one device (cpu:0) of a machine with 2 cores (Linux-6.1.2-x86_64-with-glibc2.36)"
    told = {"processor": "A Processor", "usable_cores": 1, "cpu_devices": 4, "matmul_precision": None}
    (path / "config.json").write_text(json.dumps(config(run_of("bp")) | told))
    new = result_files.line(TABLE, run_of("bp"), path)["hardware"]
    assert new == old | told
    assert "with 2 cores, 1 used (A Processor, Linux-" in markdown.machine(new)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("summary.json", "{}", "summary.json lacks 'steps'"),
        ("summary.json", "{", "summary.json cannot be read"),
        ("config.json", '{"asked": 5}', "asked is 5, which is no object"),
        ("metrics.jsonl", "rubbish\n", "metrics.jsonl, line 1 is damaged"),
    ],
)
@pytest.mark.parametrize("verb", ["list", "collect"])
def test_a_damaged_run_is_named_in_a_sentence(tmp_path, verb, file, content, message, capsys):
    (make(tmp_path, TABLE.runs[0]) / file).write_text(content)
    where = ["--results", str(tmp_path / "results")] if verb == "collect" else []
    assert table_command.main(TABLE, [verb, "--runs-dir", str(tmp_path), *where]) == (2 if where else 0)
    assert message in "".join(capsys.readouterr())


def test_a_run_whose_config_lacks_what_a_line_shows_is_named_in_a_sentence(tmp_path):
    path = make(tmp_path, TABLE.runs[0])
    (path / "config.json").write_text(json.dumps({**config(TABLE.runs[0]), "versions": "new"}))
    with pytest.raises(BadInput, match="versions is 'new', which is no object"):
        result_files.line(TABLE, TABLE.runs[0], path)


def test_the_thinned_curve_keeps_the_mean_and_the_end():
    lines = [event for event in events(5) if "train_loss" in event]  # 200
    curve = result_files.thinned(lines)
    assert len(curve["epoch"]) == len(curve["train_loss"]) == len(curve["learning_rate"]) == 100
    assert curve["epoch"][-1] == 5.0
    assert curve["train_loss"][0] == pytest.approx((lines[0]["train_loss"] + lines[1]["train_loss"]) / 2, abs=1e-5)
    assert curve["learning_rate"] == [0.1] * 50 + [0.01] * 50
    assert result_files.thinned(lines[:7])["train_loss"] == [round(line["train_loss"], 5) for line in lines[:7]]
    assert result_files.thinned([])["epoch"] == []


def test_a_loss_that_was_no_number_stays_none():
    event = {"epoch": 1.0, "train_loss": None, "learning_rate": 0.1}
    assert result_files.thinned([event])["train_loss"] == [None]


def test_only_finished_runs_are_collected_and_lines_of_other_runs_stay(tmp_path):
    results = tmp_path / "results"
    make(tmp_path / "first", run_of("fdg-K4-beta1"))
    make(tmp_path / "first", run_of("bp"), error=40.0)
    assert result_files.collect(TABLE, tmp_path / "first", results) == (["bp", "fdg-K4-beta1"], [])
    make(tmp_path / "second", run_of("bp"), error=30.0)
    make(tmp_path / "second", run_of("fdg-K2-beta1"), error=None, trained=4)
    assert result_files.collect(TABLE, tmp_path / "second", results) == (["bp"], ["fdg-K4-beta1"])
    lines = result_files.read(TABLE, results)
    assert list(lines) == ["bp", "fdg-K4-beta1"]
    assert lines["bp"]["test_error_percent"] == 30.0


def test_collecting_nothing_is_an_error_and_leaves_no_file(tmp_path, capsys):
    assert table_command.main(TABLE, ["collect", "--runs-dir", str(tmp_path), "--results", str(tmp_path / "r")]) == 2
    assert "no finished run of cifar10_short" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: line | {"name": "fdg-K9"}, "a line of fdg-K9, no run"),
        (
            lambda line: line | {"options": line["options"] | {"epochs": 4}},
            "of another run: epochs is 4, not 5",
        ),
        (lambda line: {}, "cannot be read"),
    ],
)
def test_a_line_that_is_not_the_tables_is_refused(tmp_path, change, message):
    make(tmp_path, TABLE.runs[0])
    result_files.collect(TABLE, tmp_path, tmp_path)
    path = tmp_path / "cifar10_short.jsonl"
    path.write_text(json.dumps(change(json.loads(path.read_text()))) + "\n")
    with pytest.raises(BadInput, match=message):
        result_files.read(TABLE, tmp_path)


# Rendering


def test_without_results_every_run_has_a_row_and_no_number_of_ours(tmp_path):
    found = rows(TABLE.document({}))
    assert [cells[:3] for cells in found] == [
        ["BP", "1", "–"], ["FDG", "2", "1"], ["FDG", "2", "0.5"], ["FDG", "3", "1"], ["FDG", "3", "0.5"],
        ["FDG", "4", "1"], ["FDG", "4", "0.5"],
    ]  # fmt: skip
    paper = [cells[9] for cells in found]
    assert paper == ["7.78 (8.75 as first published)", "7.92", "", "", "", "", ""]  # Table 3
    assert all(cell == "" for cells in found for cell in [*cells[3:9], cells[10]])


def test_a_row_shows_its_own_line_and_the_other_rows_stay_blank(tmp_path):
    make(tmp_path, run_of("fdg-K3-beta1"), error=28.125)
    make(tmp_path, run_of("fdg-K2-beta0.5"), error=33.0)
    result_files.collect(TABLE, tmp_path, tmp_path)
    text = TABLE.document(result_files.read(TABLE, tmp_path))
    found = dict(zip(NAMES, rows(text), strict=True))
    assert found["fdg-K3-beta1"][3:9] == ["2, 1, 0", "28.12", "0.8765", "123", "5", "1"]
    assert found["fdg-K2-beta0.5"][4] == "33.00"
    assert "--K 3 --beta 1`" in found["fdg-K3-beta1"][10]
    assert all(cells[4] == "" for name, cells in found.items() if name not in ("fdg-K3-beta1", "fdg-K2-beta0.5"))
    assert "2 of 7 runs are finished" in text
    assert "Python 3.11.7, JAX 0.10.2" in text
    assert "`aaaaaaaaaa` or `bbbbbbbbbb-dirty`" in text


def test_render_makes_page_and_picture_and_leaves_the_readme_alone(tmp_path, capsys):
    make(tmp_path, run_of("bp"))
    results = tmp_path / "results"
    result_files.collect(TABLE, tmp_path, results)
    readme = tmp_path / "README.md"
    readme.write_text("mine\n")
    pages = []
    for _ in range(2):  # again changes nothing
        assert table_command.main(TABLE, ["render", "--results", str(results)]) == 0
        pages.append((results / "cifar10_short.md").read_text())
    assert pages[0] == pages[1]
    assert pages[0].startswith(f"# {TABLE.title}\n\n| method | K |") and "](cifar10_short.png)" in pages[0]
    assert (results / "cifar10_short.png").read_bytes().startswith(b"\x89PNG")
    assert readme.read_text() == "mine\n"


def test_every_run_has_a_look_of_its_own():
    line = {"test_error_percent": 1.0}
    curves = [cifar10_short.curve(run, line) for run in TABLE.runs]
    assert len({(curve.colour, curve.style) for curve in curves}) == len(curves)
    assert len({curve.label for curve in curves}) == len(curves)
    assert all(len({c.colour for c in curves if f"K={K}" in c.label}) == 1 for K in (2, 3, 4))


def test_only_falls_of_the_learning_rate_are_marked():
    training = {"epoch": [0.1, 0.2, 0.3, 0.4], "learning_rate": [0.01, 0.1, 0.1, 0.01]}  # a warm-up first
    assert curve_plot.falls(training) == [(0.4, 0.01)]


# What is committed

COMMITTED = run_table.RESULTS / "cifar10_short.jsonl"
committed = pytest.mark.skipif(not COMMITTED.is_file(), reason="nothing has been collected yet")


@pytest.mark.parametrize("name", experiments.names())
def test_the_committed_page_is_what_the_committed_results_give(name):
    table = experiments.find(name)
    lines = result_files.read(table, run_table.RESULTS)
    page = run_table.RESULTS / f"{name}.md"
    assert page.read_text() == result_files.page(table, lines), f"run `python -m experiments.{name} render`"
    assert page.with_suffix(".png").is_file() == (table.picture is not None)


def test_the_readme_is_one_page_that_links_to_every_table():
    text = (ROOT / "experiments" / "README.md").read_text()
    links = set(re.findall(r"\]\(([^)#]+)\)", text))
    assert links >= {f"results/{name}.md" for name in experiments.names()}
    assert all((ROOT / "experiments" / link).exists() for link in links)
    assert len(text.splitlines()) < 90


@committed
def test_what_the_words_say_of_the_options_is_what_the_committed_results_say():
    for line in result_files.read(TABLE, run_table.RESULTS).values():
        said = {
            "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "order": "backward-first",
            "weights": "stashed", "drain": True, "train_size": 50000, "dtype": "float32",
            "warmup": "on" if line["options"]["K"] >= 3 else "off",
        }  # fmt: skip
        assert {name: line["options"][name] for name in said} == said


@committed
def test_the_committed_results_are_plausible_and_name_no_place():
    assert not re.search(r'["\s=]/', COMMITTED.read_text()), "an absolute path"
    for line in result_files.read(TABLE, run_table.RESULTS).values():
        K = line["options"]["K"]
        derived = [max(0, 2 * (K - k) - 1) for k in range(1, K + 1)]  # backward first
        assert line["staleness"] == (derived if line["method"] == "fdg" else [0])
        assert line["evaluations"][-1]["test_error_percent"] == line["test_error_percent"]
        assert len(line["evaluations"]) == line["epochs"] == 5

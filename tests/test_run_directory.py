"""The files of a run, without running one: whole or not at all, cut back on resume, never mixed up."""

import dataclasses
import errno
import json
import os
import signal
import stat
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from fdg_jax.engine.losses import Metrics
from fdg_jax.errors import BadInput
from fdg_jax.experiments import cifar
from fdg_jax.machine import compile_cache, facts
from fdg_jax.recipe import paper_schedule
from fdg_jax.report import curves, report_page
from fdg_jax.runs import checkpoints, locking, reading, run_files, tensorboard
from fdg_jax.runs.options import FIELDS, Options
from fdg_jax.runs.progress import per_second
from fdg_jax.runs.run_files import MetricsLog
from fdg_jax.storage import strict_json
from fdg_jax.training import closing, launch, session, session_run, training_loop
from fdg_jax.training.live_directory import LiveDirectory
from fdg_jax.training.nonfinite_policy import Diverged
from fdg_jax.training.record import Record
from fdg_jax.training.setup import learning_rates
from fdg_jax.training.signals import Signals, Stopped


def asked(**changed) -> Options:
    return dataclasses.replace(Options(), **changed)


def stored_run(path: Path, **changed) -> Options:
    """A run directory that holds only a config."""
    options = asked(**changed)
    path.mkdir(exist_ok=True)
    values = {name: getattr(options, name) for name in FIELDS if name != "resume"}
    rest = {"asked": values, "note": "", "devices": ["cpu:0"], "versions": {}}
    run_files.write_json(path / "config.json", {**values, **rest})
    return options


def test_a_new_directory_is_made_and_kept_once_something_is_in_it(tmp_path):
    with locking.claim(tmp_path / "a" / "b", resume=False) as (path, _):
        (path / "config.json").write_text("{}")
    assert (tmp_path / "a" / "b" / "config.json").exists()


def test_a_directory_in_which_nothing_was_written_is_taken_away_again(tmp_path):
    with pytest.raises(BadInput, match="no data"), locking.claim(tmp_path / "a" / "b", resume=False):
        raise BadInput("no data")
    assert not (tmp_path / "a").exists()


def test_a_directory_that_was_there_before_stays_though_it_is_empty(tmp_path):
    with locking.claim(tmp_path, resume=False):
        pass
    assert tmp_path.is_dir()


@pytest.mark.parametrize(("name", "said"), [
    *[(name, r"already holds a run\. Add --resume") for name in ("config.json", "metrics.jsonl", "summary.json")],
    ("checkpoints", "a --resume-into that was cut off left it"),
])  # fmt: skip
def test_a_directory_with_any_file_of_a_run_holds_a_run(tmp_path, name, said):
    (tmp_path / name).write_text("")
    with (
        pytest.raises(BadInput, match=said),
        locking.claim(tmp_path, resume=False),
    ):
        pass


def test_other_peoples_files_are_no_run(tmp_path):
    (tmp_path / "notes.txt").write_text("keep")
    with locking.claim(tmp_path, resume=False):
        pass
    assert (tmp_path / "notes.txt").read_text() == "keep"


def test_resuming_needs_a_run(tmp_path):
    with pytest.raises(BadInput, match="holds no run"), locking.claim(tmp_path / "none", resume=True):
        pass
    assert not (tmp_path / "none").exists()


def test_a_file_or_an_impossible_place_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere/run")):
        with pytest.raises(BadInput, match="Choose another --run-dir"), locking.claim(place, resume=False):
            pass


@pytest.mark.parametrize(("name", "said"), [
    ("n" * 256, "has 256 bytes, and names have at most 255"),
    ("ä" * 128, "has 256 bytes, and names have at most 255"),
    ("/".join(20 * ["n" * 200]), "the path of the run directory has"),
    ("a\udcffb", "a\\udcffb' is not valid UTF-8"),
])  # fmt: skip
@pytest.mark.parametrize("into", [False, True])
def test_a_name_under_which_nothing_can_be_written_is_refused_before_anything_is_made(
    tmp_path, name, said, into, capsys
):
    place = str(tmp_path / "a" / name)
    words = ["--run-dir", str(tmp_path / "old"), "--resume-into", place] if into else ["--run-dir", place]
    assert cifar.main(["--dataset", "digits", "--model", "resnet8", *words]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
    assert not (tmp_path / "a").exists()


def test_a_second_process_cannot_write_the_same_run(tmp_path):
    stored_run(tmp_path)
    code = (
        "import pathlib, sys; from fdg_jax.runs import locking\n"
        "with locking.claim(pathlib.Path(sys.argv[1]), resume=True): print('in', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        with pytest.raises(BadInput, match="another process"), locking.claim(tmp_path, resume=True):
            pass
    finally:
        other.communicate("")
    with locking.claim(tmp_path, resume=True):
        pass


def test_two_default_directories_never_are_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = set()
    for _ in range(3):
        path = locking.default_path(asked(method="bp", model="resnet8", K=3))
        path.mkdir(parents=True)
        seen.add(path)
        assert "-bp-resnet8-K3" in path.name
    assert len(seen) == 3


def test_processes_that_begin_in_the_same_second_get_a_directory_each(tmp_path):
    """Half of them fail at once, and so take their empty directories away again."""
    code = """
import sys, time, types
from datetime import datetime
from fdg_jax.runs import locking as claim
from fdg_jax.runs.options import Options
claim.datetime = types.SimpleNamespace(now=lambda: datetime(2026, 1, 1))  # it is the same second for all of them
number = int(sys.argv[1])
sys.stdin.readline()
for turn in range(40):
    fails = (number + turn) % 2
    try:
        with claim.claim_new(Options()) as (path, _):
            if not fails:
                (path / "config.json").write_text(f"{number} {turn}", encoding="utf-8")
            time.sleep(0.001)
            assert fails or (path / "config.json").read_text(encoding="utf-8") == f"{number} {turn}"
            if fails:
                raise RuntimeError
    except RuntimeError:
        pass
"""
    settings = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}, "text": True}
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    words = [[sys.executable, "-c", code, str(number)] for number in range(6)]
    processes = [subprocess.Popen(each, **settings, **pipes) for each in words]
    told = [process.communicate("go\n", timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 6, told
    made = list((tmp_path / "runs").iterdir())
    assert len({(path / "config.json").read_text() for path in made}) == len(made) == 120


def test_a_directory_that_is_replaced_before_it_is_locked_is_not_taken_for_the_new_one(tmp_path, monkeypatch):
    path, opened, times = tmp_path / "run", os.open, []

    def replaced(name, *given):
        handle = opened(name, *given)
        if name == path and not times:  # between opening and locking, another process takes it away and makes it anew
            times.append(handle)
            path.rename(tmp_path / "other")
            path.mkdir()
        return handle

    monkeypatch.setattr(locking.os, "open", replaced)
    with locking.claim(path, resume=False):
        assert times
        with pytest.raises(BadInput, match="another process"), locking.lock(path):
            pass


def test_what_another_process_put_into_a_directory_while_it_was_waited_for_is_seen(tmp_path, monkeypatch):
    path, lock = tmp_path / "run", locking.lock

    def late(path):
        stored_run(tmp_path / "run")
        return lock(path)

    monkeypatch.setattr(locking, "lock", late)
    with pytest.raises(BadInput, match="already holds a run"), locking.claim(path, resume=False):
        pass


@pytest.mark.parametrize("unreadable", ["config.json", "checkpoints"])
def test_auto_begins_nothing_where_there_may_be_a_run_that_cannot_be_read_now(unreadable, tmp_path, monkeypatch):
    stored_run(tmp_path)
    (tmp_path / "checkpoints" / "step-000000001").mkdir(parents=True)
    away = mock.Mock(side_effect=OSError(errno.EIO, "Input/output error"))
    if unreadable == "config.json":
        monkeypatch.setattr(strict_json, "read", away)
    else:
        (tmp_path / "config.json").write_text("{")
        monkeypatch.setattr(os, "listdir", away)
    with pytest.raises(BadInput, match="Input/output error"), locking.claim(tmp_path, resume="auto"):
        pass


@pytest.mark.parametrize(("files", "resumes"), [
    ({}, False),
    ({"config.json.part": "{"}, False),
    ({"config.json": ""}, False),  # after a power cut
    ({"config.json": "", "metrics.jsonl": ""}, False),
    ({"config.json": None}, True),
    ({"config.json": None, "metrics.jsonl": "", "tensorboard/events.1": ""}, True),
    ({"config.json": None, "checkpoints/.step-000000001.tmp/manifest.json": ""}, True),
    ({"config.json": None, "checkpoints/step-000000001/manifest.json": ""}, True),
    ({"config.json": None, "summary.json": "{}"}, True),
    ({"config.json": "", "checkpoints/step-000000001/manifest.json": ""}, True),  # and then refused: it is damaged
    ({"config.json": "", "checkpoints/damaged-step-000000001/manifest.json": ""}, True),
])  # fmt: skip
def test_auto_goes_on_with_what_can_be_gone_on_with(files, resumes, tmp_path):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        stored_run(tmp_path) if content is None else (tmp_path / name).write_text(content)
    with locking.claim(tmp_path, "auto") as (path, found):
        assert found is resumes and locking.resumes(path) is resumes
    assert not locking.resumes(tmp_path / "none")


@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json", "checkpoints/step-000000001"])
def test_auto_does_not_begin_in_a_directory_with_results_of_another_run(name, tmp_path):
    (tmp_path / name).mkdir(parents=True)
    with (
        pytest.raises(BadInput, match=r"and no config\.json, so it cannot be gone on"),
        locking.claim(tmp_path, "auto"),
    ):
        pass


def test_resuming_nothing_names_the_way_out(tmp_path):
    with pytest.raises(BadInput, match="--resume auto goes on or starts"), locking.claim(tmp_path, resume=True):
        pass


def test_metrics_are_on_disk_line_by_line(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append({"step": 1, "train_loss": 2.0})
    assert run_files.read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "train_loss": 2.0}]
    log.append({"step": 2, "train_loss": float("nan")})
    assert run_files.read_metrics(tmp_path / "metrics.jsonl")[1] == {"step": 2, "train_loss": None}
    assert log.lines == 2
    log.close()


def test_resuming_drops_the_lines_after_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    log = MetricsLog(path, keep_lines=2)
    log.append({"step": 3, "again": True})
    log.close()
    assert [event["step"] for event in run_files.read_metrics(path)] == [1, 2, 3]
    assert log.lines == 3


def test_a_half_written_line_is_never_kept(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"st')
    assert run_files.read_metrics(path) == [{"step": 1}]
    assert run_files.cut_back(path, 5) == 1
    assert path.read_text() == '{"step": 1}\n'


def test_json_files_are_valid_json_also_when_a_loss_is_no_number(tmp_path):
    run_files.write_json(tmp_path / "summary.json", {"train_loss": float("inf"), "split": [3]})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"train_loss": None, "split": [3]}
    assert os.listdir(tmp_path) == ["summary.json"]  # nothing half-written is left beside it


def test_a_resumed_run_has_the_options_of_its_config(tmp_path):
    stored_run(tmp_path, K=3, beta=0.25, epochs=7)
    options, _ = reading.resumed_options(tmp_path, asked(resume=True), frozenset({"resume"}))
    assert (options.K, options.beta, options.epochs, options.resume) == (3, 0.25, 7, True)


def test_options_that_change_the_training_cannot_change_on_resume(tmp_path):
    stored_run(tmp_path, K=3, beta=0.25)
    with pytest.raises(BadInput, match=r"--beta 0\.5 contradicts .*config\.json, which says 0\.25"):
        reading.resumed_options(tmp_path, asked(beta=0.5), frozenset({"beta", "resume"}))
    options, _ = reading.resumed_options(tmp_path, asked(beta=0.25), frozenset({"beta", "resume"}))
    assert options.K == 3


def test_how_far_and_how_often_may_change_on_resume(tmp_path):
    stored_run(tmp_path, steps=10)
    now = asked(steps=20, checkpoint_every=5)
    options, _ = reading.resumed_options(tmp_path, now, frozenset({"steps", "checkpoint_every"}))
    assert (options.steps, options.checkpoint_every) == (20, 5)


def test_a_damaged_config_is_refused(tmp_path):
    for content in ("{", "[]", '{"K": 2}'):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(BadInput, match=r"config\.json"):
            reading.resumed_options(tmp_path, asked(), frozenset())


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("K", "two", "K is 'two', which is no whole number"),
        ("K", True, "K is True, which is no whole number"),
        ("beta", None, "beta is None, which is no number"),
        ("drain", 1, "drain is 1, which is no true or false"),
        ("engine", "fast", "engine is 'fast', which is no auto or pipeline or delay-line"),
        ("steps", "9", "steps is '9', which is no whole number or null"),
        ("asked", [], "asked is [], which is no object"),
        ("resumed", 3, "resumed is 3, which is no list or null"),
    ],
)
def test_a_value_of_another_type_in_a_config_is_refused_by_name(tmp_path, name, value, said):
    stored_run(tmp_path)
    config = run_files.read_json(tmp_path / "config.json")
    run_files.write_json(tmp_path / "config.json", {**config, "beta": 1, name: value})
    with pytest.raises(BadInput) as refused:
        reading.config(tmp_path)
    assert f"{tmp_path / 'config.json'}: {said}: the file is damaged." in str(refused.value)


@pytest.mark.parametrize("name", ["K", "note", "devices", "versions", "asked"])
def test_a_config_that_lacks_a_value_is_refused_by_its_name(tmp_path, name):
    stored_run(tmp_path)
    config = run_files.read_json(tmp_path / "config.json")
    assert reading.config(tmp_path) == config
    del config[name]
    run_files.write_json(tmp_path / "config.json", config)
    with pytest.raises(BadInput, match=f"config.json lacks '{name}'"):
        reading.config(tmp_path)


def test_a_report_of_a_damaged_run_is_refused_in_a_sentence(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    assert report_page.main([str(tmp_path)]) == 2
    assert "config.json lacks 'method'" in capsys.readouterr().err


@pytest.mark.parametrize("line", [b"rubbish", b"[3]", b"{}", b"\xff", b""])
def test_a_damaged_line_of_the_metrics_is_refused_by_its_number(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 3}\n')
    with pytest.raises(BadInput, match=r"metrics\.jsonl, line 2 is damaged"):
        run_files.read_metrics(path)


def test_a_config_says_what_bears_on_speed_and_on_the_last_bits(monkeypatch):
    told = run_files.config(asked(), asked(), ["cpu:0"], "")
    assert told["usable_cores"] == len(os.sched_getaffinity(0))
    assert told["cpu_devices"] >= 1
    assert told["processor"]
    assert told["matmul_precision"] is None
    monkeypatch.setattr(facts, "cpuinfo", lambda: ["flags\t: fpu", "model name\t: A Processor: fast"])
    assert facts.processor_name() == "A Processor: fast"


def test_what_a_killed_process_left_among_the_checkpoints_is_swept_away(tmp_path):
    orbax = ".orbax-checkpoint-tmp"
    leftovers = [".step-000000007.tmp", f".step-000000007.tmp{orbax}-9", f"step-000000007{orbax}"]
    for name in ("step-000000003", "mine", *leftovers):
        (tmp_path / name / "deep").mkdir(parents=True)
    assert [path.name for path in checkpoints.stored(tmp_path)] == ["step-000000003"]
    checkpoints.sweep(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["mine", "step-000000003"]
    checkpoints.sweep(tmp_path / "none")  # a new run has no checkpoints yet


def test_programs_that_nobody_used_for_long_leave_the_cache(tmp_path):
    days = 24 * 3600
    now = compile_cache.time.time()
    for folder, name, read, written in [
        ("xla-1-a", "old", 31, 31), ("xla-1-a", "read", 1, 90), ("xla-2-b", "new", 90, 1), ("other", "theirs", 90, 90)
    ]:  # fmt: skip
        file = tmp_path / folder / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
        os.utime(file, (now - read * days, now - written * days))
    compile_cache.prune(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["new", "read", "theirs"]
    compile_cache.prune(tmp_path / "none")


def test_the_cache_is_pruned_when_it_is_enabled(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in (compile_cache.SWITCH, "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    settings = {}
    fake = SimpleNamespace(config=SimpleNamespace(update=settings.__setitem__))
    monkeypatch.setattr(compile_cache, "jax", fake)  # this process keeps its own cache
    old = tmp_path / "fdg_jax" / "xla-0-gone" / "program"
    old.parent.mkdir(parents=True)
    old.touch()
    os.utime(old, (0, 0))
    compile_cache.enable()
    assert not old.exists()
    assert Path(settings["jax_compilation_cache_dir"]).is_dir()


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no owners")
@pytest.mark.parametrize(("spoil", "said"), [
    (lambda root, patch: None, ""),
    (lambda root, patch: (root / "fdg_jax").chmod(0o777), "everybody may write in "),
    (lambda root, patch: next((root / "fdg_jax").iterdir()).chmod(0o702), "everybody may write in "),
    (lambda root, patch: root.chmod(0o777), "everybody may write in "),
    (lambda root, patch: root.chmod(0o1777), ""),  # as /tmp is: there nobody can rename what is another's
    (lambda root, patch: patch.setattr(compile_cache.os, "geteuid", lambda: 12345), "belongs to another user"),
])  # fmt: skip
def test_a_cache_of_programs_that_others_could_have_written_is_not_used(spoil, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in (compile_cache.SWITCH, "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    settings: dict = {}
    monkeypatch.setattr(compile_cache, "jax", SimpleNamespace(config=SimpleNamespace(update=settings.__setitem__)))
    before = os.umask(0)
    try:
        compile_cache.enable()
    finally:
        os.umask(before)
    made = [tmp_path / "cache" / "fdg_jax", Path(settings["jax_compilation_cache_dir"])]
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o700, 0o700]
    settings.clear()
    spoil(tmp_path / "cache", monkeypatch)
    compile_cache.enable()
    err = capsys.readouterr().err
    assert bool(settings) == (said == "")
    assert said in err and err.count("\n") == bool(said) and err.startswith("warning: " if said else "")


def test_a_report_is_one_page_with_its_curves_in_it_also_of_an_unfinished_run(tmp_path):
    stored_run(tmp_path, model="resnet8", K=2, beta=0.5)
    config = run_files.read_json(tmp_path / "config.json")
    run_files.write_json(
        tmp_path / "config.json",
        {**config, "devices": ["cpu:0", "cpu:1"], "note": "digits <not> CIFAR", "versions": {}},
    )
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in range(1, 200):
        rate = 0.1 if step < 100 else 0.01
        log.append(
            {
                "step": step,
                "epoch": step / 50,
                "train_loss": 3 / step,
                "learning_rate": rate,
                "images_per_second": 9.0,
            }
        )
    log.append({"step": 199, "epoch": 3.98, "test_loss": 0.1, "test_error_percent": 12.34})
    log.close()
    report_page.write(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page
    assert "12.34%" in page
    assert "FDG with K=2, β=0.5" in page
    assert "digits &lt;not&gt; CIFAR" in page
    assert "not finished" in page
    assert "src=" not in page  # nothing is fetched
    assert "<link" not in page
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_of_a_run_that_has_not_logged_anything_can_be_made(tmp_path):
    stored_run(tmp_path)
    config = run_files.read_json(tmp_path / "config.json")
    run_files.write_json(tmp_path / "config.json", {**config, "devices": ["cpu:0"], "versions": {}})
    report_page.write(tmp_path)
    assert "nothing yet" in (tmp_path / "report.html").read_text()


def told(**changed) -> dict:
    """A config as a run writes it, with 10 batches an epoch."""
    values = {name: getattr(Options(), name) for name in FIELDS}
    return {**values, "warmup": "off", "train_size": 320, "batch_size": 32, "epochs": 8, **changed}


@pytest.mark.parametrize("changed", [
    {}, {"warmup": "on"}, {"warmup": "on", "epochs": 300}, {"accumulate": 3, "warmup": "on"}, {"epochs": 1},
    {"epochs": 1, "train_size": 32, "warmup": "on"}, {"learning_rate": 0.005, "warmup": "on"}, {"train_size": 321},
])  # fmt: skip
def test_the_learning_rates_marked_are_those_of_the_schedule(changed):
    config = told(**changed)
    per_epoch = -(-config["train_size"] // 32)
    schedule = paper_schedule(config["learning_rate"], config["epochs"], per_epoch, config["warmup"] == "on")
    true = learning_rates(schedule, config["epochs"] * per_epoch, config["accumulate"])
    marked = np.zeros_like(true)
    for epoch, rate in curves.learning_rates(config):
        marked[round(epoch * per_epoch) :] = rate
    np.testing.assert_allclose(marked, true, rtol=1e-6)  # the schedule's are float32


def test_a_learning_rate_is_marked_where_it_begins_and_not_at_the_next_line_that_was_logged():
    axes = [mock.Mock(), mock.Mock()]
    curves.mark_learning_rates(axes, curves.learning_rates(told(warmup="on")), end=7.0)
    for each in axes:
        assert [call.args[0] for call in each.axvline.call_args_list] == [0.1, 4.0, 6.0]  # the fourth is at 7.3
    labels = [(call.args[0], call.args[1][0]) for call in axes[0].annotate.call_args_list]
    assert labels == [("learning rate 0.01", 0), ("0.1", 0.1), ("0.01", 4.0), ("0.001", 6.0)]


@pytest.mark.parametrize(("points", "marked"), [(1, True), (2, True), (50, False)])
def test_a_curve_of_one_point_can_be_seen(points, marked, tmp_path):
    event = {"train_loss": 1.0, "learning_rate": 0.1}
    svg = curves.draw(told(), [{"epoch": n / 10, **event} for n in range(1, points + 1)], tmp_path / "x.png")
    above = svg[svg.index('id="axes_1"') : svg.index('id="axes_2"')]
    assert (f"fill: {curves.TRAIN}; stroke" in above) is marked


def test_speed_counts_finished_images_and_leaves_pauses_out(monkeypatch):
    from fdg_jax.training import speed

    clock = [100.0]
    monkeypatch.setattr(speed.time, "monotonic", lambda: clock[0])
    pace = speed.Speed()
    assert pace.now() is None
    for _ in range(5):  # 64 images a second, with a pause of 7 s in between that is not training
        pace.finished(64)
        clock[0] += 1
    assert pace.now() == 64
    clock[0] += 7
    pace.paused(7)
    pace.finished(64)
    assert pace.now() == 64
    for _ in range(20):  # from now on 10 a second: after the horizon the old ones are forgotten
        clock[0] += 1
        pace.finished(10)
    assert pace.now() == 10
    pace.compiled()
    assert pace.now() is None


def test_a_line_is_the_mean_of_the_losses_since_the_last_and_a_checkpoint_keeps_what_is_open(tmp_path):
    rates = np.asarray([0.1] * 6 + [0.01] * 6, np.float32)

    def record() -> Record:
        return Record(images=100, batch_size=32, log_every=3, learning_rates=rates)  # 4 batches, the last of 4

    first = record()
    first.open(tmp_path, tensorboard=False)
    first.losses([Metrics(1, 4.0), Metrics(2, 3.0), Metrics(3, 2.0), Metrics(4, 1.0)])
    first.entered(5, 132)
    saved = first.state()
    first.losses([Metrics(5, 9.0), Metrics(6, 9.0)])  # lost: the process is killed after the checkpoint
    first.close()
    second = record()
    second.restore(saved)
    second.open(tmp_path, tensorboard=False)
    second.losses([Metrics(5, 2.0), Metrics(6, 3.0), Metrics(7, 8.0)])
    second.entered(2, 64)
    second.last_line()
    second.close()
    events = run_files.read_metrics(tmp_path / "metrics.jsonl")
    assert [(event["step"], event["train_loss"]) for event in events] == [(3, 3.0), (6, 2.0), (7, 8.0)]
    assert [event["learning_rate"] for event in events] == [0.1, 0.1, 0.01]
    assert second.train_loss() == 3.5  # of the last 4 batches, an epoch's worth: 1, 2, 3, 8
    assert (second.step, second.images, second.sessions) == (7, 196, 2)


def test_where_everything_may_have_compiled_no_speed_is_told(tmp_path):
    record = Record(images=64, batch_size=32, log_every=1, learning_rates=np.ones(2, np.float32))
    record.open(tmp_path, tensorboard=False)
    record.entered(1, 32)
    record.losses([Metrics(1, 1.0)])
    assert record.images_per_second() is None
    record.timed(32, 0.5)
    record.entered(1, 32)
    record.losses([Metrics(2, 1.0)])
    record.close()
    events = run_files.read_metrics(tmp_path / "metrics.jsonl")
    assert [event["images_per_second"] for event in events] == [None, 64.0]
    assert (per_second(None), per_second(1234.5)) == ("- images/s", "1,234 images/s")
    assert "<b>–</b><span>images a second" in report_page.cards([], [events[0]], {})


def test_a_run_stopped_before_its_first_batch_does_not_speak_of_a_checkpoint(tmp_path, capsys):
    stored_run(tmp_path)
    assert closing.tell_stopped(tmp_path, Stopped(signal.SIGINT), "python -m command") == 130
    out = capsys.readouterr().out
    assert "SIGINT before the first batch, so there is no checkpoint. To start from the beginning:\n" in out
    assert "after a checkpoint" not in out
    (tmp_path / "checkpoints" / "step-000000003").mkdir(parents=True)
    closing.tell_stopped(tmp_path, Stopped(signal.SIGINT), "python -m command")
    assert "after a checkpoint. To go on exactly there:\n" in capsys.readouterr().out


@pytest.mark.parametrize(("stood", "said"), [(None, "from the beginning"), (3, "going on after batch 3 of 8\n")])
def test_a_resumed_run_says_where_it_goes_on(stood, said, tmp_path, monkeypatch, capsys):
    dataset = SimpleNamespace(train_images=np.zeros(128), pad=0, mean=(0,), std=(1,), flip=False, fingerprint=None)
    pipeline = SimpleNamespace(restore=lambda state: None)
    options = asked(batch_size=32, epochs=2, tensorboard=False, stall_seconds=0.0)
    job = SimpleNamespace(
        dataset=dataset, options=options, learning_rates=np.ones(8), pipeline=pipeline, steps=8, steps_per_epoch=4
    )
    before = Record(128, 32, 10, job.learning_rates)
    before.open(tmp_path, tensorboard=False)
    before.entered(stood or 0, 0)
    found = ({}, before.state(), session.versions())
    monkeypatch.setattr(checkpoints, "load_newest", lambda root: found if stood else None)
    monkeypatch.setattr(training_loop.Loop, "train", lambda self: None)
    monkeypatch.setattr(training_loop.Loop, "finish", lambda self: ("", ""))
    session_run.run(job, tmp_path, Signals(), session.begin(job, tmp_path, resume=True), LiveDirectory(tmp_path, False))
    before.close()
    assert said in capsys.readouterr().out
    job.steps = 2
    with pytest.raises(BadInput, match="--steps 2: the run stands at batch 3") if stood else nullcontext():
        session.begin(job, tmp_path, resume=True)


def test_a_config_that_was_changed_since_the_checkpoint_is_refused():
    dataset, restored = SimpleNamespace(fingerprint=None), SimpleNamespace(restore=lambda state: None)
    job = SimpleNamespace(options=asked(momentum=0.8, steps=3), pipeline=restored, dataset=dataset)
    record = Record(128, 32, 10, np.ones(8))
    record.log = SimpleNamespace(lines=0)
    about = session.about_job(SimpleNamespace(options=asked(momentum=0.9), dataset=dataset))
    with pytest.raises(BadInput, match=r"config.json is not what .*: momentum is 0.8, was 0.9\. Put it back"):
        session.begin_again(job, record, {}, record.state(), about)
    about["options"].pop("momentum")  # of a version that did not have it; steps may change
    session.begin_again(job, record, {}, record.state(), about)


def test_lines_that_a_resumed_run_has_lost_are_told(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    record = Record(128, 32, 10, np.ones(8))
    for lines, said in ((1, ""), (3, "metrics.jsonl has 1 of the 3 lines that it had at the checkpoint")):
        record.lines = lines
        record.open(tmp_path, tensorboard=False)
        record.close()
        assert said in (err := capsys.readouterr().err) and bool(err) == bool(said)


def test_a_finished_run_is_not_asked_for_less(tmp_path, capsys):
    stored_run(tmp_path)
    summary = {"steps": 5, "epochs": 1.0, "test_error_percent": 9.0, "seconds": 1.0}
    run_files.write_json(tmp_path / "summary.json", summary)
    options = asked(batch_size=32, train_size=160, epochs=2)
    assert launch.finished(tmp_path, dataclasses.replace(options, steps=5)) and "5 batches" in capsys.readouterr().out
    assert not launch.finished(tmp_path, dataclasses.replace(options, steps=6))
    with pytest.raises(BadInput, match="--steps 4: the run stands at batch 5"):
        launch.finished(tmp_path, dataclasses.replace(options, steps=4))


def test_a_resumed_run_says_where_it_is_not_what_it_was(capsys):
    now = {"processor": "one", "usable_cores": 2, "devices": ["cpu:0"], "xla_flags": None, "matmul_precision": None,
           "git_commit": "a1"}  # fmt: skip
    launch.tell_changes(now, now)
    assert capsys.readouterr().err == ""
    launch.tell_changes({**now, "usable_cores": 4, "git_commit": "b2"}, now)
    err = capsys.readouterr().err
    assert "usable_cores 2, was 4; git_commit a1, was b2. It may not" in err and err.count("\n") == 1


def test_tensorboards_curves_end_where_they_cannot_be_written_and_the_run_goes_on(tmp_path, capsys, monkeypatch):
    curves = tensorboard.Scalars(tmp_path, 3)
    curves.add(4, {"train/loss": 1.5, "test/loss": None})
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    assert b"train/loss" in content and b"test/loss" not in content  # there at once
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(curves.writer, "flush", full)
    for step in range(5, 50):
        curves.add(step, {"train/loss": 1.0})
    curves.close()
    assert full.call_count == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "curves end here, they cannot be written: No space left on device" in err


def test_a_run_whose_loss_is_absurd_is_not_done(tmp_path, capsys):
    good = {
        "train_loss": 0.5, "test_error_percent": 9.0, "K": 1, "epochs": 1, "dataset": "digits", "steps": 1,
        "images_per_second": None, "staleness": [0], "updates": [1],
    }  # fmt: skip
    assert closing.tell_done(tmp_path, good) == 0
    out = capsys.readouterr().out
    assert "done: test error 9.00% after 1 epoch on digits, training loss 0.5000, - images/s" in out
    assert "staleness of stage 1, in updates: [0]; updates made: [1] for 1 batch\n" in out
    for loss in (2e6, float("nan"), float("inf")):
        assert closing.tell_done(tmp_path, {**good, "train_loss": loss}) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert "has diverged" in err and f"{loss:.4g}" in err


def test_a_loss_that_is_no_number_ends_the_run_after_its_line(tmp_path):
    record = Record(images=64, batch_size=32, log_every=1, learning_rates=np.ones(2, np.float32))
    record.open(tmp_path, tensorboard=False)
    with pytest.raises(Diverged, match="nan at batch 1"):
        record.losses([Metrics(1, float("nan"))])
    record.close()
    assert run_files.read_metrics(tmp_path / "metrics.jsonl")[0]["train_loss"] is None


def test_a_commit_is_dirty_where_code_differs_and_not_where_tables_do(tmp_path, monkeypatch):
    def git(*words):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True, capture_output=True, text=True)

    code, table = tmp_path / "package" / "sub" / "code.py", tmp_path / "benchmarks" / "results" / "rows.jsonl"
    for file in (code, table, tmp_path / "README.md"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("before")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "HEAD").stdout.strip()
    monkeypatch.setattr(run_files, "__file__", str(code))
    assert run_files.git_commit() == commit
    table.write_text("after")
    (tmp_path / "README.md").write_text("after")
    assert run_files.git_commit() == commit
    code.write_text("after")
    assert run_files.git_commit() == f"{commit}-dirty"
    git("add", "-A")
    assert run_files.git_commit() == f"{commit}-dirty"

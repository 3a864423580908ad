"""`--live`: the view of `python -m fdg_jax.watch` while the process itself trains."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
import urllib.request
from threading import Thread
from unittest import mock

import pytest
import watched_runs
from cifar_processes import QUICK, ROOT, SHORT, read

from fdg_jax.errors import BadInput
from fdg_jax.experiments import cifar
from fdg_jax.runs.progress import Progress
from fdg_jax.training import command_line, live_view, session_run
from fdg_jax.training.live_view import LiveProgress
from fdg_jax.watch.page import Page
from fdg_jax.watch.seen import Watched


def live_of(*words):
    return command_line.read([*words], cifar.PROGRAM).start.live


def test_the_flag_takes_no_value_or_browser():
    assert (live_of(), live_of("--live"), live_of("--live", "--K", "3")) == (None, "terminal", "terminal")
    assert live_of("--live", "browser") == "browser"
    with pytest.raises(BadInput, match="use --live for the terminal or --live browser for a page"):
        live_of("--live", "x")


@pytest.mark.parametrize(("words", "said"), [
    ("--live --quiet", "--live shows the run and --quiet shows nothing"),
    ("--live --dry-run", "--live is for one run, and --dry-run is not. Leave it out. Nothing is trained."),
    ("--live browser --seeds 0,1 --run-dir x", "python -m fdg_jax.watch shows one of several runs"),
])  # fmt: skip
def test_what_cannot_be_shown_is_refused(words, said, capsys):
    assert cifar.main(words.split()) == 2
    assert said in capsys.readouterr().err


def test_the_frame_takes_the_place_of_the_progress_line_and_lines_stay_above_it(tmp_path, capsys):
    run = watched_runs.say(watched_runs.make(tmp_path))
    with LiveProgress(run, 1564, 0, 4) as progress:
        progress.show(10, 1, 0.5, 100.0, False)
        progress.say("epoch 1: test error 5.00% [bold]")
        time.sleep(0.01)
        progress.show(20, 1, 0.5, 100.0, False)
    assert progress.left is not None and progress.left > 0
    out = capsys.readouterr().out
    assert out.startswith("epoch 1: test error 5.00% [bold]\n") and "Stage 1 is the most stale" in out
    assert not progress.looking.is_alive()


def test_without_a_terminal_the_lines_are_as_ever():
    session = type("Session", (), {"start": type("Start", (), {"live": "terminal"}), "record": type("R", (), {
        "step": 0, "unit": "images"})})  # fmt: skip
    options, peers = type("O", (), {"epochs": 1}), type("P", (), {"first": True})
    job = type("Job", (), {"steps": 5, "options": options, "peers": peers})
    assert type(session_run.shown(job, None, session)) is Progress  # type: ignore[arg-type]


def test_a_run_whose_files_are_gone_is_trained_on_without_a_view(tmp_path, capsys):
    run = watched_runs.say(watched_runs.make(tmp_path))
    with LiveProgress(run, 1564, 0, 4) as progress:
        run.rename(tmp_path / "elsewhere")
        progress.looking.once()
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "config.json").write_text("{")
        progress.looking.once()


def test_no_fault_of_the_view_ends_a_training(tmp_path, capsys, monkeypatch):
    run = watched_runs.say(watched_runs.make(tmp_path))
    with LiveProgress(run, 1564, 0, 4) as progress:
        monkeypatch.setattr(progress.drawn, "show", lambda seen: 1 / 0)
        progress.looking.once()
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "devices": []}))
    Page().update(Watched(run).look())
    monkeypatch.setattr(live_view.server, "Server", mock.Mock(side_effect=OSError(24, "Too many open files")))
    with live_view.page(run):
        pass
    error = capsys.readouterr().err
    assert error.startswith("warning: the run is trained without its page: No port of 127.0.0.1 can be had for the pa")
    assert "Too many open files" in error and "--port" not in error


def test_a_view_that_hangs_is_left(monkeypatch):
    """Say on a disk that does not answer. What hangs in a thread would hang in the training, too."""
    hangs, calls = threading.Event(), []
    looking = live_view.Looking(lambda: (calls.append(1), hangs.wait(30)))
    monkeypatch.setattr(live_view, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(looking, "join", lambda seconds: Thread.join(looking, 0.2))
    looking.start()
    while not calls:
        time.sleep(0.01)
    looking.stop()
    assert calls == [1] and looking.is_alive()
    hangs.set()


def test_the_page_is_served_until_the_run_has_ended(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(live_view.server, "LINGER_SECONDS", 0.1)
    run = watched_runs.say(watched_runs.make(tmp_path))
    with live_view.page(run):
        url = re.findall(r"page       (http://127.0.0.1:\d+/) ", capsys.readouterr().out)[0]
        with urllib.request.urlopen(f"{url}state.json", timeout=20) as answer:
            assert json.load(answer)["ended"] is False
        watched_runs.say(run, "ended", exit_code=0)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=20)


def in_terminal(words, seconds=300):
    """(exit code, what a terminal of 100 columns got) of a training command."""
    ours, theirs = pty.openpty()
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "TERM": "xterm-256color", **QUICK}
    settings |= {"COLUMNS": "100", "LINES": "50", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "fdg_jax.experiments.cifar", *words]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, cwd=ROOT, env=settings)
    os.close(theirs)
    out, until = b"", time.monotonic() + seconds
    while time.monotonic() < until:
        ready, _, _ = select.select([ours], [], [], 1.0)
        try:
            more = os.read(ours, 65536) if ready else b""
        except OSError:  # the other end is closed
            break
        out += more
    os.close(ours)
    return process.wait(timeout=60), out.decode("utf-8", "replace")


@pytest.mark.slow
def test_a_training_shows_itself_in_a_terminal(tmp_path):
    words = [*SHORT.split(), "--K", "2", "--live", "--run-dir", str(tmp_path / "run")]
    code, out = in_terminal(words)
    assert code == 0, out
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out)
    assert re.search(r"stage  .*updates late", plain) and "█" in plain and "Stage 1 is the most stale" in plain
    assert "done: test error" in plain and out.rindex("\x1b[?25h") > out.rindex("\x1b[?25l")  # the cursor is back
    code, _ = in_terminal([*SHORT.split(), "--K", "2", "--run-dir", str(tmp_path / "plain")])
    names = ("final_state_sha256", "final_parameters_sha256")
    shown, without = (read(tmp_path / name / "summary.json") for name in ("run", "plain"))
    assert code == 0 and [shown[name] for name in names] == [without[name] for name in names]

"""`python -m fdg_jax.watch`: what it shows of a run's files, whatever state they are in, and when it ends."""

import json
import os
import random
import threading
import time
from unittest import mock

import pytest
import watched_runs

from fdg_jax.runs import incidents, live, run_files
from fdg_jax.runs.live import LiveStage
from fdg_jax.runs.run_files import MetricsLog
from fdg_jax.watch import __main__ as command
from fdg_jax.watch import seen, terminal
from fdg_jax.watch.following import LONGEST, Following
from fdg_jax.watch.seen import Watched
from fdg_jax.watch.view import spark, view


def event(step):
    return {"step": step, "epoch": step / 10, "train_loss": 1.0 / step, "learning_rate": 0.1}


def frame(run, width=100, unicode=True):
    return terminal.text(view(Watched(run).look()), width, unicode)


def test_lines_are_read_once_each_and_only_when_they_are_complete(tmp_path):
    path, made = tmp_path / "metrics.jsonl", Following(tmp_path / "metrics.jsonl")
    assert made.news() == (False, [])
    content, found = b"".join(b'{"step": %d}\n' % i for i in range(1, 30)), []
    for end in range(0, len(content) + 1, 7):  # as a process that is slow at writing
        path.write_bytes(content[:end])
        os.utime(path)
        news = made.news()
        found += news.lines
        assert all(line.endswith(b"}\n") for line in news.lines)
    path.write_bytes(content)
    found += made.news().lines
    assert b"".join(found) == content and made.news() == (False, [])


def test_a_file_that_is_cut_back_or_replaced_is_read_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log, made = MetricsLog(path), Following(path)
    for step in range(1, 6):
        log.append(event(step))
    assert made.news().anew
    log.close()
    for kept in (2, 0):  # back to a checkpoint, as a rollback and a resumed run do
        log = MetricsLog(path, kept)
        for step in range(kept + 1, 9):
            log.append(event(100 * step))
        log.close()
        news = made.news()
        assert news.anew and len(news.lines) == 8
        assert [json.loads(line)["step"] for line in news.lines[kept:]] == [100 * step for step in range(kept + 1, 9)]
    handle = os.open(path, os.O_WRONLY)  # the same file, as long as before, with other lines
    os.pwrite(handle, path.read_bytes().replace(b"800", b"877"), 0)
    os.close(handle)
    assert made.news().anew
    os.truncate(path, 10)
    assert made.news() == (True, [])


def test_what_is_no_file_of_lines_is_no_news(tmp_path):
    made = Following(tmp_path / "metrics.jsonl")
    os.mkfifo(made.path)  # nobody writes into it: a reader would wait for ever
    assert made.news() == (False, [])
    made.path.unlink()
    made.path.mkdir()
    assert made.news() == (False, [])
    made.path.rmdir()
    with made.path.open("wb") as file:
        file.write(b"x" * (LONGEST + 1))
        file.flush()
        assert made.news().lines == []
        file.write(b"y\n{}\n")
        file.flush()
        assert made.news().lines == [b"\n", b"{}\n"]
        file.write(b"z" * (LONGEST + 1) + b"\n{}\n")  # in one reading
    assert made.news().lines == [b"\n", b"{}\n"]  # the rest of the line that was too long counts as damage


def test_a_run_that_goes_on_is_shown(tmp_path):
    run = watched_runs.say(watched_runs.make(tmp_path))
    text = frame(run)
    for words in (
        "resnet8 on auto: FDG with K=3", "training", "epoch          2.583 of 4", "batch          1,010 of 1,564",
        "65%", "training loss  1.8 (at first 1.998, lowest 1.8)", "test error     52.00%", "1,234 images/s", "1m15s",
        "stage  busy             updates late  works on  forward  backward  held  queue",
        "1      █████████░  90%  3             B1001     1,009    1,001     8     7",
        "3      ███████░░░  70%  0             B1003     1,007    1,003     4     7",
        "busy, last minute: the share", "is being trained", "is still falling", "Stage 1 is the most stale",
    ):  # fmt: skip
        assert words in text
    assert "!" not in text and max(map(len, text.splitlines())) <= 100
    narrow = frame(run, 60, unicode=False)
    assert narrow.isascii() is False and "β" in narrow  # a name that is not ours to change
    assert max(map(len, narrow.splitlines())) <= 60 and "queue" not in narrow and "#########.  90%" in narrow


def test_a_run_of_an_earlier_version_is_shown_without_what_is_not_known(tmp_path):
    text = frame(watched_runs.make(tmp_path))
    assert "busy" not in text and "stage  updates late\n1      3\n2      1\n3      0" in text
    assert "training, or it has not begun" in text


DEAD = 2**22 + 1  # more than Linux has processes


@pytest.mark.parametrize(("said", "code", "words"), [
    ({"doing": "ended", "exit_code": 143, "ended_by": "SIGTERM"}, 1, "It was stopped by SIGTERM. --resume goes on"),
    ({"doing": "ended", "exit_code": 138}, 1, "It was stopped by SIGUSR1."),
    ({"doing": "ended", "exit_code": 1, "ended_by": "loss is nan at batch 7"}, 1, "exit code 1: loss is nan at batch"),
    ({"doing": "ended", "exit_code": None}, 1, "It failed with exit code None"),
    ({"pid": DEAD, "unix_seconds": 0.0}, 1, f"It was killed: process {DEAD} on"),
    ({"pid": DEAD}, None, "training"),  # it has just written: of another container, say
    ({"host": "elsewhere", "pid": DEAD, "unix_seconds": 1.7e9}, 1, "It was killed"),
    ({"unix_seconds": 1.7e9}, None, "! The run has not written for"),
    ({"unix_seconds": 1.7e9, "started": None}, None, "! The run has not written for"),  # as on other systems
    ({"unix_seconds": 1.7e9, "started": 1}, 1, "It was killed"),  # its number is that of another process by now
    ({"processes": 2}, None, "! Nothing is known of process 1 of 2."),
])  # fmt: skip
def test_how_a_run_has_ended_is_said(tmp_path, said, code, words):
    run = watched_runs.say(watched_runs.make(tmp_path), **said)
    ended = Watched(run).look().ended
    assert (ended and ended.code) == code and words in frame(run, 200)


def test_what_a_silent_run_did_long_ago_is_not_shown_as_what_it_does(tmp_path):
    run = watched_runs.say(watched_runs.make(tmp_path), unix_seconds=1.7e9)
    shown = view(Watched(run).look())
    assert [(row.busy, row.works_on, row.queue) for row in shown.stages] == [(None, "", "")] * 3
    assert "time left" not in dict(shown.facts) and shown.stages[0].backward == "1,001"


def test_what_a_stage_holds_is_unknown_until_it_has_gone_back_once(tmp_path):
    """After a resume the batches in flight are the checkpoint's, and no look has seen their forward passes."""
    stage = LiveStage(1, forward=1010)
    run = watched_runs.say(watched_runs.make(tmp_path), stages=(stage, stage._replace(k=2, backward=1009)))
    assert [row.held for row in view(Watched(run).look()).stages] == ["", "1", ""]


def test_a_finished_run_is_shown_and_left(tmp_path, capsys):
    run = watched_runs.make(tmp_path, error=12.5)
    began = time.monotonic()
    assert command.main([str(run)]) == 0 and time.monotonic() - began < 5
    out = capsys.readouterr().out
    assert "It has finished." in out and "works on" not in out
    watched_runs.say(run, "ended", exit_code=0)
    assert command.main([str(run)]) == 0
    assert "busy, newest session: the share" in capsys.readouterr().out
    watched_runs.say(run, "ended", exit_code=1, ended_by="")  # its loss was absurd
    assert command.main([str(run), "--once"]) == 1
    watched_runs.say(run, "finishing")
    assert Watched(run).look().ended is None  # the report is being written


@pytest.mark.parametrize("code", [0, 143])
def test_a_run_that_has_ended_is_not_served_and_its_report_is_named_if_it_is_there(tmp_path, capsys, code):
    run = watched_runs.say(watched_runs.make(tmp_path, error=12.5 if code == 0 else None), "ended", exit_code=code)
    assert command.main([str(run), "--browser"]) == bool(code)
    out = capsys.readouterr().out
    assert "has already ended" in out and "http" not in out and "report" not in out
    (run / "report.html").write_text("")
    for words in (["--browser"], ["--once"], []):
        assert command.main([str(run), *words]) == bool(code)
        assert f"Its report: {run / 'report.html'}" in " ".join(capsys.readouterr().out.split())


def test_a_run_of_an_earlier_version_that_was_killed_has_ended(tmp_path):
    run = watched_runs.make(tmp_path)
    assert Watched(run).look().ended is None
    for name in ("config.json", "metrics.jsonl"):
        os.utime(run / name, (1e9, 1e9))
    ended = Watched(run).look().ended
    assert ended and ended.code == 1 and "it was stopped or killed" in ended.said


def test_a_process_of_another_machine_is_silent_by_our_own_clock(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(seen.time, "monotonic", lambda: now[0])
    run = watched_runs.say(watched_runs.make(tmp_path), host="elsewhere", unix_seconds=time.time() - 60)
    made = Watched(run)
    assert "has not written for 1m" in made.look().wrong[0]
    watched_runs.say(run, host="elsewhere", unix_seconds=time.time() - 50)  # its clock is wrong, and it goes on
    assert made.look().wrong == []
    now[0] += 700
    ended = made.look().ended
    assert ended and "since 11m40s" in ended.said


def test_what_went_wrong_is_shown(tmp_path):
    run = watched_runs.say(watched_runs.make(tmp_path, note="NOT CIFAR-10"))
    for step in range(1, 8):
        incidents.add(run, step, f"stage k=2 refused update {step}.")
    (run / "stalls.jsonl").write_text("{}\n")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1}\nnonsense\n{"step": "x"}\n')
    text = frame(run)
    for words in (
        "! Note: NOT CIFAR-10", "! 7 incidents, of which the newest are:",
        "! After batch 7: stage k=2 refused update 7.",
        "! 1 time nothing made progress for 600 s", "! 3 lines of metrics.jsonl cannot be read and are left out.",
    ):  # fmt: skip
        assert words in text
    assert "After batch 2" not in text


def test_a_run_that_is_deleted_while_it_is_watched_has_ended(tmp_path):
    run = watched_runs.say(watched_runs.make(tmp_path))
    made = Watched(run)
    assert made.look().ended is None
    (run / "config.json").write_text("{")
    assert "not valid JSON" in made.look().wrong[0]
    run.rename(tmp_path / "other")
    ended = made.look().ended
    assert ended and "deleted or renamed" in ended.said


def test_names_are_no_orders_to_the_terminal(tmp_path):
    name = "\x1b[31mred\x07\u202e<b>"
    run = watched_runs.say(watched_runs.make(tmp_path, dataset=name, note=name), "ended", exit_code=1, ended_by=name)
    text = frame(run)
    assert "?[31mred??<b>" in text and not {"\x1b", "\x07", "\u202e"} & {*text}


def damage(content: bytes, dice: random.Random) -> bytes:
    """Bytes as a full disk, an editor or a fool leaves them."""
    way = dice.randrange(6)
    at = dice.randrange(len(content) + 1)
    if way == 0:
        return content[:at]
    if way == 1:
        return content[:at] + bytes(dice.randrange(256) for _ in range(8)) + content[at:]
    if way == 2:
        return content.replace(b"1", dice.choice([b"1e999", b"-", b"[", b'"x"', b"null", b"99999999999999999999999"]))
    if way == 3:
        return dice.choice([b"", b"[]", b"{}", b"null\n", b"[" * 9999, b'"\\ud800"', b"\xff\xfe", b"NaN"])
    if way == 4:
        return content.replace(b":", dice.choice([b": {}, \"x\":", b": [[", b": true, \"y\":", b""]))
    value = dice.choice([b"-5", b"null", b'"text"', b"[1, 2]", b"{}", b"1e300", b"9223372036854775807", b"true"])
    return content.replace(dice.choice([b"3", b"1234.0", b'"training"', b"null", b"0.1", b"7"]), value)


FILES = ("config.json", "metrics.jsonl", "summary.json", "live.json", "live-1.json", "incidents.jsonl", "stalls.jsonl")


@pytest.mark.parametrize("times", [40, pytest.param(3000, marks=pytest.mark.slow)])
def test_damaged_files_are_told_and_never_raise(tmp_path, times, capsys):
    run = watched_runs.say(watched_runs.make(tmp_path, error=12.5, trained=1, lines=4), processes=2)
    watched_runs.say(run, process=1, processes=2)
    incidents.add(run, 7, "refused")
    (run / "stalls.jsonl").write_text('{"k": 1}\n')
    whole, dice, codes = {name: (run / name).read_bytes() for name in FILES}, random.Random(0), []
    for _ in range(times):
        for name in FILES:
            (run / name).write_bytes(whole[name])
        for name in dice.sample(FILES, dice.choice([1, 1, 2, 7])):
            (run / name).write_bytes(damage(whole[name], dice))
        codes.append(command.main([str(run), "--once"]))
        out, err = capsys.readouterr()
        assert (codes[-1] == 2) is err.startswith("error: ") and err.count("\n") <= 1 and bool(out) is not bool(err)
    assert {*codes} == {0, 2}


def test_a_run_that_has_not_begun_is_waited_for(tmp_path, capsys):
    run = tmp_path / "run"
    assert command.main([str(run), "--wait", "0.1"]) == 2
    err = capsys.readouterr().err
    assert "holds no run yet. Waiting 0.1 s" in err and "is not there. Name the run directory" in err
    later = threading.Timer(0.3, lambda: watched_runs.make(tmp_path, error=12.5))
    later.start()
    try:
        deadline = time.monotonic() + 20
        while (code := command.main([str(run), "--wait", "20"])) == 2 and time.monotonic() < deadline:
            continue  # config.json was half written when it was read
    finally:
        later.join()
    assert code == 0


@pytest.mark.parametrize(("words", "said"), [
    (["--once"], "is not there"), (["--wait", "-1"], "use a number of seconds"), (["--wait", "nan"], "0 or more"),
    (["--twice"], "is no flag"),
])  # fmt: skip
def test_what_cannot_be_watched_is_refused(tmp_path, words, said, capsys):
    assert command.main([str(tmp_path / "none"), *words]) == 2
    assert said in capsys.readouterr().err


def test_what_the_system_refuses_is_said_in_one_sentence(tmp_path, capsys, monkeypatch):
    assert command.main([str(tmp_path / ("a" * 300))]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "cannot be looked at: File name too long. Name the run directory" in said
    run = watched_runs.say(watched_runs.make(tmp_path))
    monkeypatch.setattr(live, "read_all", mock.Mock(side_effect=PermissionError(13, "Permission denied")))
    assert command.main([str(run), "--once"]) == 2
    assert capsys.readouterr().err == f"error: {run} cannot be looked at: Permission denied.\n"


def test_a_folder_of_runs_and_a_file_are_refused_with_a_way_out(tmp_path, capsys):
    watched_runs.make(tmp_path)
    assert command.main([str(tmp_path)]) == 2
    assert f"it holds 1 runs. Name one of them, such as {tmp_path / 'run'}" in capsys.readouterr().err
    assert command.main([str(tmp_path / "run" / "config.json")]) == 2
    assert "is no directory" in capsys.readouterr().err


def test_help_teaches_what_the_columns_mean(capsys):
    with pytest.raises(SystemExit) as left:
        command.main(["--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert "held: batches whose forward pass" in out and "Exit codes:" in out


def test_a_file_or_pipe_gets_plain_lines_and_ends_with_the_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(terminal, "PLAIN_SECONDS", 0.0)
    run = watched_runs.say(watched_runs.make(tmp_path))
    made, looks = Watched(run), []

    def look():
        looks.append(1)
        if len(looks) == 3:
            incidents.add(run, 5, "refused <it>")
        if len(looks) == 4:
            watched_runs.say(run, "ended", exit_code=143, ended_by="SIGTERM")
        return made.look()

    ended = terminal.follow(look, terminal.Plain().show, 0.0).ended
    out = capsys.readouterr().out
    assert ended and ended.code == 1 and len(looks) == 4 and "\x1b" not in out
    assert out.count("resnet8 on auto") == 2  # a frame at first and at the end
    assert out.count("WARNING: After batch 5: refused <it>") == 1
    assert "training  epoch 2.583 of 4  batch 1,010 of 1,564" in out and "busy 90% 80% 70%" in out


def test_ctrl_c_ends_the_view_and_not_the_run(tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(terminal, "follow", interrupted)
    assert command.main([str(watched_runs.say(watched_runs.make(tmp_path)))]) == 130
    assert "The run goes on" in capsys.readouterr().err


def test_a_spark_line_is_as_wide_as_asked_and_falls_with_the_loss():
    assert spark([3.0, 2.0, 1.0], 80, "abc") == "cba" and spark([1.0], 80, "abc") == ""
    assert spark([1.0] * 500, 20, "abc") == "a" * 20
    drawn = spark([float(i) for i in range(1000, 0, -1)], 40, terminal.BLOCKS)
    assert len(drawn) == 40 and list(drawn) == sorted(drawn, reverse=True)


def test_looking_at_a_run_writes_nothing(tmp_path):
    run = watched_runs.say(watched_runs.make(tmp_path))
    before = {path.name: path.stat().st_mtime_ns for path in run.iterdir()}
    for path in run.iterdir():
        path.chmod(0o400)
    run.chmod(0o500)
    try:
        frame(run)
    finally:
        run.chmod(0o700)
    assert {path.name: path.stat().st_mtime_ns for path in run.iterdir()} == before


def test_a_live_file_is_written_whole_or_not_at_all(tmp_path):
    live.write(tmp_path / "none", live.Live("training"))
    assert not (tmp_path / "none").exists()
    live.write(tmp_path, live.Live("training", train_loss=float("nan"), per_second=float("inf")))
    found = live.read(tmp_path)
    assert found and found.train_loss is found.per_second is None and found.pid == os.getpid()
    assert [path.name for path in tmp_path.iterdir()] == ["live.json"]
    live.end(tmp_path, 0, 143)
    found = live.read(tmp_path)
    assert found and (found.doing, found.exit_code) == ("ended", 143)
    watched_runs.say(tmp_path, pid=DEAD)
    live.end(tmp_path, 0, 1)  # another run has the directory now
    found = live.read(tmp_path)
    assert found and found.doing == "training"
    run_files.write_json(tmp_path / "live.json", {"doing": "training"})
    assert live.read(tmp_path) is None and live.read_all(tmp_path) == {}

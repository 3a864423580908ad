"""The launcher with real processes and real signals: all processes end together, and nothing is left running."""

import os
import signal

import pytest
from launched import GRANDCHILD, QUICK, STUBBORN, WAIT, Launched

from fdg_jax.launch import resuming

pytestmark = pytest.mark.usefixtures("without_nohup")

# A process that fails


def test_a_process_killed_by_a_signal_is_named_and_takes_all_others_with_it():
    with Launched(GRANDCHILD + "time.sleep(60)") as launched:
        victim, _ = launched.started()[1]
        os.kill(victim, signal.SIGKILL)
        exit_code, _, err = launched.finish()
    expected = f"error: process 1 (pid {victim}) was killed by SIGKILL; the others were stopped."
    assert exit_code == 137 and err.splitlines()[-1] == expected


def test_a_process_that_does_not_obey_sigterm_is_killed():
    with Launched(STUBBORN, count=2) as launched:
        os.kill(launched.started()[1][0], signal.SIGKILL)
        exit_code, _, err = launched.finish()
    assert exit_code == 137 and "SIGKILL sent to process 0" in err and "process 1" in err.splitlines()[-1]


def test_the_exit_code_is_that_of_the_process_that_failed_first():
    code = "on_sigterm(lambda: os._exit(5))\nsignal.signal(signal.SIGUSR2, lambda *_: os._exit(3))\n"
    with Launched(code + WAIT) as launched:
        os.kill(launched.started()[1][0], signal.SIGUSR2)
        exit_code, _, err = launched.finish()
    assert exit_code == 3 and "process 1" in err and "exit code 3" in err and "exit code 5" not in err


def test_bad_input_is_said_by_the_processes_and_not_called_a_crash():
    code = "print('error: K=0', file=sys.stderr)\nsys.exit(2)"
    with Launched(code, "--restart", "3", words=("--run-dir", "x")) as launched:
        exit_code, _, err = launched.finish()
    assert exit_code == 2 and "] error: K=0" in err
    assert "restart" not in err and "--resume" not in err and "ended with exit code 2" in err.splitlines()[-1]


def test_after_a_process_stopped_with_a_checkpoint_the_others_are_let_be_to_write_theirs():
    code = "on_sigterm(lambda: os._exit(9))\nif me == 1: sys.exit(143)\nsaved(0.6)"  # 0.6: longer than SIGKILL takes
    with Launched(code, "--restart", "1", words=("--run-dir", "x")) as launched:
        exit_code, out, err = launched.finish()
    assert exit_code == 143 and out.count("saved") == 2
    assert "was stopped by SIGTERM; the others were stopped. Go on" in err and "All processes are restarted" not in err


# Signals to the launcher


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_is_handed_to_every_process_once_as_sigterm(number):
    words = ("--run_dir=x",) if number == signal.SIGINT else ()  # only then --resume may be a flag of the program
    with Launched("on_sigterm(saved)\n" + WAIT, words=words) as launched:
        launched.started()
        launched.process.send_signal(number)
        exit_code, out, err = launched.finish()
    assert exit_code == 128 + number and out.count("saved") == 3
    assert err.splitlines()[-1] == f"stopped by {number.name}.{' Go on with --resume.' if words else ''}"


def test_nothing_is_left_when_the_launcher_itself_is_killed():
    with Launched(STUBBORN) as launched:
        launched.started()
        launched.process.kill()
        launched.finish()


# Restarts

DIES_TWICE = """
path = sys.argv[sys.argv.index("--run-dir") + 1] + "/attempts"
if me == 1:
    with open(path, "a") as file:
        print(time.monotonic(), *sys.argv[1:], file=file)
while not os.path.exists(path) or len(open(path).readlines()) < 3:
    if me == 1: os.kill(os.getpid(), 9)
    time.sleep(0.01)
"""


def test_a_restart_that_succeeds_at_the_third_time_goes_on_with_the_run(tmp_path):
    with Launched(DIES_TWICE, "--restart", "5", words=("--run-dir", str(tmp_path)), count=2) as launched:
        exit_code, _, err = launched.finish()
    attempts = [line.split() for line in (tmp_path / "attempts").read_text().splitlines()]
    assert exit_code == 0 and [words.count("--resume") for words in attempts] == [0, 1, 1]
    assert all("--resume auto --coordinator" in " ".join(words) for words in attempts[1:])
    first, second, third = (float(words[0]) for words in attempts)
    assert second - first > 0.1 and third - second > 0.2
    assert "restarted in 0.1 s: restart 1 of 5." in err and "restarted in 0.2 s: restart 2 of 5." in err


def test_restarts_come_to_an_end_and_a_signal_ends_the_wait_before_one():
    with Launched("sys.exit(7)", "--restart", "1", words=("--run-dir", "x")) as launched:
        exit_code, _, err = launched.finish()
    assert exit_code == 7 and err.count("warning:") == err.count("error:") == 1
    slow = QUICK.replace("FIRST_WAIT_SECONDS = 0.1", "FIRST_WAIT_SECONDS = 60.0")
    with Launched("sys.exit(7)", "--restart", "1", words=("--run-dir", "x"), by=("-c", slow)) as launched:
        while "restarted in 60 s" not in (line := launched.process.stderr.readline()):
            assert line, "the launcher ended"
        launched.process.send_signal(signal.SIGTERM)
        assert launched.finish()[0] == 143


def test_a_resume_that_was_asked_for_is_not_asked_for_twice():
    assert resuming(["-m", "x"]) == ["-m", "x", "--resume", "auto"]
    assert resuming(["x", "--resume"]) == ["x", "--resume"] and resuming(["--resume=auto"]) == ["--resume=auto"]

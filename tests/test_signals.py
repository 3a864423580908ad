"""What each signal does to the command, without training anything."""

import os
import signal
import time
from threading import Timer

import pytest

from fdg_jax.machine import signals
from fdg_jax.machine.signals import Signals, Stopped

ALL = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]
pytestmark = pytest.mark.usefixtures("without_nohup")


class Left(Exception):
    """In place of the end of this process."""


@pytest.fixture(autouse=True)
def _leaving(monkeypatch):
    def leave(code):
        raise Left(code)

    monkeypatch.setattr(signals.os, "_exit", leave)


def send(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0.01)  # Python handles it between two instructions


@pytest.mark.parametrize("number", ALL, ids=lambda number: number.name)
def test_a_signal_is_remembered_and_given_back(number, capfd):
    before = [signal.getsignal(each) for each in ALL]
    with Signals() as taken:
        taken.check()
        send(number)
        with pytest.raises(Stopped, match=number.name):
            taken.check()
        assert taken.number == number
    assert [signal.getsignal(each) for each in ALL] == before
    assert f"{number.name}: stopping after the current operation" in capfd.readouterr().err


@pytest.mark.parametrize(("sent", "code"), [
    ("TERM INT", 130), ("INT INT", 130), ("HUP TERM INT", 130), ("HUP HUP USR1 USR1 TERM", None), ("TERM HUP", None),
])  # fmt: skip
def test_only_a_second_sigint_or_sigterm_leaves_at_once(sent, code, capfd):
    with Signals() as taken:
        *before, last = [signal.Signals[f"SIG{name}"] for name in sent.split()]
        for number in before:
            send(number)
        if code is None:
            send(last)
        else:
            with pytest.raises(Left, match=str(code)):
                send(last)
        assert taken.number == before[0]
    assert ("stopped at once" in capfd.readouterr().err) is (code is not None)


def test_sighup_that_is_ignored_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does; the fixture undoes it
    with Signals() as taken:
        send(signal.SIGHUP)
        taken.check()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_long_wait_is_ended_at_once_by_a_signal_before_or_within_it():
    with Signals() as taken:
        Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(Stopped, match="SIGTERM"), taken.at_once():
            time.sleep(60)
        with pytest.raises(Stopped, match="SIGTERM"), taken.at_once():
            raise AssertionError("it does not begin")
        assert not taken.raising


def test_a_handler_does_not_mind_a_closed_stderr():
    before = os.dup(2)
    try:
        os.close(2)
        with Signals() as taken:
            send(signal.SIGTERM)
            assert taken.number == signal.SIGTERM
    finally:
        os.dup2(before, 2)
        os.close(before)

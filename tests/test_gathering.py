"""Processes come together before JAX joins them: all go on at once, and a stranger is neither let in nor disturbed."""

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fdg_jax.errors import BadInput
from fdg_jax.transport import joining
from fdg_jax.transport.joining import Absent, gather


def outcomes(coordinator, numbers, processes, seconds=5.0, delay=0.0):
    """What became of each process, begun one after the other: None, or what it raised."""

    def one(index, number):
        time.sleep(index * delay)
        try:
            gather(coordinator, number, processes, seconds)
        except (BadInput, Absent) as error:
            return error

    with ThreadPoolExecutor(len(numbers)) as pool:
        return list(pool.map(one, range(len(numbers)), numbers))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_all_go_on_when_the_last_has_come_whoever_is_first(order, coordinator):
    assert outcomes(coordinator, order, 3, delay=0.1) == [None] * 3
    assert outcomes(coordinator, order, 3) == [None] * 3  # the port is free again


def test_who_is_missing_is_named(coordinator):
    first, second = outcomes(coordinator, (0, 2), 3, seconds=0.5)
    assert type(first) is type(second) is Absent
    assert str(first) == "process 1" and f"process 0 at {coordinator}, or another process" in str(second)


def test_a_number_that_is_there_already_is_refused(coordinator):
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(outcomes, coordinator, (0, 1), 3, 2.0)
        time.sleep(0.5)
        with pytest.raises(BadInput, match=f"process 0 at {coordinator} does not expect process 1, or already"):
            gather(coordinator, 1, 3, 1.0)
        with pytest.raises(BadInput, match="does not expect process 3, or already has one"):
            gather(coordinator, 3, 4, 1.0)
        gather(coordinator, 2, 3, 1.0)
        assert waiting.result() == [None, None]


def test_one_that_has_gone_may_come_again(coordinator):
    host, _, port = coordinator.rpartition(":")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(gather, coordinator, 0, 2, 5.0)
        time.sleep(0.2)
        with socket.create_connection((host, int(port))) as lost:
            assert lost.recv(20) == joining.GREETING
        with socket.create_connection((host, int(port))) as stray:
            stray.sendall(b"GET / HTTP/1.1\r\n\r\n")
        gather(coordinator, 1, 2, 5.0)
        waiting.result()


def test_the_port_of_another_program_is_refused_and_it_is_sent_nothing(coordinator, monkeypatch):
    monkeypatch.setattr(joining, "STRANGE_SECONDS", 0.1)
    host, _, port = coordinator.rpartition(":")
    got = []
    with socket.create_server((host, int(port))) as other:

        def serve():
            while True:
                try:
                    way, _ = other.accept()
                except OSError:
                    return
                with way, contextlib.suppress(ConnectionResetError):
                    way.sendall(b"\0\0\x12\4" + bytes(20))  # as gRPC begins
                    got.append(way.recv(100))

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(BadInput, match=f"process 0 cannot listen at {coordinator}: Address already in use"):
            gather(coordinator, 0, 2, 1.0)
        with pytest.raises(BadInput, match=f"another program listens at {coordinator}"):
            gather(coordinator, 1, 2, 3.0)
        other.shutdown(socket.SHUT_RDWR)
    assert not any(got)

"""A port that is held goes to nobody but the server that it is meant for, however late that one comes."""

import socket
import struct
import subprocess
import sys

import pytest
from launched import Launched

from fdg_jax.machine.ports import endpoint, hold_port

HOST = "127.0.0.1"
ONLY_PORTS = 51  # Linux's IP_LOCAL_PORT_RANGE, which Python does not name: the ports that a connection may be given
# Is the port of process 0's copies still held when JAX has been joined, but has copied nothing?
JOINED = """
import os, socket, sys
import jax
import fdg_jax
fdg_jax.join_processes(sys.argv[1], 0, 1, 1, "127.0.0.1")
host, port = jax.config.values["jax_cross_host_transfer_socket_address"].split(":")
with socket.socket() as other:
    try:
        other.bind((host, int(port)))
    except OSError as error:
        print(error.strerror, flush=True)
os._exit(0)
"""
# Is the port at which process 0 will listen held when it begins, and can it listen there?
BEGINNING = """
import socket
if me == 0:
    host, port = sys.argv[sys.argv.index("--coordinator") + 1].split(":")
    with socket.socket() as other:
        try:
            other.bind((host, int(port)))
        except OSError as error:
            print(error.strerror)
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, int(port)))
        server.listen()
        print("listens")
"""


def connected_from(port, place):
    """Whether a connection to a place can be given a port at this side."""
    with socket.socket() as way:
        try:
            way.setsockopt(socket.IPPROTO_IP, ONLY_PORTS, struct.pack("I", port << 16 | port))
        except OSError:
            pytest.skip("this system does not let a connection ask for a port")
        try:
            way.connect(place)
        except OSError:
            return False
        return way.getsockname()[1] == port


def test_no_connection_is_given_a_port_while_it_is_held():
    with socket.create_server((HOST, 0)) as somewhere:
        with hold_port(HOST) as held:
            port = held.getsockname()[1]
            assert not connected_from(port, somewhere.getsockname())
        assert connected_from(port, somewhere.getsockname())


def test_a_server_that_comes_late_listens_at_a_held_port_and_is_reached():
    with hold_port(HOST) as held, socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(held.getsockname())
        server.listen()
        with socket.create_connection(held.getsockname()) as way, server.accept()[0] as other:
            other.sendall(b"here")
            assert way.recv(4) == b"here"


def test_an_address_of_another_machine_has_no_port_here():
    with pytest.raises(OSError, match="Cannot assign requested address"):
        hold_port("203.0.113.9")


def test_the_port_of_copies_is_held_until_jax_listens_there():
    with hold_port(HOST) as held:
        told = subprocess.run([sys.executable, "-c", JOINED, endpoint(held)], capture_output=True, text=True)
    assert told.stdout == "Address already in use\n", told.stderr


def test_the_launcher_holds_the_port_at_which_process_0_will_listen():
    with Launched(BEGINNING, count=2) as launched:
        exit_code, out, err = launched.finish()
    assert exit_code == 0, err
    assert [line.partition("] ")[2] for line in out.splitlines()] == ["Address already in use", "listens"]

"""A port that is held goes to nobody but the server that it is meant for, however late that one comes."""

import errno
import os
import socket
import sys

import pytest
from launched import Launched

from fdg_jax.machine.child import hold_port

HOST = "127.0.0.1"
TAKEN = os.strerror(errno.EADDRINUSE)
# Prints what becomes of a socket at host:port that has no SO_REUSEADDR.
STRANGER = """
with socket.socket() as stranger:
    try:
        stranger.bind((host, int(port)))
    except OSError as error:
        print(error.strerror, flush=True)
"""
# A process of the launcher; process 0 looks at the coordinator's port and then listens there.
BEGINNING = f"""
import socket
if me:
    sys.exit()
host, port = sys.argv[sys.argv.index("--coordinator") + 1].split(":")
{STRANGER}
with socket.create_server((host, int(port))):  # it sets SO_REUSEADDR
    print("listens")
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ports are held on Linux only")


def split(place):
    host, _, port = place.partition(":")
    return host, int(port)


def test_a_server_that_comes_late_listens_at_a_held_port_and_is_reached():
    place, held = hold_port(HOST)
    with held:
        with socket.socket() as stranger, pytest.raises(OSError, match=TAKEN):
            stranger.bind(split(place))
        server = socket.create_server(split(place))  # it sets SO_REUSEADDR
        with server, socket.create_connection(split(place)) as way, server.accept()[0] as other:
            other.sendall(b"here")
            assert way.recv(4) == b"here"


def test_the_launcher_holds_the_port_at_which_process_0_will_listen():
    with Launched(BEGINNING, count=2) as launched:
        exit_code, out, err = launched.finish()
    assert exit_code == 0, err
    assert [line.partition("] ")[2] for line in out.splitlines()] == [TAKEN, "listens"]

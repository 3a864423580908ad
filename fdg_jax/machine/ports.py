"""Ports of the network."""

import socket


def free_port(address: str) -> int:
    """A port that nobody uses at an IPv4 address at the moment. Another program may take it a moment later.

    Raises OSError if the address is not one of this machine's.
    """
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]

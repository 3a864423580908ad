"""Reserves network ports for servers that will listen there later."""

import socket
import sys


def hold_port(address: str) -> tuple[str, socket.socket]:
    """A free port at an IPv4 address, and a socket that holds it until it is closed or its process ends.

    On Linux, other programs then cannot get the port. Only a server that sets SO_REUSEADDR can listen there, such as
    JAX's servers and `fdg_jax.transport.gathering`. Other systems would refuse these servers. There the returned socket
    is closed already, so another program may take the port.

    Returns: (address and port, e.g. "127.0.0.1:40001", the socket).

    Raises OSError if the address is not one of this machine's.
    """
    holder = socket.socket()
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((address, 0))
    except OSError:
        holder.close()
        raise
    place = f"{address}:{holder.getsockname()[1]}"
    if sys.platform != "linux":
        holder.close()
    return place, holder

"""Ports of the network, held until who is to listen there does."""

import socket


def hold_port(address: str) -> socket.socket:
    """A socket that holds a port of its own at an IPv4 address, until it is closed or its process ends.

    Meanwhile the system gives the port to no other program and to no connection, but a server that sets SO_REUSEADDR
    can listen there: JAX's servers do, and so does `fdg_jax.transport.gathering`.

    Raises OSError if the address is not one of this machine's.
    """
    holder = socket.socket()
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((address, 0))
    except OSError:
        holder.close()
        raise
    return holder


def endpoint(holder: socket.socket) -> str:
    """The address and the port that a socket has, e.g. "127.0.0.1:40001"."""
    address, port = holder.getsockname()
    return f"{address}:{port}"

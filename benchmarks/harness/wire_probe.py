"""Measures a network between two hosts: the round-trip time, and the speed of a long stream over TCP.

    python -m benchmarks.harness.wire_probe ADDRESS PORT          answers, until its one visitor has left
    python -m benchmarks.harness.wire_probe ADDRESS PORT BYTES    visits it, and prints both as JSON
"""

import json
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.harness.children import Child, run

PORT = 7171
ROUNDS = 10
STREAMS = 4  # the first streams only open the connection's window
HEAD = 8  # bytes of the length before a stream


def answer(address: str, port: int) -> None:
    """Reads a visitor's streams, and answers each with one byte."""
    with socket.create_server((address, port)) as server:
        print(json.dumps("ready"), flush=True)
        visitor, _ = server.accept()
        with visitor:
            visitor.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while head := visitor.recv(HEAD, socket.MSG_WAITALL):
                left = int.from_bytes(head, "big")
                while left:
                    left -= len(visitor.recv(min(left, 2**20)))
                visitor.sendall(b"!")


def visit(address: str, port: int, size: int) -> dict[str, Any]:
    """Returns: round_trip_seconds (median) and bytes_per_second of the last stream."""
    with socket.create_connection((address, port)) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def seconds(count: int) -> float:
            start = time.perf_counter()
            server.sendall(count.to_bytes(HEAD, "big") + bytes(count))
            server.recv(1)
            return time.perf_counter() - start

        there_and_back = statistics.median([seconds(0) for _ in range(ROUNDS)])
        took = [seconds(size) for _ in range(STREAMS)][-1]
    return {"round_trip_seconds": there_and_back, "bytes_per_second": size / (took - there_and_back)}


def measured(inside: Sequence[Sequence[str]], address: str, size: int) -> dict[str, Any]:
    """The result of `visit` between two hosts.

    Arguments:
        inside: the words in front of a command on the visitor's host, and on the other host.
        address: of the other host.
        size: bytes of a stream.
    """
    words = ("-m", __name__, address, str(PORT))
    with Child(words, before=inside[1]) as server:
        server.answer()
        return json.loads(run(*words, str(size), before=inside[0]))


if __name__ == "__main__":
    where, listening, *sizes = sys.argv[1:]
    if sizes:
        print(json.dumps(visit(where, int(listening), int(sizes[0]))))
    else:
        answer(where, int(listening))

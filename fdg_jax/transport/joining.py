"""Joins several processes into one pipeline, on one host or on several: `jax.distributed`, set up for it."""

import os
import socket
import sys
from ipaddress import ip_address
from typing import Any

import jax

from fdg_jax.errors import BadInput
from fdg_jax.transport.devices import request_cpu_devices

HEARTBEAT_SECONDS = 60  # a process that is stopped for 30 s is waited for
JOINING_SECONDS = 120  # for all processes to come
TOO_LATE = "JAX has already started, or has been joined. Join the processes once, before anything makes an array."
TRANSFER_BYTES = 4 * 2**20  # buffers of a socket between CPUs; JAX's default takes 6 GB of address space


def join_processes(coordinator: str, process: int, processes: int, K: int, address: str = "127.0.0.1") -> None:
    """Joins this process with the others of a pipeline. Call it before JAX computes anything, in every process.

    Afterwards `Pipeline` spreads its stages over the processes. Each process must then make the same calls in the same
    order. A process that ends by an exception leaves at once, without what it registered by `atexit`: JAX would wait
    there for the others, which wait for it.

    Nothing that is exchanged is encrypted or authenticated: use addresses of a private network.

    Arguments:
        coordinator: IP address and port at which process 0 listens, e.g. "10.0.0.1:1234".
        process: this process's number, from 0.
        processes: number of processes.
        K: number of stages.
        address: the IP address at which other processes reach this one.

    Raises:
        BadInput: an argument is wrong, or JAX has already started.
    """
    host, _, port = coordinator.rpartition(":")
    if not (is_ip(host) and port.isdecimal() and 0 < int(port) < 2**16):
        raise BadInput(f"coordinator {coordinator!r} is no IP address with a port. Write it like 10.0.0.1:1234.")
    if not is_ip(address):
        raise BadInput(f"address {address!r} is no IP address. A host name may stand for all interfaces of a host.")
    if not 0 <= process < processes <= K:
        raise BadInput(
            f"process {process} of {processes} with K={K} stages: processes are counted from 0, and each has a stage. "
            "Use 1 to K processes."
        )
    # Each process emulates K CPU devices, as one process for all stages would: XLA's thread pools are then as large.
    if not request_cpu_devices(K, exactly=True):
        raise BadInput(TOO_LATE)
    jax.config.update("jax_cross_host_transfer_socket_address", f"{address}:{free_port(address)}")
    jax.config.update("jax_cross_host_transport_addresses", f"{address}:0")  # JAX's default is all interfaces
    jax.config.update("jax_cross_host_transfer_transfer_size", TRANSFER_BYTES)
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            coordinator_bind_address=coordinator,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            initialization_timeout=JOINING_SECONDS,
        )
    except RuntimeError as error:
        if type(error) is not RuntimeError:  # a JaxRuntimeError: the others did not come, say
            raise
        raise BadInput(TOO_LATE) from error
    sys.excepthook = leave_at_once


def leave_at_once(*raised: Any) -> None:
    """Prints an error and ends the process, in the place of `sys.excepthook`."""
    sys.__excepthook__(*raised)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(1)


def is_ip(text: str) -> bool:
    """Whether a text is an IP address, such as 10.0.0.1."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def free_port(address: str) -> int:
    """A port that nobody uses at an address."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]

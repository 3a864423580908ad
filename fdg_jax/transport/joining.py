"""Joins several processes into one pipeline, on one host or on several: `jax.distributed`, set up for it."""

import os
import sys
from ipaddress import AddressValueError, IPv4Address
from typing import Any

import jax

from fdg_jax.errors import BadInput, reason
from fdg_jax.machine.ports import free_port
from fdg_jax.transport.devices import request_cpu_devices

HEARTBEAT_SECONDS = 60  # without a sign of life a process then counts as dead; it may stand still for a while
JOINING_SECONDS = 120  # for all processes to come
TOO_LATE = "JAX has already started, or has been joined. Join the processes once, before anything makes an array."
TRANSFER_BYTES = 4 * 2**20  # of a buffer of the sockets between CPUs; JAX's default is far larger


def join_processes(coordinator: str, process: int, processes: int, K: int, address: str = "127.0.0.1") -> None:
    """Joins this process with the others of a pipeline. Call it before JAX computes anything, in every process.

    Afterwards `Pipeline` spreads its stages over the processes. Each process must then make the same calls in the same
    order, also of what only reports: `params`, `state`, `staleness`, `updates`, `refused` and the hashes wait for all
    processes. Every process makes the first weights of all stages, and keeps those of its own.

    A process that ends by an exception leaves at once, without what it registered by `atexit`: JAX would wait there for
    the others, which wait for it. That is not so for `sys.exit`: call `jax.distributed.shutdown` before it.

    Nothing that is exchanged is encrypted or authenticated: use addresses of a private network.

    Arguments:
        coordinator: IPv4 address and port at which process 0 listens, e.g. "10.0.0.1:1234".
        process: this process's number, from 0.
        processes: number of processes.
        K: number of stages.
        address: the IPv4 address at which other processes reach this one.

    Raises:
        BadInput: an argument is wrong, or JAX has already started.
    """
    check_addresses(coordinator, address)
    if not 0 <= process < processes <= K:
        raise BadInput(
            f"process {process} of {processes} with K={K} stages: processes are counted from 0, and each has a stage. "
            "Use 1 to K processes."
        )
    try:
        port = free_port(address)
    except OSError as error:
        raise BadInput(
            f"address {address} cannot be used on this host ({reason(error)}). Give one of its own."
        ) from error
    # Each process emulates K CPU devices, as one process for all stages would: XLA's thread pools are then as large.
    if not request_cpu_devices(K, exactly=True):
        raise BadInput(TOO_LATE)
    jax.config.update("jax_cross_host_transfer_socket_address", f"{address}:{port}")
    jax.config.update("jax_cross_host_transport_addresses", f"{address}:0")  # JAX's default is all interfaces
    jax.config.update("jax_cross_host_transfer_transfer_size", TRANSFER_BYTES)
    jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM
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


def check_addresses(coordinator: str, address: str) -> None:
    """Raises BadInput unless both are IPv4 addresses, the first with a port, and neither alone is of this host only."""
    host, _, listening = coordinator.rpartition(":")
    if not (is_ip(host) and listening.isdecimal() and 0 < int(listening) < 2**16):
        raise BadInput(f"coordinator {coordinator!r} is no IPv4 address with a port. Write it like 10.0.0.1:1234.")
    if not is_ip(address):
        raise BadInput(f"address {address!r} is no IPv4 address. A host name may stand for all interfaces of a host.")
    if IPv4Address(address).is_loopback != IPv4Address(host).is_loopback:
        fact = f"the coordinator listens at {host}, and this process would be reached at {address}"
        raise BadInput(f"{fact}: one of the two is on this host alone. Give the host's own address, as address=.")


def leave_at_once(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Prints an error and ends the process, in the place of `sys.excepthook`. The exit code is 2 for bad input."""
    try:
        sys.__excepthook__(kind, error, trace)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(2 if issubclass(kind, BadInput) else 130 if issubclass(kind, KeyboardInterrupt) else 1)


def is_ip(text: str) -> bool:
    """Whether a text is an IPv4 address, such as 10.0.0.1."""
    try:
        IPv4Address(text)
    except AddressValueError:
        return False
    return True

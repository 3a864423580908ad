"""Joins several processes, on one host or on several, into one pipeline by `jax.distributed`.

`gather` waits at the coordinator's port until all processes of a run have come, before JAX's own service listens there.
JAX alone is not safe here. It ends a process by SIGABRT if another process does not come. It listens even at a port
that another run uses, and a foreign process with the number of one of the run's processes ends the run. So process 0
first listens itself: it greets every process that connects, reads the process's number, and lets all processes go on
when they are complete. A process sends nothing until it has been greeted, because it may have reached another program.
"""

import contextlib
import os
import select
import socket
import sys
import time
from collections.abc import Sequence
from ipaddress import AddressValueError, IPv4Address
from threading import Lock, Thread
from typing import Any

import jax

from fdg_jax.errors import BadInput, reason
from fdg_jax.machine import jax_internals
from fdg_jax.machine.child import hold_port
from fdg_jax.transport.devices import for_each, request_cpu_devices

GREETING, GO, REFUSED = b"fdg_jax\n", b"go\n", b"no\n"  # the lines that process 0 sends
LOOK_SECONDS = 0.2  # between two attempts to connect
ANSWER_SECONDS = 5.0  # the longest wait for a greeting
STRANGE_SECONDS = 15.0  # how long another program may listen at the port, such as process 0 of a run that is ending
OWN_PORT = "Give each run its own free port on process 0's host, and each process its own number."
LONGEST = 20  # the most bytes of a line
ACCEPT_SECONDS = 0.05  # between two checks of process 0 for new numbers


class Absent(Exception):
    """Some processes have not come in time. The message says which."""


def gather(coordinator: str, process: int, processes: int, seconds: float) -> None:
    """Returns when all processes have called it.

    Arguments:
        coordinator: IPv4 address and port at which process 0 can listen.
        process, processes: the number of this process, from 0, and the number of processes.
        seconds: how long to wait for the others.

    Raises:
        BadInput: another program uses the port, or another process has the number of this process.
        Absent: the time is over.
    """
    host, _, port = coordinator.rpartition(":")
    until = time.monotonic() + seconds
    (receive if process == 0 else come)((host, int(port)), process, processes, until)


def receive(place: tuple[str, int], _: int, processes: int, until: float) -> None:
    """Process 0: greets the other processes, and lets them go on together. Each connection has its own thread, so that
    a foreign process that sends nothing does not delay the others."""
    with contextlib.ExitStack() as held:
        try:
            listening = held.enter_context(socket.create_server(place))  # connections of an earlier run do no harm
        except OSError as error:
            fact = f"process 0 cannot listen at {place[0]}:{place[1]}: {reason(error)}"
            raise BadInput(f"{fact}. {OWN_PORT}") from None
        listening.settimeout(ACCEPT_SECONDS)
        here, lock = dict[int, socket.socket](), Lock()
        while len(here) < processes - 1:
            if time.monotonic() > until:
                missing = sorted(set(range(1, processes)) - here.keys())
                raise Absent(f"process {', '.join(map(str, missing))}")
            with contextlib.suppress(OSError):
                other = held.enter_context(listening.accept()[0])
                Thread(target=hear, args=(other, until, range(1, processes), here, lock), daemon=True).start()
        for other in here.values():
            with contextlib.suppress(OSError):  # the process has ended, which JAX will notice
                other.sendall(GO)


def hear(other: socket.socket, until: float, numbers: range, here: dict[int, socket.socket], lock: Lock) -> None:
    """Greets a process that has connected, reads its number and adds it to `here`. A process that sends no number, or
    an unexpected one, is disconnected."""
    with contextlib.suppress(OSError):
        other.sendall(GREETING)
        said = line(other, until).strip()
        if not said.isdigit():
            return other.close()
        with lock:
            if int(said) in numbers and (int(said) not in here or has_left(here[int(said)])):
                here[int(said)] = other
                return
        other.sendall(REFUSED)
        other.close()


def has_left(other: socket.socket) -> bool:
    """Whether a waiting process has closed its connection, because it has ended."""
    return bool(select.select([other], [], [], 0)[0])  # readable only at the end, because a waiting process is silent


def come(place: tuple[str, int], process: int, processes: int, until: float) -> None:
    """A process other than 0: sends its number, and waits until all processes have come."""
    strange = 0.0  # since when another program has been listening at the port; 0 if none
    while (left := until - time.monotonic()) > 0:
        with contextlib.suppress(OSError), socket.create_connection(place, timeout=min(ANSWER_SECONDS, left)) as way:
            if way.getsockname() == way.getpeername():  # TCP can connect a port with itself if nobody listens
                continue
            if line(way, min(until, time.monotonic() + ANSWER_SECONDS)) == GREETING:
                strange = 0.0
                way.sendall(f"{process}\n".encode())
                answer = line(way, until)
                if answer == GO:
                    return
                if answer == REFUSED:
                    fact = f"process 0 at {place[0]}:{place[1]} does not expect process {process}, or already has one"
                    raise BadInput(f"{fact}. {OWN_PORT}")
            else:
                strange = strange or time.monotonic()
        if strange and time.monotonic() - strange > STRANGE_SECONDS:
            fact = f"another program listens at {place[0]}:{place[1]} instead of process 0"
            raise BadInput(f"{fact}. {OWN_PORT}")
        time.sleep(LOOK_SECONDS)
    raise Absent(f"process 0 at {place[0]}:{place[1]}, or another process that it waits for")


def line(way: socket.socket, until: float) -> bytes:
    """Receives a line of at most LONGEST bytes. Raises OSError if the connection fails, and TimeoutError once the time
    `until` has passed, even if bytes keep arriving."""
    said = b""
    while not said.endswith(b"\n") and len(said) < LONGEST:
        if (left := until - time.monotonic()) <= 0:
            raise TimeoutError
        way.settimeout(left)
        if not (more := way.recv(1)):
            break
        said += more
    return said


HEARTBEAT_SECONDS = 60  # a process counts as dead after this time without a heartbeat
JOINING_SECONDS = 120  # the longest wait for all processes to join
TOO_LATE = "JAX has already started or has joined processes. Join processes once, before anything makes an array."
TRANSFER_BYTES = 4 * 2**20  # the size of a buffer for the sockets between CPUs; JAX's default is far larger


def join_processes(
    coordinator: str,
    process: int,
    processes: int,
    K: int,
    address: str | None = None,
    detect: bool = False,
    R: int | Sequence[int] = 1,
) -> None:
    """Joins this process with the other processes of a pipeline. Call it in every process, before JAX computes
    anything.

    Afterwards `Pipeline` distributes its stages over the processes. Each process must then make the same calls in the
    same order. This includes `params`, `state`, `staleness`, `updates`, `refused` and the hashes, which wait for all
    processes. Every process computes the initial weights of all stages, but keeps only those of its own stages.

    A process that ends by an exception exits at once, without its `atexit` functions: in them, JAX would wait for the
    other processes, and these wait for this process. `sys.exit` runs the `atexit` functions, so call
    `jax.distributed.shutdown` first.

    The messages are neither encrypted nor authenticated: use addresses of a private network.

    Arguments:
        coordinator: IPv4 address and port at which process 0 listens, e.g. "10.0.0.1:1234".
        process: this process's number, from 0.
        processes: number of processes.
        K: number of stages.
        address: the IPv4 address at which other processes reach this one; None for the address of the interface that
            leads to the coordinator.
        detect: whether the scheduler that has started this process decides which GPUs the process uses.
        R: the number of devices of each stage, or a list for stages k = 1..K. On CPUs every process emulates the
            devices of all stages.

    Raises:
        BadInput: an argument is wrong, another program listens at the coordinator's port, or JAX has already started.
        Absent: the other processes have not come within two minutes.
    """
    host = check_coordinator(coordinator)
    address = address_towards(host) if address is None else address
    check_address(address, host)
    if not 0 <= process < processes <= K:
        raise BadInput(
            f"process {process} of {processes} with K={K} stages: processes are counted from 0, each with a stage. "
            "Use 1 to K processes."
        )
    try:
        transfers, held = hold_port(address)
    except OSError as error:
        raise BadInput(
            f"address {address} cannot be used on this host ({reason(error)}). Give an address of this host."
        ) from error
    with held:
        set_up(sum(for_each(R, K)), address, transfers)
        gather(coordinator, process, processes, JOINING_SECONDS)
        initialize(coordinator, process, processes, detect)
        held.detach()  # the port stays reserved, because JAX listens at it only when the first array is copied
    sys.excepthook = leave_at_once


def set_up(devices: int, address: str, transfers: str) -> None:
    """Sets JAX's options for several processes.

    devices: the number of devices of all stages. address: the IPv4 address of this process. transfers: address and port
    at which JAX is to listen for copies of arrays.

    Raises: BadInput if JAX has already started.
    """
    started = jax_internals.has_started() or jax.distributed.is_initialized()
    # Each process emulates as many CPU devices as a single process would, so that XLA's thread pools have equal sizes.
    if started or not request_cpu_devices(devices, exactly=True):
        raise BadInput(TOO_LATE)
    jax.config.update("jax_cross_host_transfer_socket_address", transfers)
    jax.config.update("jax_cross_host_transport_addresses", f"{address}:0")  # JAX's default is all interfaces
    jax.config.update("jax_cross_host_transfer_transfer_size", TRANSFER_BYTES)
    jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM


def initialize(coordinator: str, process: int, processes: int, detect: bool) -> None:
    """`jax.distributed.initialize` with the time limits above. Raises BadInput if JAX has already started."""
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            coordinator_bind_address=coordinator,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            initialization_timeout=JOINING_SECONDS,
            # By default, a scheduler that has started this process would choose its GPU, even with detect=False.
            cluster_detection_method=None if detect else "deactivate",
        )
    except RuntimeError as error:
        if type(error) is not RuntimeError:  # a JaxRuntimeError, for example because other processes did not come
            raise
        raise BadInput(TOO_LATE) from error


def detected() -> tuple[str, int, int]:
    """Reads the settings of the scheduler that has started this process: SLURM, Open MPI or Kubernetes.

    Returns: (coordinator as IPv4 address and port, number of processes, number of this process).

    Raises:
        BadInput: there is no scheduler, or its coordinator has no IPv4 address.
    """
    coordinator, processes, process = jax_internals.detected_cluster(JOINING_SECONDS)
    if coordinator is None or processes is None or process is None:
        fact = "no scheduler that JAX knows (SLURM, Open MPI, Kubernetes) has started this process"
        raise BadInput(f"{fact}. Give --coordinator HOST:PORT, --processes and --process-id.")
    host, _, port = coordinator.rpartition(":")
    try:
        return f"{socket.gethostbyname(host)}:{port}", processes, process
    except OSError as error:
        raise BadInput(f"the coordinator {host} has no IPv4 address ({reason(error)}). Give it as HOST:PORT.") from None


def address_towards(host: str) -> str:
    """The address of this host's interface that leads to another host. Nothing is sent. Raises BadInput if the other
    host cannot be reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect((host, 9))
        except OSError as error:
            raise BadInput(f"this host cannot reach {host} ({reason(error)}). Check the address.") from error
        return way.getsockname()[0]


def check_coordinator(coordinator: str) -> str:
    """The IPv4 address in `coordinator`. Raises BadInput unless `coordinator` is an IPv4 address with a port."""
    host, _, listening = coordinator.rpartition(":")
    if not (is_ip(host) and listening.isdecimal() and 0 < int(listening) < 2**16):
        raise BadInput(f"coordinator {coordinator!r} is not an IPv4 address with a port. Write it like 10.0.0.1:1234.")
    return host


def check_address(address: str, host: str) -> None:
    """Raises BadInput unless `address` is an IPv4 address. Also raises it if exactly one of `address` and the
    coordinator's address `host` is a loopback address."""
    if not is_ip(address):
        raise BadInput(f"address {address!r} is not an IPv4 address. Give one; a host name may have several.")
    if IPv4Address(address).is_loopback != IPv4Address(host).is_loopback:
        fact = f"the coordinator listens at {host}, and this process would be reached at {address}"
        raise BadInput(f"{fact}, but other hosts can reach only one of these. Give this host's address, as address=.")


def leave_at_once(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Replaces `sys.excepthook`: prints the error and ends the process. The exit code is 2 for bad input."""
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

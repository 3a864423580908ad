"""Waits at the coordinator's port until all processes of a run have come, before JAX's own service listens there.

JAX alone is not safe here. It ends a process by SIGABRT if another process does not come. It listens even at a port
that another run uses, and a foreign process with the number of one of the run's processes ends the run. So process 0
first listens itself: it greets every process that connects, reads the process's number, and lets all processes go on
when they are complete. A process sends nothing until it has been greeted, because it may have reached another program.
"""

import contextlib
import select
import socket
import time
from threading import Lock, Thread

from fdg_jax.errors import BadInput, reason

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

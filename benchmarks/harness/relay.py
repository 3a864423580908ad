"""Carries packets between hosts (benchmarks.harness.hosts) and delays each packet by the same time.

    python -m benchmarks.harness.relay ADDRESS...

The relay makes a TUN device for each address and prints its name. The process that started the relay moves each device
to the host with this address. Then the relay reads lines from its standard input. Each line is a delay in seconds. From
then on, packets between hosts arrive later by this delay, in order. None is lost. The relay ends when its input ends.
"""

import fcntl
import json
import os
import select
import socket
import struct
import sys
import time
from collections import deque

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # of <linux/if_tun.h>
LARGEST = 2**16  # bytes of a packet
DESTINATION = slice(16, 20)  # its place in an IPv4 header
AT_ONCE = 32  # packets to read before others are written


def device(number: int) -> int:
    """Makes a TUN device and prints its name; returns the file of its other end."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", f"relay{number}".encode(), IFF_TUN | IFF_NO_PI))
    print(json.dumps(f"relay{number}"), flush=True)
    return file


def carry(ends: dict[bytes, int]) -> None:
    """Carries packets until the input ends. ends: the file of each host's device by its address in four bytes."""
    waiting: deque[tuple[float, int, bytes]] = deque()  # (due time, target file, packet), sorted by due time
    files, seconds = [sys.stdin, *ends.values()], 0.0
    while True:
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for file in select.select(files, [], [], left)[0]:
            if file is sys.stdin:
                line = sys.stdin.readline()
                if not line:
                    return
                seconds = float(line)
                continue
            for _ in range(AT_ONCE):
                packet = read(file)
                if not packet:
                    break
                if (to := ends.get(packet[DESTINATION])) is not None and packet[0] >> 4 == 4:
                    waiting.append((time.monotonic() + seconds, to, packet))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, to, packet = waiting.popleft()
            os.write(to, packet)


def read(file: int) -> bytes:
    """The next packet of a device; nothing if there is none."""
    try:
        return os.read(file, LARGEST)
    except BlockingIOError:
        return b""


def main(addresses: list[str]) -> int:
    # A real network does not wait for a busy core.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    carry({socket.inet_aton(address): device(number) for number, address in enumerate(addresses)})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

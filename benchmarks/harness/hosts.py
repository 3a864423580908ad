"""Several hosts on one machine: network namespaces of Linux, joined by wires that can be cut and made slow.

A namespace has its own interfaces, addresses and ports, so a process in it reaches the others over the network only.
The bridges lie in a namespace of their own, the switch. Nothing is changed outside these namespaces, and removing them
removes everything.

    Hosts(3)                            a wire from each host to one bridge
    Hosts(3, pairwise=True)             a wire and a bridge for each two hosts, so that any pair can be parted
    Hosts(2, wire=Link(0, 8e-9))        1 Gbit/s each way: a token bucket (tc tbf) where packets leave a host
    Hosts(2, wire=Link(0.01, 8e-9))     10 ms more each way: packets go through `benchmarks.harness.relay`
"""

import atexit
import contextlib
import os
import shutil
import subprocess
import sys
from itertools import combinations
from pathlib import Path

from benchmarks.harness.turns import ROOT
from fdg_jax.errors import BadInput
from fdg_jax.schedule.simulator import NO_LINK, Link

NAMED = "fdgjax"  # namespaces are called fdgjax-<process id>-<name>
TOOLS = ("ip", "tc", "nsenter")
NAMES = Path("/run/netns")
BURST_SECONDS = 1e-3  # of a token bucket: it may lag behind so long, and catches up
LEAST_BURST = 2**17  # bytes: two packets of the largest size
QUEUE_BYTES = 2**26  # that wait for a token bucket
MTU = 65_000  # between hosts and the relay: it handles packets one by one, so they are large


def missing() -> str:
    """Why there can be no such hosts here; "" if there can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    if absent := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"the program {absent[0]} is missing (Debian: iproute2, util-linux)"
    if os.geteuid():
        return "network namespaces need root"
    name = f"{NAMED}-{os.getpid()}-try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"this system has no network namespaces ({tried.stderr.strip()})"
    ip("netns", "del", name)
    return ""


def relay_missing() -> str:
    """Why there can be no latency here; "" if there can."""
    return missing() or ("" if os.access("/dev/net/tun", os.R_OK | os.W_OK) else "there is no /dev/net/tun to open")


def ip(*words: str) -> None:
    """Runs `ip`. Raises BadInput with what it said if it fails."""
    run("ip", *words)


def run(*words: str) -> None:
    """Runs a command. Raises BadInput with what it said if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BadInput(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}. Is this root on Linux?")


def sweep() -> None:
    """Removes the namespaces of processes that were killed before they could."""
    for path in NAMES.glob(f"{NAMED}-*"):
        owner = path.name.split("-")[1]
        if not (owner.isdecimal() and os.path.exists(f"/proc/{owner}")):
            subprocess.run(["ip", "netns", "del", path.name], capture_output=True, check=False)


class Hosts:
    """Hosts 0, 1, ... with the addresses 10.77.0.1, 10.77.0.2, ... A context that removes them.

    Arguments:
        count: how many, 2 to 200.
        pairwise: whether each two have a wire of their own.
        wire: latency and bandwidth of every wire, each way.
        sysctl: settings of the network in each host, e.g. {"net.ipv4.tcp_rmem": "4096 131072 33554432"}.

    Raises:
        BadInput: they cannot be made.
    """

    def __init__(
        self, count: int, pairwise: bool = False, wire: Link = NO_LINK, sysctl: dict[str, str] | None = None
    ):
        sweep()
        self.count, self.pairwise, self.wire, self.relay = count, pairwise, wire, None
        self.addresses = [f"10.77.0.{number + 1}" for number in range(count)]
        self.switch = f"{NAMED}-{os.getpid()}-switch"
        self.names = [f"{NAMED}-{os.getpid()}-{number}" for number in range(count)]
        atexit.register(self.close)
        try:
            for name in (self.switch, *self.names):
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            for name in self.names:
                for key, value in (sysctl or {}).items():
                    run(*entering(name), "sysctl", "-q", "-w", f"{key}={value}")
            self.connect()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the relay and removes the namespaces. Processes in them must have ended."""
        atexit.unregister(self.close)
        if self.relay is not None:
            self.relay.kill()
            self.relay.communicate()
        for name in (*self.names, self.switch):
            if (NAMES / name).exists():
                subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def inside(self, number: int) -> list[str]:
        """What comes in front of a command so that it runs on a host."""
        return entering(self.names[number])

    def connect(self) -> None:
        """Lays the wires."""
        if self.wire.latency_seconds:
            self.connect_relay()
        elif self.pairwise:
            for a, b in combinations(range(self.count), 2):
                self.bridge(f"b{a}-{b}")
                self.plug(a, f"to{b}", f"b{a}-{b}", ["peer", self.addresses[b]])
                self.plug(b, f"to{a}", f"b{a}-{b}", ["peer", self.addresses[a]])
        else:
            self.bridge("bridge")
            for number in range(self.count):
                self.plug(number, "wire", "bridge", [])

    def bridge(self, name: str) -> None:
        """Makes a bridge."""
        ip("-n", self.switch, "link", "add", name, "type", "bridge")
        ip("-n", self.switch, "link", "set", name, "up")

    def plug(self, number: int, interface: str, bridge: str, peer: list[str]) -> None:
        """Lays a wire from an interface of a host to a bridge. peer: words for `ip` on who is at the other end."""
        host, port = self.names[number], f"{number}-{interface}"
        ip("-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", interface, "netns", host)
        ip("-n", self.switch, "link", "set", port, "master", bridge, "up")
        self.raise_interface(number, interface, peer)

    def raise_interface(self, number: int, interface: str, peer: list[str]) -> None:
        """Gives an interface its address and its bandwidth."""
        host, address = self.names[number], self.addresses[number]
        ip("-n", host, "address", "add", *([address, *peer] if peer else [f"{address}/24"]), "dev", interface)
        ip("-n", host, "link", "set", interface, "up")
        if slow := self.wire.seconds_per_byte:
            burst = max(LEAST_BURST, round(BURST_SECONDS / slow))
            words = ["rate", f"{round(8 / slow)}bit", "burst", str(burst), "limit", str(QUEUE_BYTES)]
            run("tc", "-n", host, "qdisc", "add", "dev", interface, "root", "tbf", *words)

    def connect_relay(self) -> None:
        """Starts the relay and gives each host one end of it."""
        latency = str(float(self.wire.latency_seconds))
        command = [*entering(self.switch), sys.executable, "-m", "benchmarks.harness.relay", latency, *self.addresses]
        self.relay = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.relay.stdout
        for number in range(self.count):
            interface = self.relay.stdout.readline().strip()
            if not interface:
                raise BadInput("the relay ended; what it said is above.")
            ip("-n", self.switch, "link", "set", interface, "netns", self.names[number])
            ip("-n", self.names[number], "link", "set", interface, "mtu", str(MTU), "txqueuelen", "4000")
            self.raise_interface(number, interface, [])

    def cut(self, number: int, other: int | None = None) -> None:
        """Cuts the wire between two hosts, or that of one to all others. What is on its way is lost."""
        with contextlib.ExitStack() as failed:
            failed.callback(lambda: None)
            ip("-n", self.switch, "link", "set", f"{number}-{'wire' if other is None else f'to{other}'}", "nomaster")


def entering(name: str) -> list[str]:
    """What comes in front of a command so that it runs in a namespace."""
    return ["nsenter", f"--net={NAMES / name}"]

"""Several hosts on one machine: Linux network namespaces, joined by wires that can be cut and slowed down.

A namespace has its own interfaces, addresses and ports, so a process in it reaches the others over the network only.
The bridges are in a separate namespace, the switch. Nothing is changed outside these namespaces, so removing the
namespaces removes everything.

    Hosts(3)                a wire from each host to one bridge
    Hosts(2, relay=True)    each host is also joined to `benchmarks.harness.relay`, which delays packets; `become`
                            chooses latency and bandwidth while programs are connected
"""

import atexit
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.harness.children import Child, ChildFailed, end
from fdg_jax.errors import BadInput
from fdg_jax.schedule.simulator import Link

NAMED = "fdgjax"  # namespaces are called fdgjax-<process id>-<name>
TOOLS = ("ip", "tc", "nsenter")
NAMES = Path("/run/netns")
BURST_SECONDS = 1e-3  # of a token bucket: the longest lag that it catches up
LEAST_BURST = 2**17  # bytes: two packets of the largest size
QUEUE_BYTES = 2**26  # the most bytes that wait for a token bucket
# Bytes of a packet with a relay, which handles packets one by one. Both directions have the same size, because the two
# ends of a connection agree on it when they connect.
LARGE_PACKETS = "65000"
WIRE, DELAYED = "wire", "delayed"  # interfaces of a host: to the bridge, and to the relay


def missing() -> str:
    """Why such hosts cannot be made on this machine; "" if they can."""
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
    """Why latency cannot be added on this machine; "" if it can."""
    return missing() or ("" if os.access("/dev/net/tun", os.R_OK | os.W_OK) else "there is no /dev/net/tun to open")


def ip(*words: str) -> None:
    """Runs `ip`."""
    run("ip", *words)


def run(*words: str) -> None:
    """Runs a command. Raises BadInput with the command's output if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BadInput(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}. Is this root on Linux?")


def sweep() -> None:
    """Removes the namespaces that killed processes have left behind."""
    for path in NAMES.glob(f"{NAMED}-*"):
        owner = path.name.split("-")[1]
        if not (owner.isdecimal() and os.path.exists(f"/proc/{owner}")):
            subprocess.run(["ip", "netns", "del", path.name], capture_output=True, check=False)


class Hosts(contextlib.AbstractContextManager):
    """Hosts 0, 1, ... with the addresses 10.77.0.1, 10.77.0.2, ... A context that removes them.

    Arguments:
        count: how many hosts, 2 to 200.
        relay: whether there is a second path between them, with latency.
        settings: network settings of each host, e.g. {"net.ipv4.tcp_wmem": "4096 16384 4194304"}.

    Raises:
        BadInput: the hosts cannot be made.
    """

    def __init__(self, count: int, relay: bool = False, settings: Mapping[str, str] | None = None):
        sweep()
        self.count, self.relay = count, None
        self.addresses = [f"10.77.0.{number + 1}" for number in range(count)]
        self.switch = f"{NAMED}-{os.getpid()}-switch"
        self.names = [f"{NAMED}-{os.getpid()}-{number}" for number in range(count)]
        atexit.register(self.close)
        try:
            for name in (self.switch, *self.names):
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            for name, address in zip(self.names, self.addresses, strict=True):
                ip("-n", name, "address", "add", f"{address}/32", "dev", "lo")  # the address of the host, on any path
                for key, value in (settings or {}).items():
                    run(*entering(name), "sysctl", "-q", "-w", f"{key}={value}")
            self.connect(large=relay)
            if relay:
                self.relay = self.start_relay()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the relay and removes the namespaces. Processes in them must have ended."""
        atexit.unregister(self.close)
        if self.relay is not None:
            end([self.relay])
        for name in (*self.names, self.switch):
            if (NAMES / name).exists():
                subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def inside(self, number: int) -> list[str]:
        """The words in front of a command that run it on a host."""
        return entering(self.names[number])

    def connect(self, large: bool) -> None:
        """Makes the bridge, and a wire from each host to it. large: whether wires carry large packets."""
        ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge", "up")
        for number, host in enumerate(self.names):
            port, size = f"{number}-{WIRE}", ["mtu", LARGE_PACKETS] if large else []
            ip("-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", WIRE, "netns", host)
            ip("-n", self.switch, "link", "set", port, *size, "master", "bridge", "up")
            ip("-n", host, "link", "set", WIRE, *size, "up")
        for number in range(self.count):
            self.lead(number, WIRE)

    def lead(self, number: int, interface: str) -> None:
        """Routes a host's packets to all others through an interface."""
        for address in self.addresses[:number] + self.addresses[number + 1 :]:
            way = ["dev", interface, "src", self.addresses[number]]
            ip("-n", self.names[number], "route", "replace", f"{address}/32", *way)

    def start_relay(self) -> Child:
        """Starts the relay and gives each host its device. Raises BadInput if the relay ends at once."""
        relay = Child(("-m", "benchmarks.harness.relay", *self.addresses), "relay", before=entering(self.switch))
        try:
            for host in self.names:
                device = relay.answer()
                ip("-n", self.switch, "link", "set", device, "netns", host)
                ip("-n", host, "link", "set", device, "name", DELAYED, "mtu", LARGE_PACKETS, "txqueuelen", "4000", "up")
        except ChildFailed as error:
            raise BadInput(f"{error}.") from None
        return relay

    def become(self, wire: Link) -> None:
        """Sets latency and bandwidth: from now on, packets between hosts are delayed, and each host sends at most at
        the bandwidth.

        Call it only when no packet is on its way. Raises BadInput for a latency without a relay.
        """
        if wire.latency_seconds:
            if self.relay is None:
                raise BadInput("these hosts have no relay, so there is no latency. Make them with relay=True.")
            self.relay.tell(float(wire.latency_seconds))
        used = DELAYED if wire.latency_seconds else WIRE
        for number, host in enumerate(self.names):
            self.lead(number, used)
            for interface in (WIRE, *([DELAYED] if self.relay else [])):  # fails if there is none
                subprocess.run(["tc", "-n", host, "qdisc", "del", "dev", interface, "root"], stderr=subprocess.DEVNULL)
            if slow := wire.seconds_per_byte:
                burst = max(LEAST_BURST, round(BURST_SECONDS / slow))
                words = ["rate", f"{round(8 / slow)}bit", "burst", str(burst), "limit", str(QUEUE_BYTES)]
                run("tc", "-n", host, "qdisc", "add", "dev", used, "root", "tbf", *words)

    def relay_seconds(self) -> float:
        """The processor time that the relay has used so far."""
        if self.relay is None:
            return 0.0
        fields = Path(f"/proc/{self.relay.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")  # user and system

    def cut(self, number: int, other: int | None = None) -> None:
        """Cuts the way between two hosts, or from one host to all others. Packets on their way are lost."""
        if other is None:
            ip("-n", self.switch, "link", "set", f"{number}-{WIRE}", "nomaster")
            return
        for a, b in ((number, other), (other, number)):  # each sends to an address at which nobody is
            nobody = ["lladdr", "02:00:00:00:00:01", "dev", WIRE, "nud", "permanent"]
            ip("-n", self.names[a], "neighbor", "replace", self.addresses[b], *nobody)


def entering(name: str) -> list[str]:
    """The words in front of a command that run it in a namespace."""
    return ["nsenter", f"--net={NAMES / name}"]

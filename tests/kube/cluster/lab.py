"""The place of the cluster: namespaces of processes, mounts and networks that end with the test, even a killed one.

The lab's own network has a bridge; this process has the address `10.200.0.1` on it, where the API server and the DNS
server listen. A node is a network namespace with one link to the bridge. Routes lead to every node's pods, so tests
reach pods and Services by their addresses.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PRIVATE = ("unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc")
INSIDE = "PLIANT_KUBE_LAB"
BRIDGE = "nodes"
PREFIX = "10.200.0"
ADDRESS = f"{PREFIX}.1"
COMMAND_S = 30.0
NEEDED = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "ip": "iproute2",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "busybox": "busybox-static",
}
CNI_PLUGINS = Path("/usr/lib/cni")


def why_not() -> str:
    """Return why the cluster's nodes cannot run here; empty if they can."""
    if os.geteuid() != 0:
        return "only root may make the namespaces of nodes"
    missing = sorted({package for name, package in NEEDED.items() if shutil.which(name) is None})
    if not (CNI_PLUGINS / "bridge").exists():
        missing.append("containernetworking-plugins")
    if missing:
        return f"packages are missing: apt-get install {' '.join(missing)}"
    done = subprocess.run([*PRIVATE, "true"], capture_output=True, text=True, timeout=COMMAND_S, check=False)
    return "" if done.returncode == 0 else f"namespaces cannot be made: {done.stderr.strip()}"


def is_inside() -> bool:
    """Return whether this process runs in the lab."""
    return os.environ.get(INSIDE) is not None


def name() -> str:
    """The lab's name, in the names of its control groups."""
    return os.environ[INSIDE]


def enter(command: Sequence[str], lab: str) -> int:
    """Run a command as the first process of a new lab, and return its exit status."""
    return subprocess.run([*PRIVATE, *command], env={**os.environ, INSIDE: lab}, check=False).returncode


def run(*command: str) -> str:
    """Run a command that must work, and return its output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def open_network(services: str) -> None:
    """Make the lab's network. Call it once, inside."""
    Path("/run/netns").mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "netns", "/run/netns")
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "addr", "add", f"{ADDRESS}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    run("ip", "route", "add", services, "dev", BRIDGE)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")


class Link:
    """A node's place in the lab's network."""

    def __init__(self, node: str, number: int) -> None:
        self.node = node
        self.address = f"{PREFIX}.{10 + number}"
        self.pods = f"10.244.{number}.0/24"
        self.namespace = Path("/run/netns") / node
        self._port = f"v-{node}"

    def open(self) -> None:
        """Make the node's network namespace with its link."""
        run("ip", "netns", "add", self.node)
        run("ip", "link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", self.node)
        run("ip", "link", "set", self._port, "master", BRIDGE, "up")
        for args in (
            ("link", "set", "lo", "up"),
            ("addr", "add", f"{self.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("route", "add", "default", "via", ADDRESS),
        ):
            run("ip", "-n", self.node, *args)
        run("nsenter", f"--net={self.namespace}", "sysctl", "-qw", "net.ipv4.ip_forward=1")
        run("ip", "route", "replace", self.pods, "via", self.address)

    def cut(self) -> None:
        """Lose every frame from and to the node, without a reset."""
        run("ip", "link", "set", self._port, "nomaster")

    def heal(self) -> None:
        """Undo `cut`."""
        run("ip", "link", "set", self._port, "master", BRIDGE)

    def mute(self) -> None:
        """Lose every packet that the node and its pods send. What is sent to them arrives."""
        self._drop_sent("-I")

    def unmute(self) -> None:
        """Undo `mute`."""
        self._drop_sent("-D")

    def _drop_sent(self, change: str) -> None:
        for chain in ("OUTPUT", "FORWARD"):
            rule = ("iptables", "-w", change, chain, "-o", "eth0", "-j", "DROP")
            run("nsenter", f"--net={self.namespace}", *rule)

    def close(self) -> None:
        """Remove the link, and the namespace with all that is in it. The kernel removes the latter some time later."""
        run("ip", "link", "delete", self._port)
        run("ip", "netns", "delete", self.node)


def python_program(module: str, *args: str) -> list[str]:
    """The command that runs a module of `tests` in this Python."""
    return [sys.executable, "-m", module, *args]

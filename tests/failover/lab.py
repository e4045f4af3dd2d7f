"""Hosts on two networks of this machine: one between coordinators and etcd, one between coordinators and agents.

The networks are bridges in a network namespace of their own. A host is a namespace with a link to one bridge or both.
`cut` takes a link out of its bridge: frames vanish without a reset, and the host sees no error. Everything lives in
namespaces of mounts, processes and networks that end with the test, even if it is killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PRIVATE = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
INSIDE = "PLIANT_FAILOVER_INSIDE"
STORE_NET, WORK_NET = "store", "work"
NETWORKS = {STORE_NET: "10.88.1", WORK_NET: "10.88.2"}
IP_S = 20.0


def why_not() -> str:
    """Return why the networks cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    for program, package in (("ip", "iproute2"), ("unshare", "util-linux")):
        if shutil.which(program) is None:
            return f"the program `{program}` is missing (package {package})"
    done = subprocess.run([*PRIVATE, "true"], capture_output=True, text=True, timeout=IP_S, check=False)
    return "" if done.returncode == 0 else f"namespaces cannot be made: {done.stderr.strip()}"


def is_inside() -> bool:
    """Return whether this process runs in namespaces of its own."""
    return os.environ.get(INSIDE) == "1"


def enter(argv: Sequence[str]) -> int:
    """Run this program again in namespaces of its own, and return its exit status."""
    command = [*PRIVATE, sys.executable, "-m", "failover", *argv]
    return subprocess.run(command, env={**os.environ, INSIDE: "1"}, check=False).returncode


class Lab:
    """The two networks. This process has the address `.1` on each."""

    def __init__(self) -> None:
        Path("/run/netns").mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "netns", "/run/netns"], check=True)
        ip("link", "set", "lo", "up")
        for name, prefix in NETWORKS.items():
            ip("link", "add", name, "type", "bridge")
            ip("addr", "add", f"{prefix}.1/24", "dev", name)
            ip("link", "set", name, "up")

    def add(self, host: str, number: int, *networks: str) -> Host:
        """Add a host with the same last number in its address on every network."""
        ip("netns", "add", host)
        ip("-n", host, "link", "set", "lo", "up")
        for name in networks:
            port = f"{host}-{name}"
            ip("link", "add", port, "type", "veth", "peer", "name", name, "netns", host)
            ip("link", "set", port, "master", name, "up")
            ip("-n", host, "addr", "add", f"{NETWORKS[name]}.{number}/24", "dev", name)
            ip("-n", host, "link", "set", name, "up")
        return Host(host, number, networks)


class Host:
    """One machine of the lab."""

    def __init__(self, name: str, number: int, networks: tuple[str, ...]) -> None:
        self.name = name
        self._number = number
        self._networks = networks

    def address(self, network: str) -> str:
        return f"{NETWORKS[network]}.{self._number}"

    def start(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a process on this host. Its output goes to a file."""
        with log.open("ab") as out:
            whole = ["ip", "netns", "exec", self.name, *command]
            return subprocess.Popen(whole, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=dict(env))

    def cut(self, *networks: str) -> None:
        """Lose every frame from and to this host on these networks, without a reset."""
        for name in networks or self._networks:
            ip("link", "set", f"{self.name}-{name}", "nomaster")

    def heal(self) -> None:
        """Undo every `cut`."""
        for name in self._networks:
            ip("link", "set", f"{self.name}-{name}", "master", name)


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True, timeout=IP_S)

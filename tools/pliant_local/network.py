"""A network on this machine: a bridge, and a namespace with its own address for each agent.

Names contain the pid and start time of the process that made them, so leftovers of a dead process are recognised even
if its pid was reused. Names of links are too short for that; their alias has it.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pliant.errors import BadInput, PliantError

NETWORKS = [ipaddress.IPv4Network(f"10.77.{third}.0/24") for third in range(256)]
ADDRESSES = 253  # of a network, but for the bridge's own and the last
IP_S = 20.0
GONE_S = 3.0  # for processes to end before they are killed
LOOK_S = 0.05
SIOCBRADDIF = 0x89A2  # from linux/sockios.h
INTERFACE = "eth0"  # the agent's end of its link

_NAMESPACE = re.compile(r"pliant-(\d+)-(\d+)-agent-\d+")
_LINK = re.compile(r"pl[bv](\d+)(?:-\d+)?")
_ALIAS = re.compile(r"pliant local (\d+) (\d+)")
_NAMES = Path("/run/netns")


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, identified by pid and start time (0 if unknown)."""

    pid: int
    began: int

    @property
    def alive(self) -> bool:
        now = _began(self.pid)
        return now is not None and self.began in (0, now)

    @property
    def alias(self) -> str:
        return f"pliant local {self.pid} {self.began}"

    @property
    def bridge(self) -> str:
        return f"plb{self.pid}"

    @property
    def card(self) -> str:
        """The bridge's hardware address. By default it is that of the lowest port, which changes as agents come and go;
        the coordinator would be unreachable until every ARP cache had expired."""
        return ":".join(f"{byte:02x}" for byte in (0x02, 0x77, *self.pid.to_bytes(4, "big")))

    def link(self, number: int) -> str:
        return f"plv{self.pid}-{number}"

    def namespace(self, number: int) -> str:
        return f"pliant-{self.pid}-{self.began}-agent-{number}"


def this_process() -> Owner:
    """Return this process."""
    return Owner(os.getpid(), _began(os.getpid()) or 0)


def namespaces_unavailable() -> str:
    """Return why namespaces cannot be made here; empty if nothing is known to prevent it."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if shutil.which("ip") is None:
        return "the program `ip` is missing (package iproute2)"
    return ""


class Network:
    """Make a network, `open` it, and call `remove_all` with its owner at the end. Methods raise PliantError."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._range = NETWORKS[0]

    @property
    def address(self) -> str:
        """The bridge's address, for the coordinator: all agents and this machine reach it."""
        return str(self._range[1])

    def open(self) -> None:
        """Make the bridge, on an unused range of addresses. Leaves nothing behind if it fails."""
        try:
            with _one_at_a_time():
                self._range = _unused(NETWORKS)
                ip("link", "add", self._owner.bridge, "address", self._owner.card, "type", "bridge")
                ip("link", "set", self._owner.bridge, "alias", self._owner.alias)
                ip("addr", "add", f"{self.address}/24", "dev", self._owner.bridge)
                ip("link", "set", self._owner.bridge, "up")
            self._try_one()
        except PliantError:
            remove_all(self._owner)
            raise

    def _try_one(self) -> None:
        """Make and enter a namespace: in some containers root may make links only."""
        self.add(0)
        ip(*self.inside(0)[1:], "true")
        self.remove(0)

    def add(self, number: int) -> str:
        """Make a connected namespace for an agent; return its address."""
        name, link = self._owner.namespace(number), self._owner.link(number)
        address = str(self._range[2 + (number - 1) % ADDRESSES])  # the last address is for `_try_one`
        ip("netns", "add", name)
        ip("link", "add", link, "type", "veth", "peer", "name", INTERFACE, "netns", name)
        ip("link", "set", link, "alias", self._owner.alias)
        _join_bridge(self._owner.bridge, link)
        ip("link", "set", link, "up")
        ip("-n", name, "addr", "add", f"{address}/24", "dev", INTERFACE)
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "set", INTERFACE, "up")
        return address

    def inside(self, number: int) -> tuple[str, ...]:
        """Return the prefix of a command line that runs it in the agent's namespace."""
        return ("ip", "netns", "exec", self._owner.namespace(number))

    def cut(self, number: int) -> None:
        """Cut an agent off: all packets to and from it are lost."""
        ip("link", "set", self._owner.link(number), "down")

    def heal(self, number: int) -> None:
        """Undo `cut`."""
        ip("link", "set", self._owner.link(number), "up")

    def remove(self, number: int) -> None:
        """Remove an agent's namespace. Processes in it are killed if they do not end."""
        name = self._owner.namespace(number)
        _empty(name)
        with suppress(PliantError):  # already removed with the namespace
            ip("link", "del", self._owner.link(number))
        ip("netns", "del", name)


def remove_all(owner: Owner) -> None:
    """Remove everything of an owner. It may be called again."""
    for name, whose in _namespaces():
        if whose == owner:
            _empty(name)
            with suppress(PliantError):  # another process may remove it, too
                ip("netns", "del", name)
    # The kernel removes links with their namespace, but later.
    for link, whose in _links():
        if whose.pid == owner.pid and whose.began in (0, owner.began):
            with suppress(PliantError):
                ip("link", "del", link)


def remove_leftovers() -> list[Owner]:
    """Remove everything of dead processes; return them."""
    found = {whose for _, whose in namespaces_and_links() if not whose.alive}
    for owner in found:
        remove_all(owner)
    return sorted(found, key=lambda owner: (owner.pid, owner.began))


def namespaces_and_links() -> list[tuple[str, Owner]]:
    """Return the names and owners of all namespaces and links of sandboxes on this machine."""
    return [*_namespaces(), *_links()]


def ip(*args: str) -> str:
    """Run `ip` and return its output. Raises PliantError if it fails."""
    try:
        done = subprocess.run(
            ["ip", *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=IP_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PliantError(f"Cannot run `ip {' '.join(args)}`: {error}") from error
    if done.returncode != 0:
        raise PliantError(f"`ip {' '.join(args)}` failed: {done.stderr.strip() or f'status {done.returncode}'}")
    return done.stdout


def _join_bridge(bridge: str, link: str) -> None:
    """Add a link to a bridge by ioctl, like `brctl addif`."""
    with socket.socket() as way_in:
        try:
            request = struct.pack("16si20x", bridge.encode(), socket.if_nametoindex(link))
            fcntl.ioctl(way_in, SIOCBRADDIF, request)
        except OSError as error:
            raise PliantError(f"Cannot add {link} to {bridge}: {error.strerror}.") from error


# ------------------------------------------------------------------------------------------------- what there is


def _namespaces() -> Iterator[tuple[str, Owner]]:
    try:
        names = sorted(path.name for path in _NAMES.iterdir())
    except OSError:
        return  # no namespace was ever made
    for name in names:
        if found := _NAMESPACE.fullmatch(name):
            yield name, Owner(int(found[1]), int(found[2]))


def _links() -> Iterator[tuple[str, Owner]]:
    for link in _json("link", "show"):
        name, alias = str(link.get("ifname", "")), _ALIAS.fullmatch(str(link.get("ifalias", "")))
        if alias is not None:
            yield name, Owner(int(alias[1]), int(alias[2]))
        elif found := _LINK.fullmatch(name):  # its owner died before it set the alias
            yield name, Owner(int(found[1]), 0)


def _unused(networks: list[ipaddress.IPv4Network]) -> ipaddress.IPv4Network:
    """Return the first network that no address or route of this machine overlaps."""
    taken = [
        ipaddress.IPv4Network(f"{address['local']}/{address['prefixlen']}", strict=False)
        for link in _json("-4", "addr", "show")
        for address in link.get("addr_info", ())
        if "local" in address
    ]
    taken += [
        ipaddress.IPv4Network(route["dst"])
        for route in _json("-4", "route", "show", "table", "all")
        if _is_range(route)
    ]
    for network in networks:
        if not any(network.overlaps(other) for other in taken):
            return network
    raise PliantError(f"Every network from {networks[0]} to {networks[-1]} is in use on this machine.")


def _is_range(route: dict[str, Any]) -> bool:
    try:
        return ipaddress.IPv4Network(str(route.get("dst"))).prefixlen > 0  # the default route overlaps everything
    except ValueError:
        return False


def _json(*args: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ip("-j", *args) or "[]")
    return found


def _began(pid: int) -> int | None:
    """Return a process's start time in ticks since boot; None if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


# ------------------------------------------------------------------------------------------------------ its end


def _empty(namespace: str) -> None:
    """Wait until no process runs in a namespace; kill those that do not end."""
    until = time.monotonic() + GONE_S
    while pids := _inside(namespace):
        if time.monotonic() > until:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_S)
        if time.monotonic() > until + GONE_S:
            return  # the kernel removes the namespace when they end


def _inside(namespace: str) -> list[int]:
    try:
        return [int(pid) for pid in ip("netns", "pids", namespace).split()]
    except PliantError:
        return []  # the namespace does not exist


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Lock the search for an unused range: two at once would find the same one."""
    try:
        handle = os.open("/run", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise BadInput(f"Cannot use /run: {error.strerror}.") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)

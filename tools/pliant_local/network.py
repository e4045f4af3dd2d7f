"""A network on this machine: a bridge, and for each agent a namespace with an address of its own.

Everything carries the process that made it in its name, with the moment it began: what a dead process left can be told
from what a living one needs, also if its number was given to another one since. Names of links are short, so there it
is the alias that says it.
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
GONE_S = 3.0  # for processes that are ending; then they are killed
LOOK_S = 0.05
SIOCBRADDIF = 0x89A2  # from linux/sockios.h
CARD = "eth0"  # what an agent's side of its link is called

_NAMESPACE = re.compile(r"pliant-(\d+)-(\d+)-agent-\d+")
_LINK = re.compile(r"pl[bv](\d+)(?:-\d+)?")
_ALIAS = re.compile(r"pliant local (\d+) (\d+)")
_NAMES = Path("/run/netns")


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, told from a later one of the same number by when it began; 0: that is not known."""

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
        """The bridge's hardware address. Without one of its own it has its lowest port's: as ports come and go it would
        change, and until everybody had asked for it again nobody would reach the coordinator."""
        return ":".join(f"{byte:02x}" for byte in (0x02, 0x77, *self.pid.to_bytes(4, "big")))

    def link(self, number: int) -> str:
        return f"plv{self.pid}-{number}"

    def namespace(self, number: int) -> str:
        return f"pliant-{self.pid}-{self.began}-agent-{number}"


def myself() -> Owner:
    """This process."""
    return Owner(os.getpid(), _began(os.getpid()) or 0)


def why_not() -> str:
    """Why there cannot be namespaces here, in words; empty if there can, as far as one knows without trying."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if shutil.which("ip") is None:
        return "there is no `ip` here, which makes network namespaces; the package is called iproute2"
    return ""


class Network:
    """Make one, `open` it, and `remove_all` of its owner at the end. PliantError says what the system refused."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._range = NETWORKS[0]

    @property
    def address(self) -> str:
        """The bridge's own: where a coordinator can listen, reached from all agents and from this machine."""
        return str(self._range[1])

    def open(self) -> None:
        """Make the bridge, on a range of addresses that nobody uses. If anything is refused nothing is left."""
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
        """In a container root may make links and yet no namespaces, or may not enter them."""
        self.add(0)
        ip(*self.inside(0)[1:], "true")
        self.remove(0)

    def add(self, number: int) -> str:
        """Make a namespace for an agent, connected; its address."""
        name, link = self._owner.namespace(number), self._owner.link(number)
        address = str(self._range[2 + (number - 1) % ADDRESSES])  # the last one's is for trying
        ip("netns", "add", name)
        ip("link", "add", link, "type", "veth", "peer", "name", CARD, "netns", name)
        ip("link", "set", link, "alias", self._owner.alias)
        _join_bridge(self._owner.bridge, link)
        ip("link", "set", link, "up")
        ip("-n", name, "addr", "add", f"{address}/24", "dev", CARD)
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "set", CARD, "up")
        return address

    def inside(self, number: int) -> tuple[str, ...]:
        """What stands before a command line so that it runs there."""
        return ("ip", "netns", "exec", self._owner.namespace(number))

    def cut(self, number: int) -> None:
        """Nothing gets through to that agent, nor from it; both sides only notice that nobody answers."""
        ip("link", "set", self._owner.link(number), "down")

    def heal(self, number: int) -> None:
        """Undo `cut`."""
        ip("link", "set", self._owner.link(number), "up")

    def remove(self, number: int) -> None:
        """Take an agent's namespace away. Whatever runs in it is killed if it does not end by itself."""
        name = self._owner.namespace(number)
        _empty(name)
        with suppress(PliantError):  # gone already, with the namespace
            ip("link", "del", self._owner.link(number))
        ip("netns", "del", name)


def remove_all(owner: Owner) -> None:
    """Take everything of one owner away. Call it as often as you like; what is gone already is no trouble."""
    for name, whose in _namespaces():
        if whose == owner:
            _empty(name)
            with suppress(PliantError):  # somebody else may be removing it, too
                ip("netns", "del", name)
    # With its namespace a link goes as well, but later.
    for link, whose in _links():
        if whose.pid == owner.pid and whose.began in (0, owner.began):
            with suppress(PliantError):
                ip("link", "del", link)


def remove_leftovers() -> list[Owner]:
    """Take away what processes left that are not there any more; whose it was."""
    found = {whose for _, whose in everything() if not whose.alive}
    for owner in found:
        remove_all(owner)
    return sorted(found, key=lambda owner: (owner.pid, owner.began))


def everything() -> list[tuple[str, Owner]]:
    """The namespaces and links that clusters on this machine have now, by name, and whose each is."""
    return [*_namespaces(), *_links()]


def ip(*args: str) -> str:
    """Run `ip`; what it printed. PliantError says what it refused."""
    try:
        done = subprocess.run(
            ["ip", *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=IP_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PliantError(f"`ip {' '.join(args)}` cannot be run: {error}") from error
    if done.returncode != 0:
        raise PliantError(f"`ip {' '.join(args)}` failed: {done.stderr.strip() or f'status {done.returncode}'}")
    return done.stdout


def _join_bridge(bridge: str, link: str) -> None:
    """By system call, as `brctl addif` does it."""
    with socket.socket() as way_in:
        try:
            request = struct.pack("16si20x", bridge.encode(), socket.if_nametoindex(link))
            fcntl.ioctl(way_in, SIOCBRADDIF, request)
        except OSError as error:
            raise PliantError(f"{link} cannot be connected to {bridge}: {error.strerror}.") from error


# ------------------------------------------------------------------------------------------------- what there is


def _namespaces() -> Iterator[tuple[str, Owner]]:
    try:
        names = sorted(path.name for path in _NAMES.iterdir())
    except OSError:
        return  # there never was one
    for name in names:
        if found := _NAMESPACE.fullmatch(name):
            yield name, Owner(int(found[1]), int(found[2]))


def _links() -> Iterator[tuple[str, Owner]]:
    for link in _json("link", "show"):
        name, alias = str(link.get("ifname", "")), _ALIAS.fullmatch(str(link.get("ifalias", "")))
        if alias is not None:
            yield name, Owner(int(alias[1]), int(alias[2]))
        elif found := _LINK.fullmatch(name):  # whoever made it died before it could say more
            yield name, Owner(int(found[1]), 0)


def _unused(networks: list[ipaddress.IPv4Network]) -> ipaddress.IPv4Network:
    """The first that neither an address nor a route of this machine touches."""
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
        return ipaddress.IPv4Network(str(route.get("dst"))).prefixlen > 0  # everything is on the way to the default
    except ValueError:
        return False


def _json(*args: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ip("-j", *args) or "[]")
    return found


def _began(pid: int) -> int | None:
    """When a process began, in ticks since the machine did; None if it is not there, or is only waiting for burial."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


# ------------------------------------------------------------------------------------------------------ its end


def _empty(namespace: str) -> None:
    """Wait until nothing runs in it; what does not end is killed."""
    until = time.monotonic() + GONE_S
    while pids := _inside(namespace):
        if time.monotonic() > until:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_S)
        if time.monotonic() > until + GONE_S:
            return  # the namespace goes when they do


def _inside(namespace: str) -> list[int]:
    try:
        return [int(pid) for pid in ip("netns", "pids", namespace).split()]
    except PliantError:
        return []  # there is no such namespace


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two that look for a range at the same time would find the same one."""
    try:
        handle = os.open("/run", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise BadInput(f"/run cannot be used: {error.strerror}.") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)

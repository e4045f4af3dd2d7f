"""Find free ports."""

from __future__ import annotations

import random
import socket

from pliant.errors import PliantError

PORTS = range(20000, 32768)  # below the ephemeral ports, so that one can be listened on again


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port without a listener at that address; a recently closed one is fine."""
    return _found(host, 1, again=True)[0]


def free_ports(count: int) -> tuple[int, ...]:
    """Return ports that are unused at every address of this machine."""
    return _found("", count, again=False)


def are_free(ports: tuple[int, ...]) -> bool:
    """Return whether the ports are still unused."""
    return all(_is_free("", port, again=False) for port in ports)


def _found(host: str, count: int, *, again: bool) -> tuple[int, ...]:
    found: list[int] = []
    for port in random.Random().sample(PORTS, len(PORTS)):
        if len(found) == count:
            return tuple(found)
        if _is_free(host, port, again=again):
            found.append(port)
    raise PliantError(f"No {count} ports from {PORTS.start} to {PORTS.stop - 1} are free on this machine.")


def _is_free(host: str, port: int, *, again: bool) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(again))
        try:
            trial.bind((host, port))
        except OSError:
            return False
        return True

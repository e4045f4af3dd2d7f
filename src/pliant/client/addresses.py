"""Which address of this machine others reach it at."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from pliant.errors import BadInput


def local_address(url: str) -> str:
    """The address of ours that a coordinator's network sees. BadInput if there is no way to it."""
    target = urlsplit(url)
    host, port = target.hostname or "127.0.0.1", target.port or 80
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)  # sends nothing
            address: str = probe.getsockname()[0]
            return address
    except OSError as error:
        raise BadInput(f"There is no way from here to {host}: {error.strerror or error}.") from error


def own_address(name: str) -> str:
    """That name or address as an address of this machine's. BadInput if it is none."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise BadInput(f"{name} is no address, nor the name of one: {error.strerror or error}.") from error
    for family, _, _, _, where in found:
        with socket.socket(family, socket.SOCK_DGRAM) as trial:
            try:
                trial.bind((where[0], 0))
            except OSError:
                continue
            return str(where[0])
    raise BadInput(f"{name} is no address of this machine: take one that `ip address` or `hostname -I` lists.")

"""Find the address at which other machines reach this one."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from pliant.errors import BadInput


def local_address(url: str) -> str:
    """Return the local address of the route to a coordinator. Raises BadInput if there is no route."""
    target = urlsplit(url)
    host, port = target.hostname or "127.0.0.1", target.port or 80
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)  # sends nothing
            address: str = probe.getsockname()[0]
            return address
    except OSError as error:
        raise BadInput(f"There is no route from this machine to {host}: {error.strerror or error}.") from error


def own_address(name: str) -> str:
    """Resolve a name to an address of this machine. Raises BadInput if it is not one."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise BadInput(f"{name} is neither an address nor a host name: {error.strerror or error}.") from error
    for family, _, _, _, where in found:
        with socket.socket(family, socket.SOCK_DGRAM) as trial:
            try:
                trial.bind((where[0], 0))
            except OSError:
                continue
            return str(where[0])
    raise BadInput(f"{name} is not an address of this machine. Use one that `ip address` or `hostname -I` lists.")

"""The addresses of an etcd cluster, and the credentials for it."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
import stat
from dataclasses import dataclass, field
from pathlib import Path

from pliant.credentials import is_private
from pliant.errors import BadInput

__all__ = ["DEFAULT_PREFIX", "EtcdAccess", "parse_place"]

DEFAULT_PORT = 2379
DEFAULT_PREFIX = "pliant"
PASSWORD_MAX = 4096


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """An etcd cluster, the keys to use in it, and the files with the credentials.

    With `ca_file`, connections use TLS. `cert_file` and `key_file` are this client's certificate, for a cluster that
    asks for one. The password is read from its file again for each new session with etcd.
    """

    endpoints: tuple[str, ...]  # HOST:PORT
    prefix: str = DEFAULT_PREFIX
    user: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    deadline_s: float = field(default=1.0)  # for one request

    def __post_init__(self) -> None:
        if (self.user is None) != (self.password_file is None):
            raise BadInput("An etcd user needs a password file, and a password file a user. Give both or neither.")
        if (self.cert_file is None) != (self.key_file is None):
            raise BadInput("A client certificate for etcd needs its key file, and a key its certificate. Give both.")
        if self.cert_file is not None and self.ca_file is None:
            raise BadInput("A client certificate for etcd needs TLS: give the file of etcd's CA as well.")
        if self.user is not None and self.ca_file is None and not self.is_local:
            raise BadInput(
                f"The password of etcd user {self.user!r} would cross the network unencrypted. Give the file of etcd's "
                "CA, so that connections use TLS."
            )

    @property
    def is_local(self) -> bool:
        """True if every endpoint is a loopback address, so that nothing crosses a network."""
        return all(_is_loopback(endpoint.rpartition(":")[0]) for endpoint in self.endpoints)

    @property
    def urls(self) -> tuple[str, ...]:
        scheme = "http" if self.ca_file is None else "https"
        return tuple([f"{scheme}://{endpoint}" for endpoint in self.endpoints])

    @property
    def place(self) -> str:
        """The cluster and prefix, as `parse_place` reads them."""
        return f"{','.join(self.endpoints)}/{self.prefix}"

    def tls(self) -> ssl.SSLContext | bool:
        """Return the context of TLS connections. Raises BadInput for a file that cannot be used."""
        if self.ca_file is None:
            return False
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise BadInput(f"The CA of etcd cannot be read from {self.ca_file}: {error}.") from error
        if self.cert_file is not None:
            try:
                context.load_cert_chain(self.cert_file, self.key_file)
            except (OSError, ssl.SSLError) as error:
                raise BadInput(
                    f"The client certificate {self.cert_file} with the key {self.key_file} cannot be used: {error}."
                ) from error
        return context

    def password(self) -> str:
        """Read the password. Raises BadInput if other users can read the file."""
        assert self.password_file is not None
        try:
            with self.password_file.open("rb") as file:
                status = os.fstat(file.fileno())
                data = file.read(PASSWORD_MAX)
        except OSError as error:
            raise BadInput(
                f"The password of etcd cannot be read from {self.password_file}: {error.strerror}."
            ) from error
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid not in (0, os.geteuid()) or not is_private(status):
            raise BadInput(
                f"Other users can read the password of etcd at {self.password_file} (owner {status.st_uid}, mode "
                f"{mode:04o}). Run: chmod 600 {self.password_file}"
            )
        return data.decode("utf-8", "surrogateescape").rstrip("\r\n")


def parse_place(text: str) -> tuple[tuple[str, ...], str]:
    """Return the endpoints and the prefix of `HOST:PORT,HOST:PORT/PREFIX`. Ports and prefix may be missing."""
    hosts, slash, prefix = text.partition("/")
    if slash and (not prefix.strip("/") or not prefix.isprintable()):
        raise BadInput(f"The prefix of an etcd store must be printable and not empty, got {prefix!r}.")
    endpoints = tuple([_endpoint(host.strip(), text) for host in hosts.split(",")])
    if len(set(endpoints)) != len(endpoints):
        raise BadInput(f"An etcd store must name each endpoint once, got {text!r}.")
    return endpoints, prefix.strip("/") or DEFAULT_PREFIX


def _endpoint(text: str, whole: str) -> str:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(DEFAULT_PORT)
    is_bracketed = host.startswith("[") and host.endswith("]")
    bad_host = not host or any(c in host for c in " \t@?#") or (":" in host and not is_bracketed)
    if bad_host or not (re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 65536):
        raise BadInput(f"An etcd store must be HOST:PORT,HOST:PORT/PREFIX, got {whole!r}: {text!r} is no HOST:PORT.")
    return f"{host}:{int(port)}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False

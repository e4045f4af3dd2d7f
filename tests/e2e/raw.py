"""HTTP by hand, for what no proper client would send."""

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from e2e.running import WRITTEN, Running
from pliant.tls import client_context

ANSWER_S = 20.0


@dataclass(frozen=True)
class Answer:
    """`status` 0: the connection was closed without one."""

    status: int
    headers: dict[str, str]
    body: bytes


NONE = Answer(0, {}, b"")


class Line:
    """One connection."""

    def __init__(self, running: Running, buffer: int | None = None) -> None:
        self.socket: socket.socket = socket.socket()
        if buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(ANSWER_S)
        self.socket.connect(("127.0.0.1", running.port))
        if running.tls.ca_file is not None:
            self.socket = client_context(running.tls).wrap_socket(self.socket, server_hostname="127.0.0.1")
        self._rest = b""

    def send(self, data: bytes) -> bool:
        """False: the other side has closed the connection."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def answer(self) -> Answer:
        """The next whole answer; one without a length goes on until the connection closes."""
        head, found, _ = self._until(b"\r\n\r\n").partition(b"\r\n\r\n")
        if not found:
            return NONE
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        headers = {name.lower(): value for name, value in pairs}
        self._rest = self._rest[len(head) + 4 :]
        length = int(headers.get("content-length", "0"))
        while len(self._rest) < length and (more := self._receive()):
            self._rest += more
        body, self._rest = self._rest[:length], self._rest[length:]
        WRITTEN.note("an answer", head + body)
        return Answer(int(first.split()[1]), headers, body)

    def ended(self) -> bool:
        """Return whether the other side closes the connection in time. What it still sends is dropped."""
        while self._receive():
            pass
        return True

    def close(self) -> None:
        self.socket.close()

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._rest and (more := self._receive()):
            self._rest += more
        return self._rest

    def _receive(self) -> bytes:
        try:
            return self.socket.recv(65536)
        except ConnectionResetError:
            return b""


@contextlib.contextmanager
def line(running: Running, buffer: int | None = None) -> Iterator[Line]:
    """A connection that is closed in the end."""
    opened = Line(running, buffer)
    try:
        yield opened
    finally:
        opened.close()


def request(target: str, *headers: str, method: str = "GET", version: str = "HTTP/1.1", body: bytes = b"") -> bytes:
    """A request as bytes; with a body its length is added."""
    length = [f"content-length: {len(body)}"] if body else []
    return "\r\n".join([f"{method} {target} {version}", *headers, *length, "", ""]).encode("latin-1") + body


def ask(running: Running, data: bytes) -> Answer:
    """Send bytes on a connection of their own and take one answer."""
    with line(running) as opened:
        opened.send(data)
        return opened.answer()


def host(running: Running) -> str:
    return f"host: 127.0.0.1:{running.port}"


def bearer(running: Running) -> str:
    return f"authorization: Bearer {running.token.text}"

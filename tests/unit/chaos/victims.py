"""Processes to be struck at: two that talk over TCP, started for a test and ended with it."""

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pliant.chaos.processes import ProcessRef, find_member, open_sockets
from pliant.chaos.sockets import socket_ends
from unit.cli.program import until

JOB = "demo"
SO_GET_FILTER = 26
ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
while True:
    one, _ = server.accept()
    try:
        while data := one.recv(100):
            one.sendall(data)
    except ConnectionResetError:
        pass
"""


@dataclass
class Victim:
    """A process that echoes what it receives."""

    process: ProcessRef
    port: int
    pid: int
    child: "subprocess.Popen[str]" = field(repr=False)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    @property
    def state(self) -> str:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def is_stopped(self) -> bool:
        return self.state == "T"


@contextlib.contextmanager
def victim(member: str = "w1", job: str = JOB, host: str = "127.0.0.1") -> Iterator[Victim]:
    env = {**os.environ, "PLIANT_JOB": job, "PLIANT_MEMBER": member}
    with subprocess.Popen([sys.executable, "-c", ECHO, host], stdout=subprocess.PIPE, text=True, env=env) as child:
        try:
            assert child.stdout is not None
            port = int(child.stdout.readline())
            process = find_member(child.pid, job, member, "mark:", 0)
            assert process is not None
            yield Victim(process, port, child.pid, child)
        finally:
            child.kill()


def answers(connection: socket.socket, within_s: float = 20.0) -> bool:
    """Return whether what is said is said back in time."""
    connection.sendall(b"x")
    return heard(connection, within_s)


def heard(connection: socket.socket, within_s: float = 20.0) -> bool:
    """Return whether something comes in time."""
    ready, _, _ = select.select([connection], [], [], within_s)
    return bool(ready) and connection.recv(100) != b""


def filtered(process: ProcessRef) -> int:
    """Return how many of its sockets have a filter."""
    count = 0
    for end in socket_ends(process):
        with (
            contextlib.suppress(OSError),
            open_sockets(process) as reach,
            reach.socket(end.fd) as sock,
        ):  # else it is gone
            # The system takes the size for a number of instructions of 8 bytes each: too small a one is refused.
            count += bool(sock.getsockopt(socket.SOL_SOCKET, SO_GET_FILTER, 1024))
    return count


@contextlib.contextmanager
def beside(target: threading.Thread) -> Iterator[None]:
    """Run it beside a block, and wait for its end."""
    target.start()
    try:
        yield
    finally:
        target.join(20)
        assert not target.is_alive()


__all__ = ["ECHO", "JOB", "Victim", "answers", "beside", "filtered", "heard", "until", "victim"]

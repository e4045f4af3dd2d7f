"""The coordinator of a cluster on this machine: started at an address, again when it ends, stopped at the end."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol

from pliant.core.job.launches import describe_exit
from pliant.errors import PliantError

NAME = "coordinator"
LOOPBACK = "127.0.0.1"
PORTS = range(20000, 32768)  # below those that the system hands out, so that it can be listened on again
START_S = 30.0
STOP_S = 10.0
AGAIN_S = 0.5

Line = Callable[[bytes], None]


class Keeps(Protocol):
    """Whoever keeps processes: they end with it, however it ends. It says of each end to whom it was told to."""

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str], line: Line) -> None:
        """Start a program under a name; `line` is called with every line it writes, in a thread of its own."""

    def terminate(self, name: str) -> None:
        """SIGTERM."""

    def kill(self, name: str) -> None:
        """SIGKILL, to everything in its process group."""


class Coordinator:
    """`start`, tell it of its process's end with `ended`, and `stop`."""

    def __init__(
        self,
        keeps: Keeps,
        program: Sequence[str],
        home: Path,
        host: str,
        lease_ttl_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._keeps = keeps
        self._program = program
        self._home = home
        self._host = host
        self._lease_ttl_s = lease_ttl_s
        self._say = say
        self._port = _free_port(host)
        self._news: SimpleQueue[int] = SimpleQueue()  # its process, or minus one: it has ended
        self._ready = False
        self._stopping = False
        self._gone = threading.Event()
        self._last = ""
        self.pid = 0

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    @property
    def token_file(self) -> Path:
        return self._home / "token"

    def start(self) -> None:
        """Return when it answers. PliantError says why it does not."""
        self._spawn()
        try:
            self.pid = self._news.get(timeout=START_S)
        except Empty:
            raise PliantError(f"The coordinator did not start in {START_S:g} s. {self._last}") from None
        if self.pid < 0:
            raise PliantError(f"The coordinator does not start: {self._last}")
        self._ready = True

    def ended(self, code: int) -> None:
        """Call when its process has ended. It is started again at the same address: agents know no other."""
        self._gone.set()
        if self._stopping:
            return
        if not self._ready:
            self._news.put(-1)
            return
        self._say(f"the coordinator ended with {describe_exit(code)}; it is started again")
        timer = threading.Timer(AGAIN_S, self._again)
        timer.daemon = True
        timer.start()

    def stop(self) -> None:
        """Let it finish what it was asked; call when nobody needs it any more."""
        self._stopping = True
        self._keeps.terminate(NAME)
        if not self._gone.wait(STOP_S):
            self._keeps.kill(NAME)

    def _again(self) -> None:
        if not self._stopping:
            try:
                self._spawn()
            except PliantError:
                return  # whoever keeps processes is gone, and says so

    def _spawn(self) -> None:
        self._gone.clear()
        where = ("--listen", f"{self._host}:{self._port}", *(() if self._host == LOOPBACK else ("--expose",)))
        argv = [*self._program, "coordinator", *where, "--lease-ttl-s", f"{self._lease_ttl_s:g}", "--json"]
        self._keeps.start(NAME, argv, {"PLIANT_HOME": str(self._home)}, self._heard)

    def _heard(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        if not text.startswith('{"url":'):
            self._last = text
        elif self._ready:
            self._say("the coordinator answers again")
        else:
            self._news.put(int(json.loads(text)["pid"]))


def _free_port(host: str) -> int:
    """One that nobody listens on now."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((host, port))
            except OSError:
                continue
            return port
    raise PliantError(f"No port from {PORTS.start} to {PORTS.stop - 1} is free at {host}.")

"""An agent's children, through the warden: started, signalled, killed, and heard of when they end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from pliant.agent.output import Reader, Sink
from pliant.agent.warden import MESSAGE_MAX
from pliant.errors import BadInput, PliantError

ORDER_MAX = MESSAGE_MAX - 1
LAST_OUTPUT_S = 2.0  # for what ended processes had written; something they left elsewhere may keep a pipe open

Ended = Callable[[str, int], None]


class Processes:
    """Make one, use it as a context manager: when it is closed, and however this process ends, everybody is gone.

    `ended(name, code)` is called in a thread of its own as soon as a process has ended, perhaps before the last it
    wrote was read; the code is negative for a signal. `broken()` is called if the warden itself is gone, and everybody
    with it.
    """

    def __init__(self, ended: Ended, broken: Callable[[], None]) -> None:
        self._ended = ended
        self._broken = broken
        self._line, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # one order is one message
        self._line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_MAX * 2)
        with its:
            command = [sys.executable, "-P", "-m", "pliant.agent.warden", str(its.fileno())]
            # In a session of its own: what is typed at the terminal is for the agent.
            self._warden = subprocess.Popen(
                command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        self.pids: dict[str, int] = {}
        self._readers: list[Reader] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.gone = False  # the warden, and everybody with it
        threading.Thread(target=self._hear, name="processes", daemon=True).start()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def warden(self) -> int:
        """The warden's process."""
        return self._warden.pid

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str], sink: Sink) -> None:
        """Start a program under a name that is free. `env` is on top of our own environment.

        What it writes, to standard output or error, goes line by line to `sink`, in a thread of its own.
        """
        order = json.dumps({"start": name, "argv": [*argv], "env": {**env}}).encode()
        if len(order) > ORDER_MAX:
            raise BadInput(
                f"The command line has {len(order)} bytes, more than {ORDER_MAX}: put some of it into a file."
            )
        reading, writing = os.pipe()
        with self._lock:
            self._readers = [reader for reader in self._readers if reader.reads] + [Reader(reading, sink)]
        try:
            socket.send_fds(self._line, [order], [writing])
        except OSError as error:
            raise PliantError(f"{name} cannot be started: the process that starts them is gone.") from error
        finally:
            os.close(writing)

    def terminate(self, name: str) -> None:
        """Ask a process to end (SIGTERM). One that has ended already is asked nothing."""
        self._order({"signal": name, "number": int(signal.SIGTERM)})

    def kill(self, name: str) -> None:
        """End a process and everything in its group now (SIGKILL)."""
        self._order({"kill": name})

    def close(self) -> None:
        """Kill everybody who is left, and wait until they are gone."""
        self._closed.set()
        with suppress(OSError):  # the warden may be gone already
            self._line.shutdown(socket.SHUT_RDWR)
        self._warden.wait()
        self._line.close()
        until = time.monotonic() + LAST_OUTPUT_S
        for reader in self._readers:
            reader.wait(max(0.0, until - time.monotonic()))

    def _order(self, order: dict[str, object]) -> None:
        try:
            self._line.sendall(json.dumps(order).encode())
        except OSError:
            return  # the warden is gone, and everybody with it, which `broken` says

    def _hear(self) -> None:
        while not self._closed.is_set():
            try:
                data = self._line.recv(MESSAGE_MAX)
            except OSError:
                data = b""
            if not data:
                break
            news: dict[str, Any] = json.loads(data)
            if "started" in news:
                self.pids[news["started"]] = news["pid"]
            else:
                self.pids.pop(news["ended"], None)
                self._ended(news["ended"], news["code"])
        self.gone = True
        if not self._closed.is_set():
            self._broken()

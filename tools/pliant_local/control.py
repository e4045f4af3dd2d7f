"""Commands for a running sandbox: a socket in its folder, for its owner alone, one JSON object each way.

{"do": "add"}                           {"ok": true, "agent": "agent-4", ...}
{"do": "cut", "agent": "agent-2"}       {"ok": false, "why": "there is no agent-2"}
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from pliant.errors import BadInput, PliantError, Refused

SOCKET = "control"
LINE_MAX = 1 << 16
ASKING_S = 5.0  # for a whole request: programs send it
ANSWER_S = 30.0

Answer = dict[str, Any]
Do = Callable[[dict[str, Any]], Answer]


class Control:
    """Listen in a context manager. `do` is called with every request, from other threads."""

    def __init__(self, folder: Path, do: Do) -> None:
        self._folder = folder
        self._do = do

    def __enter__(self) -> Control:
        forget(self._folder)  # a leftover: the caller holds the folder's lock
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(self._socket.fileno(), 0o600)  # before it has a name, so that other users never have access
            with _short(self._folder) as path:
                self._socket.bind(path)
            self._socket.listen(8)
        except OSError as error:
            self._socket.close()
            raise PliantError(f"Cannot listen on {self._folder / SOCKET}: {error.strerror}.") from error
        threading.Thread(target=self._serve, name="control", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        forget(self._folder)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._socket.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._answer, args=(line,), name="control answer", daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        with line:
            line.settimeout(ASKING_S)
            try:
                question = json.loads(_line(line))
                if not isinstance(question, dict) or not isinstance(question.get("do"), str):
                    raise ValueError('expected an object with "do"')
            except (OSError, ValueError) as error:
                answer: Answer = {"ok": False, "why": f"invalid request: {error}"}
            else:
                answer = self._do(question)
            with suppress(OSError):  # the client did not wait
                line.sendall(json.dumps(answer).encode() + b"\n")


def ask(folder: Path, question: dict[str, Any]) -> Answer:
    """Send a request to the sandbox of that folder. Raises Refused if it refuses, or if none runs."""
    name = folder.name
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(ANSWER_S)
        try:
            with _short(folder) as path:
                line.connect(path)
        except OSError as error:
            raise Refused(
                f"No sandbox named {name!r} is running. Start one with `pliant local`, or name another with --name."
            ) from error
        try:
            line.sendall(json.dumps(question).encode() + b"\n")
            answer = json.loads(_line(line))
        except (OSError, ValueError) as error:
            raise PliantError(f"The sandbox {name!r} did not answer: {error}. It may have just ended.") from error
    if not isinstance(answer, dict) or not answer.get("ok"):
        raise Refused(str(answer.get("why")) if isinstance(answer, dict) else "the answer is unreadable")
    return answer


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Make and lock the folder of a sandbox for a block. Raises Refused while another process holds it."""
    try:
        for each in (folder.parents[1], folder.parent, folder):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BadInput(f"Cannot use {folder}: {error.strerror}. Set PLIANT_HOME to a folder of yours.") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"A sandbox named {folder.name!r} is already running (`pliant local list`). Start another with --name."
            ) from None
        yield
    finally:
        os.close(handle)


def forget(folder: Path) -> None:
    """Remove a sandbox's socket."""
    with suppress(OSError):
        (folder / SOCKET).unlink()


def _line(line: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        more = line.recv(4096)
        if not more or len(data) > LINE_MAX:
            raise ValueError("line too long" if more else "connection closed")
        data += more
    return data


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """Yield a short path to the socket: paths of sockets are limited to 107 bytes."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{SOCKET}"
    finally:
        os.close(handle)

"""How a running cluster is told what to do: a socket in its folder, for its owner alone, one JSON object each way.

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
ASKING_S = 5.0  # for a whole question: nobody types it
ANSWER_S = 30.0

Answer = dict[str, Any]
Do = Callable[[dict[str, Any]], Answer]


class Control:
    """Listens, as a context manager. `do` is called with every question, from threads of ours."""

    def __init__(self, folder: Path, do: Do) -> None:
        self._folder = folder
        self._do = do

    def __enter__(self) -> Control:
        forget(self._folder)  # whoever listened there is dead: the caller holds the folder's lock
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(self._socket.fileno(), 0o600)  # before it has a name: there is no moment at which others may look
            with _short(self._folder) as path:
                self._socket.bind(path)
            self._socket.listen(8)
        except OSError as error:
            self._socket.close()
            raise PliantError(f"{self._folder / SOCKET} cannot be listened on: {error.strerror}.") from error
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
                    raise ValueError('an object with "do" is expected')
            except (OSError, ValueError) as error:
                answer: Answer = {"ok": False, "why": f"that is no question of ours: {error}"}
            else:
                answer = self._do(question)
            with suppress(OSError):  # whoever asked did not wait
                line.sendall(json.dumps(answer).encode() + b"\n")


def ask(folder: Path, question: dict[str, Any]) -> Answer:
    """Ask the cluster of that folder. Refused with its reason if it says no, or if there is none."""
    name = folder.name
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(ANSWER_S)
        try:
            with _short(folder) as path:
                line.connect(path)
        except OSError as error:
            raise Refused(
                f"No cluster of the name {name!r} runs here. `pliant local` starts one; --name names another."
            ) from error
        try:
            line.sendall(json.dumps(question).encode() + b"\n")
            answer = json.loads(_line(line))
        except (OSError, ValueError) as error:
            raise PliantError(f"The cluster {name!r} did not answer: {error}. It may have just ended.") from error
    if not isinstance(answer, dict) or not answer.get("ok"):
        raise Refused(str(answer.get("why")) if isinstance(answer, dict) else "the answer cannot be read")
    return answer


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Make the folder of a cluster and have it for a block. Refused while another process has it."""
    try:
        for each in (folder.parents[1], folder.parent, folder):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BadInput(f"{folder} cannot be used: {error.strerror}. Set PLIANT_HOME to a place of yours.") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"A cluster of the name {folder.name!r} runs already. `pliant local list` shows it; --name makes "
                "another one beside it."
            ) from None
        yield
    finally:
        os.close(handle)


def forget(folder: Path) -> None:
    """Remove the socket of a cluster that is over."""
    with suppress(OSError):
        (folder / SOCKET).unlink()


def _line(line: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        more = line.recv(4096)
        if not more or len(data) > LINE_MAX:
            raise ValueError("it does not end" if more else "it ended in the middle")
        data += more
    return data


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """A name for the socket that is short enough for one, however long the folder's is."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{SOCKET}"
    finally:
        os.close(handle)

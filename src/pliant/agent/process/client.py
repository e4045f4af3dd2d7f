"""An agent's child processes: start, signal and kill them through the spawner, and receive their ends."""

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

from pliant.agent.logs.capture import OutputReader, OutputSink
from pliant.agent.process.script import Script, per_worker
from pliant.agent.process.template import MESSAGE_MAX, WARMING
from pliant.errors import BadInput, PliantError

ORDER_MAX = MESSAGE_MAX - 1
LAST_OUTPUT_S = 2.0  # for what ended processes had written; something they left elsewhere may keep a pipe open

Ended = Callable[[str, int], None]


class Processes:
    """Child processes, as a context manager: none survives `close`, or this process, however it ends.

    `ended(name, code)` is called in a thread of its own as soon as a process has ended, perhaps before the last it
    wrote was read; the code is negative for a signal. `broken()` is called if the spawner itself ended, and all
    processes with it, and `template()` when `warmed` changes.
    """

    def __init__(self, ended: Ended, broken: Callable[[], None], template: Callable[[], None] = lambda: None) -> None:
        self._ended = ended
        self._broken = broken
        self._template = template
        self._line, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # one order is one message
        self._line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_MAX * 2)
        with its:
            command = [sys.executable, "-P", "-m", "pliant.agent.process.spawner", str(its.fileno())]
            # In a session of its own: what is typed at the terminal is for the agent.
            self._spawner = subprocess.Popen(
                command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        self.pids: dict[str, int] = {}
        self.plainly: dict[str, str] = {}  # by running process: why it was not forked, if that was requested
        self._template_status: str | None = None
        self._readers: list[OutputReader] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.gone = False  # the spawner has ended, and all processes with it
        threading.Thread(target=self._read_reports, name="processes", daemon=True).start()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def spawner_pid(self) -> int:
        """The pid of the spawner."""
        return self._spawner.pid

    @property
    def warmed(self) -> str | None:
        """The state of the template: None if none was requested, "" if it is ready, `WARMING` while it imports.

        Any other text is the reason why it is unusable; workers are started without it then.
        """
        return self._template_status

    def start(
        self, name: str, argv: Sequence[str], env: Mapping[str, str], sink: OutputSink, errors: OutputSink | None = None
    ) -> None:
        """Start a program under an unused name. `env` is added to the agent's own environment.

        A thread reads its standard output and error and passes each line to `sink`. Both share one pipe, unless the
        sink wants two or `errors` is the sink of standard error.
        """
        self._request_with_output(name, {"start": name, "argv": [*argv], "env": {**env}}, sink, errors)

    def warm(self, modules: Sequence[str], env: Mapping[str, str]) -> None:
        """Start the template in the background, and end an earlier one. It imports the modules and waits.

        `env` is the environment of any worker. Variables that differ between workers do not matter. A worker with other
        differences is started without the template, because a module may read these variables when it is imported.
        """
        self._template_status = WARMING
        common = {name: value for name, value in env.items() if not per_worker(name)}
        self._request({"warm": [*modules], "env": common})

    def fork(
        self, name: str, script: Script, env: Mapping[str, str], sink: OutputSink, errors: OutputSink | None = None
    ) -> None:
        """Start a script as `start` does, but from the template if that is ready: the same worker, sooner.

        Call `script.why_not_forked` first. `plainly` has the reason afterwards if the template was not used.
        """
        given = {"kind": script.kind, "name": script.name, "args": script.args}
        order = {"fork": name, "script": given, "argv": script.argv(), "env": {**env}}
        self._request_with_output(name, order, sink, errors)

    def _request_with_output(
        self, name: str, order: Mapping[str, object], sink: OutputSink, errors: OutputSink | None
    ) -> None:
        data = json.dumps(order).encode()
        if len(data) > ORDER_MAX:
            raise BadInput(
                f"The command line has {len(data)} bytes, more than {ORDER_MAX}: put some of it into a file."
            )
        two = errors is not None or sink.two_pipes
        pipes = [os.pipe() for _ in range(2 if two else 1)]
        handles = [reading for reading, _ in pipes]
        readers = (
            [OutputReader(handles[0], sink, *handles[1:])]
            if errors is None
            else [OutputReader(handles[0], sink), OutputReader(handles[1], errors)]
        )
        with self._lock:
            self._readers = [reader for reader in self._readers if reader.reads] + readers
        try:
            socket.send_fds(self._line, [data], [writing for _, writing in pipes])
        except OSError as error:
            raise PliantError(f"{name} cannot be started: the process that starts them is gone.") from error
        finally:
            for _, writing in pipes:
                os.close(writing)

    def terminate(self, name: str) -> None:
        """Send SIGTERM to a process, unless it has ended."""
        self._request({"signal": name, "number": int(signal.SIGTERM)})

    def kill(self, name: str) -> None:
        """End a process and everything in its group now (SIGKILL)."""
        self._request({"kill": name})

    def close(self) -> None:
        """Kill the remaining processes, and wait until they are gone."""
        self._closed.set()
        with suppress(OSError):  # the spawner may be gone already
            self._line.shutdown(socket.SHUT_RDWR)
        self._spawner.wait()
        self._line.close()
        until = time.monotonic() + LAST_OUTPUT_S
        for reader in self._readers:
            reader.wait(max(0.0, until - time.monotonic()))

    def _request(self, order: dict[str, object]) -> None:
        try:
            self._line.sendall(json.dumps(order).encode())
        except OSError:
            return  # the spawner has ended, which `broken` reports

    def _read_reports(self) -> None:
        while not self._closed.is_set():
            try:
                data = self._line.recv(MESSAGE_MAX)
            except OSError:
                data = b""
            if not data:
                break
            report: dict[str, Any] = json.loads(data)
            if "warmed" in report:
                self._template_status = report["warmed"]
                self._template()
            elif "started" in report:
                self.plainly[report["started"]] = report["plainly"]
                self.pids[report["started"]] = report["pid"]
            else:
                self._ended(report["ended"], report["code"])
                self.pids.pop(report["ended"], None)
                self.plainly.pop(report["ended"], None)
        self.gone = True
        if not self._closed.is_set():
            self._broken()

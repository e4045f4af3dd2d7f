"""The process that all others of an agent are children of. `python -m pliant.agent.warden FD`; see `processes`.

An agent has threads, and a process with threads must not fork; this one has none. It starts what it is told to start,
each in a process group of its own, and says when one ends. However its agent ends, `kill -9` included, it sees the line
to it close, kills every group, and ends. Killed itself, it takes its children with it, since they asked the system
for that before their first instruction.

Orders come in and news goes out as JSON, one message each:

    {"start": NAME, "argv": [...], "env": {...}}      in, with the end of a pipe for its output
    {"signal": NAME, "number": 15}                    in
    {"kill": NAME}                                    in
    {"started": NAME, "pid": N}                       out
    {"ended": NAME, "code": N}                        out
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any

from pliant import settings

MESSAGE_MAX = 1 << 18
CANNOT_START = 127  # what a shell calls a program that could not be started

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Call in a new child, before it becomes a program: however the parent ends, the child is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it ended before we could ask
        os._exit(1)


class Warden:
    """The children, and the line to the agent."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._pid = os.getpid()
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._by_pidfd: dict[int, str] = {}
        self._poll = select.poll()
        self._poll.register(line, select.POLLIN)

    def run(self) -> None:
        """Until the agent is gone."""
        while True:
            for handle, _ in self._poll.poll():
                if handle in self._by_pidfd:
                    self._ended(handle)
                    continue
                data, handles, _, _ = socket.recv_fds(self._line, MESSAGE_MAX, 1)
                if not data:
                    return
                self._obey(json.loads(data), handles)

    def end(self) -> None:
        """Kill everybody, and wait until they are gone."""
        for child in self._children.values():
            _kill_group(child.pid)
        for child in self._children.values():
            child.wait()

    def _obey(self, order: dict[str, Any], handles: list[int]) -> None:
        if "start" in order:
            self._start(order["start"], order["argv"], order["env"], handles[0])
        elif (child := self._children.get(order.get("kill", ""))) is not None:
            _kill_group(child.pid)
        elif (child := self._children.get(order.get("signal", ""))) is not None:
            os.kill(child.pid, order["number"])  # it is our child and not buried yet, so the number is its own

    def _start(self, name: str, argv: list[str], env: dict[str, str], output: int) -> None:
        try:
            child = subprocess.Popen(
                argv,
                env=settings.for_child(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                preexec_fn=lambda: die_with_parent(self._pid),  # noqa: PLW1509  # there are no threads
            )
        except OSError as error:
            with suppress(OSError):  # nobody reads it any more
                os.write(output, f"{argv[0]} cannot be started: {error.strerror}\n".encode())
            self._say({"ended": name, "code": CANNOT_START})
            return
        finally:
            os.close(output)
        pidfd = os.pidfd_open(child.pid)
        self._children[name] = child
        self._by_pidfd[pidfd] = name
        self._poll.register(pidfd, select.POLLIN)
        self._say({"started": name, "pid": child.pid})

    def _ended(self, pidfd: int) -> None:
        name = self._by_pidfd.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        child = self._children.pop(name)
        _kill_group(child.pid)  # what it started itself; before it is buried, so that the number is nobody else's yet
        self._say({"ended": name, "code": child.wait()})

    def _say(self, news: dict[str, object]) -> None:
        with suppress(BrokenPipeError):  # the agent is gone: the next look at the line shows it
            self._line.sendall(json.dumps(news).encode())


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def main(handle: int) -> None:
    """The program."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda *_: None)  # meant for the agent, which tells us; not inherited, as ignoring would be
    with socket.socket(fileno=handle) as line:
        warden = Warden(line)
        try:
            warden.run()
        finally:
            warden.end()


if __name__ == "__main__":
    main(int(sys.argv[1]))

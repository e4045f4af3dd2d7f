"""The agent's only child: it starts, watches and ends every worker, and its workers end with it.

An agent has threads, and a process with threads must not fork; this one has none. It starts each worker in a process
group of its own and reports its end. Processes that a worker leaves behind are killed with it, also outside its group:
they become children of the spawner and carry the worker's name. However the agent ends, `kill -9` included, the spawner
sees its socket close, kills all descendants, and ends. If the spawner is killed, its children are too (PDEATHSIG).

Requests and reports, one JSON object each:

    {"start": NAME, "argv": [...], "env": {...}}      in, with the end of a pipe for its output, or one each for
                                                      standard output and error
    {"fork": NAME, "script": {...}, ...}              in, likewise; `argv` is used if there is no template (`template`)
    {"warm": [MODULE, ...], "env": {...}}             in: start the template, and end an earlier one
    {"signal": NAME, "number": 15}                    in
    {"kill": NAME}                                    in
    {"started": NAME, "pid": N, "plainly": WHY}       out; the reason if a requested fork was not possible
    {"ended": NAME, "code": N}                        out
    {"warmed": WHY}                                   out: empty if the template is ready, else why it is not used
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
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pliant import settings
from pliant.agent.process.script import Script
from pliant.agent.process.template import MESSAGE_MAX, CannotFork, Template
from pliant.agent.process.template_child import MARK
from pliant.parent_death import die_with_parent, ignore_stop_signals

CANNOT_START = 127  # what a shell calls a program that could not be started

_PR_SET_CHILD_SUBREAPER = 36
_SWEEP_S = 0.001  # to die in
_SWEEPS = 100  # processes that start others faster than they are killed are left to the end


@dataclass(frozen=True, slots=True)
class _Child:
    """A named child; `wait` reaps it and returns its exit status."""

    pid: int
    wait: Callable[[], int]


class Spawner:
    """The children, and the socket to the agent."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._pid = os.getpid()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._children: dict[str, _Child] = {}
        self._by_pidfd: dict[int, str] = {}
        self._template: Template | None = None
        self._reported_status: str | None = None
        self._poll = select.poll()
        self._poll.register(line, select.POLLIN)
        self._child_ended, ended = os.pipe()
        for each in (self._child_ended, ended):
            os.set_blocking(each, False)
        self._poll.register(self._child_ended, select.POLLIN)
        signal.set_wakeup_fd(ended, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        """Serve until the agent is gone."""
        while True:
            # One event at a time: handling it may close other handles, whose numbers are reused.
            handle, _ = self._poll.poll()[0]
            if handle in self._by_pidfd:
                self._ended(handle)
            elif handle == self._child_ended:
                os.read(handle, MESSAGE_MAX)
                self._reap_orphans()
            elif handle == self._line.fileno():
                try:
                    data, handles, _, _ = socket.recv_fds(self._line, MESSAGE_MAX, 2)
                except ConnectionResetError:
                    return  # the agent was killed before it had read every report
                if not data:
                    return
                self._handle_request(json.loads(data), handles)
            elif self._template is not None:
                self._template.on_readable(handle)
                self._report_template()

    def end(self) -> None:
        """Kill all descendants, and wait until they are gone."""
        while True:
            for pid in _descendants(self._pid):
                with suppress(ProcessLookupError, PermissionError):  # gone, or another user's by now
                    os.kill(pid, signal.SIGKILL)
            try:
                os.wait()
            except ChildProcessError:
                return

    def _handle_request(self, order: dict[str, Any], handles: list[int]) -> None:
        if "start" in order:
            self._start(order["start"], order["argv"], order["env"], handles)
        elif "fork" in order:
            self._fork(order["fork"], order, handles)
        elif "warm" in order:
            self._start_template(order["warm"], order["env"])
        elif (child := self._children.get(order.get("kill", ""))) is not None:
            _kill_group(child.pid)
        elif (child := self._children.get(order.get("signal", ""))) is not None:
            os.kill(child.pid, order["number"])  # it is a child and not reaped yet, so the pid is still its own

    def _start(self, name: str, argv: list[str], env: dict[str, str], output: list[int], plainly: str = "") -> None:
        try:
            child = subprocess.Popen(
                argv,
                env=settings.child_environment(env),
                stdin=subprocess.DEVNULL,
                stdout=output[0],
                stderr=output[-1],
                start_new_session=True,  # a group of its own, and its own share of the CPUs where sessions have one
                preexec_fn=lambda: die_with_parent(self._pid),  # noqa: PLW1509  # there are no threads
            )
        except OSError as error:
            with suppress(OSError):  # the reader is gone
                os.write(output[-1], f"{argv[0]} cannot be started: {error.strerror}\n".encode())
            self._report({"ended": name, "code": CANNOT_START})
            return
        finally:
            for each in output:
                os.close(each)
        self._started(name, _Child(child.pid, child.wait), plainly)

    def _started(self, name: str, child: _Child, plainly: str) -> None:
        pidfd = os.pidfd_open(child.pid)
        self._children[name] = child
        self._by_pidfd[pidfd] = name
        self._poll.register(pidfd, select.POLLIN)
        self._report({"started": name, "pid": child.pid, "plainly": plainly})

    def _ended(self, pidfd: int) -> None:
        name = self._by_pidfd.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        child = self._children.pop(name)
        _kill_group(child.pid)  # its children, before it is reaped, so that the pid is not reused yet
        code = child.wait()
        self._sweep(name)
        self._report({"ended": name, "code": code})

    def _report(self, report: dict[str, object]) -> None:
        with suppress(BrokenPipeError):  # the agent is gone: the next poll of the socket shows it
            self._line.sendall(json.dumps(report).encode())

    # ------------------------------------------------------------------------------------------- the template

    def _start_template(self, modules: list[str], env: dict[str, str]) -> None:
        self._drop_template()
        self._reported_status = None
        try:
            made = Template(modules, settings.child_environment(env), lambda: die_with_parent(self._pid))
        except OSError as error:
            self._report({"warmed": f"the template cannot be started: {error.strerror}"})
            return
        self._template = made
        self._poll.register(made.line, select.POLLIN)
        self._poll.register(made.output, select.POLLIN)

    def _fork(self, name: str, order: dict[str, Any], output: list[int]) -> None:
        script = Script(order["script"]["kind"], order["script"]["name"], tuple(order["script"]["args"]))
        try:
            if self._template is None:
                raise CannotFork("there is no template")
            # Nothing else runs meanwhile: no unknown child is reaped, and no signal precedes its child.
            pid, go = self._template.fork(name, script, settings.child_environment(order["env"]), output)
        except CannotFork as error:
            self._report_template()
            self._start(name, order["argv"], order["env"], output, plainly=str(error))
            return
        for each in output:
            os.close(each)
        self._started(name, _Child(pid, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])), "")
        with suppress(BrokenPipeError):  # it was killed before it began
            os.write(go, b"\n")
        os.close(go)

    def _report_template(self) -> None:
        """Report whether the template is ready, and end it if it cannot be used."""
        if self._template is None or self._template.warming:
            return
        if self._template.why != self._reported_status:
            self._reported_status = self._template.why
            self._report({"warmed": self._reported_status})
        if not self._template.ready:
            self._drop_template()

    def _drop_template(self) -> None:
        if self._template is not None:
            self._poll.unregister(self._template.line)
            self._poll.unregister(self._template.output)
            self._template.end()
            self._template = None

    # ---------------------------------------------------------------------------------------------- the orphans

    def _reap_orphans(self) -> None:
        """Reap orphans. Named children are reaped by their pidfd, the template by its socket."""
        ours = self._known()
        for pid, (parent, state) in _all_processes().items():
            if parent == self._pid and state == "Z" and pid not in ours:
                with suppress(ChildProcessError):  # the pid may belong to another process by now
                    os.waitpid(pid, os.WNOHANG)

    def _known(self) -> set[int]:
        template = {self._template.process.pid} if self._template is not None else set()
        return {child.pid for child in self._children.values()} | template

    def _sweep(self, name: str) -> None:
        """Kill the processes of a child that have left its group: orphans and their descendants."""
        for _ in range(_SWEEPS):
            left = [pid for pid in _descendants(self._pid, self._known()) if _is_part_of(pid, name)]
            if not left:
                return
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):  # gone, or another user's by now
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_SWEEP_S)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # gone, or another user's by now
        os.killpg(pid, signal.SIGKILL)


def _all_processes() -> dict[int, tuple[int, str]]:
    """Return the parent and state of every process."""
    found = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with suppress(OSError):  # it has ended
                state, parent = (each / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                found[int(each.name)] = (int(parent), state)
    return found


def _descendants(top: int, without: set[int] | None = None) -> list[int]:
    """The living children of a process, theirs, and so on; not those named, nor what is below them."""
    children: dict[int, list[int]] = {}
    states = {}
    for pid, (parent, state) in _all_processes().items():
        children.setdefault(parent, []).append(pid)
        states[pid] = state
    found, todo = [], [top]
    while todo:
        for pid in children.get(todo.pop(), []):
            if pid not in (without or ()):
                todo.append(pid)
                if states[pid] not in "ZX":
                    found.append(pid)
    return found


def _is_part_of(pid: int, name: str) -> bool:
    """Return whether a process descends from this worker: by its environment, or by the mark of a fork."""
    process = Path("/proc") / str(pid)
    try:
        if f"PLIANT_MEMBER={name}".encode() in (process / "environ").read_bytes().split(b"\0"):
            return True
        return f"/memfd:{MARK}{name[:200]} (deleted)" in (process / "maps").read_text(errors="replace")
    except OSError:  # it has ended
        return False


def main(handle: int) -> None:
    """Run the spawner."""
    ignore_stop_signals()  # they are meant for the agent
    with socket.socket(fileno=handle) as line:
        spawner = Spawner(line)
        try:
            spawner.run()
        finally:
            spawner.end()


if __name__ == "__main__":
    main(int(sys.argv[1]))

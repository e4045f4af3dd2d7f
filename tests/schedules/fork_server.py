"""The fork server of members: a process of one thread that has imported everything.

An agent keeps one, since it has threads itself and must not fork. Its members are its children; if it ends, so do
they, and it ends with its agent.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import traceback

from pliant.core.model.names import AgentId, MemberId
from schedules.member import Place, live
from schedules.messages import die_with_parent


def open_fork_server(agent: AgentId, place: Place) -> socket.socket:
    """Call before there is any thread. Gives the line to it: orders go in, lines about births and ends come out."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # one order is one message
    if os.fork():
        its.close()
        return ours
    ours.close()
    try:
        die_with_parent()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # a member takes it when it is ready for it
        _ForkServer(agent, place, its).run()
    finally:
        os._exit(1)


class _ForkServer:
    def __init__(self, agent: AgentId, place: Place, line: socket.socket) -> None:
        self._agent = agent
        self._place = place
        self._line = line
        self._children: dict[MemberId, int] = {}
        self._by_pidfd: dict[int, MemberId] = {}
        self._poll = select.poll()
        self._poll.register(line, select.POLLIN)

    def run(self) -> None:
        while True:
            for handle, _ in self._poll.poll():
                if handle in self._by_pidfd:
                    self._buried(handle)
                    continue
                order = self._line.recv(1000).decode().split()
                if not order:
                    return
                self._obey(order[0], MemberId(order[1]))

    def _obey(self, what: str, member: MemberId) -> None:
        if what == "start":
            self._bear(member)
        elif member in self._children:
            os.kill(self._children[member], signal.SIGTERM if what == "term" else signal.SIGKILL)

    def _bear(self, member: MemberId) -> None:
        pid = os.fork()
        if not pid:
            try:
                die_with_parent()
                os.setpgid(0, 0)
                self._line.close()
                os._exit(live(member, self._agent, self._place))
            except BaseException:  # why: a child must never come back into the loop of its parent
                traceback.print_exc()
            finally:
                os._exit(1)
        pidfd = os.pidfd_open(pid)
        self._children[member] = pid
        self._by_pidfd[pidfd] = member
        self._poll.register(pidfd, select.POLLIN)

    def _buried(self, pidfd: int) -> None:
        member = self._by_pidfd.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(self._children.pop(member), 0)
        self._line.sendall(f"ended {member} {os.waitstatus_to_exitcode(status)}".encode())

"""Real parameter servers in this process, over real connections, with layouts from the coordinator's own decisions."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from e2e.running import wait_for
from pliant.core import messages as m
from pliant.core.model.names import MemberId
from pliant.core.ps import messages as p
from pliant.ps import PushPolicy, Table
from pliant.ps.access import TableAccess
from pliant.ps.client import LayoutNews, ServerRows
from pliant.ps.saving import TableStorage
from pliant.ps.server import ParameterServer
from unit.core.ps.fleet import Fleet
from unit.core.tasks.queue import X

KEY = b"k" * 32
LIMIT_S = 120


class RunningServers:
    """Servers, their layouts, and workers' access to them."""

    def __init__(self, storage: Path | None = None) -> None:
        self.fleet = Fleet()
        self.news = LayoutNews()
        self.running: dict[MemberId, ParameterServer] = {}
        self._storage = storage
        self._lock = threading.Lock()
        self._opened: list[TableAccess] = []

    def start(self, name: str) -> ParameterServer:
        """Start a server, and let it join."""
        member = MemberId(name)
        storage = TableStorage(str(self._storage), "demo", "owner", 2) if self._storage is not None else None
        server = ParameterServer("127.0.0.1", member, lambda layout: self.tell(p.ReportCopied(member, layout)), storage)
        self.running[member] = server
        self.tell(p.JoinServers(member, X, server.address))
        return server

    def kill(self, name: str) -> None:
        """End a server without a word, and then let the coordinator find it."""
        self.running.pop(MemberId(name)).close()
        self.tell(m.Exited(MemberId(name), -9))

    def tell(self, command: m.Command) -> None:
        with self._lock:
            self.fleet.tell(command)
            layout = self.fleet.layout
            history = self.fleet.it.ps.history if self.fleet.it.ps is not None else 0
        for server in list(self.running.values()):
            server.follow(layout, KEY, history)
        self.news.put(layout, KEY.hex())

    def settle(self) -> None:
        """Wait until all copies are filled, and every bucket has two if there are two servers."""
        wait_for(lambda: not self.fleet.layout.fillers(), "copies that are filled", LIMIT_S)

    def access(self, worker: str, tables: list[Table], policy: PushPolicy | None = None) -> TableAccess:
        policy = policy or PushPolicy()
        rows = ServerRows(MemberId(worker), tables, policy, self.news, lambda: None)
        self._opened.append(TableAccess(worker, tables, policy, rows))
        return self._opened[-1]

    def close(self) -> None:
        for access in self._opened:
            access.close()
        for server in self.running.values():
            server.close()


class CountingWorker:
    """A worker that pushes gradients of -1 to random ids, and knows the sum of those that were acknowledged."""

    def __init__(self, servers: RunningServers, name: str, table: Table, ids: int, seed: int) -> None:
        self.access = servers.access(name, [table])
        self.sums = np.zeros(ids, np.float32)
        self._rng = np.random.default_rng(seed)
        self._table = table

    def push(self, times: int) -> None:
        for _ in range(times):
            ids = self._rng.integers(0, len(self.sums), 200)
            assert self.access.push({self._table.name: (ids, np.full((200, self._table.dim), -1.0))})
            np.add.at(self.sums, ids, 1)

"""Measure parameter servers on this machine: rows pulled and pushed per second, latency, and the cost of the backup.

One worker and 1 to 4 servers, each a process of its own, over loopback, with the layouts of the coordinator's own
decisions. A plain socket's bandwidth in the same run shows what the machine can do. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import socket
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from pliant.core.model.names import MemberId
from pliant.core.ps.model import BucketLayout, ServerAddress, ServerTable, empty_layout
from pliant.core.ps.place import next_placement
from pliant.ps import Adagrad, PushPolicy, Table
from pliant.ps.access import TableAccess
from pliant.ps.client import LayoutNews, ServerRows
from pliant.ps.server import ParameterServer

KEY = b"k" * 32
TABLE = Table("t", 64, Adagrad(0.05))
IDS = 200_000


def serve(name: str, pipe: Connection) -> None:
    """Run one server. The other end of the pipe sends layouts, and receives reports and the processor time."""
    server = ParameterServer("127.0.0.1", MemberId(name), lambda layout: pipe.send(("copied", layout)))
    pipe.send(("address", server.address))
    while True:
        order, value = pipe.recv()
        if order == "layout":
            server.follow(value, KEY, 1)
        elif order == "usage":
            used = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send(("usage", used.ru_utime + used.ru_stime))
        else:
            server.close()
            return


class BenchServers:
    """Server processes and their layout. Without backups, every bucket has its primary alone."""

    def __init__(self, count: int, *, backups: bool) -> None:
        self.pipes, self.processes = [], []
        context = multiprocessing.get_context("spawn")
        addresses = []
        for at in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(f"s{at}", theirs), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)
            addresses.append(ServerAddress(MemberId(f"s{at}"), self._receive(at, "address")))
        self.news = LayoutNews()
        table = ServerTable(1, empty_layout(0))
        while (placed := next_placement(table, addresses, frozenset(), table.layout.number + 1)) is not None:
            table = ServerTable(1, placed.layout, placed.layout.fillers())
        layout = table.layout
        if not backups:
            layout = BucketLayout(layout.number, layout.servers, layout.primary, (-1,) * 1024, layout.incoming)
        for pipe in self.pipes:
            pipe.send(("layout", layout))
        self.news.put(layout, KEY.hex())

    def _receive(self, at: int, wanted: str) -> Any:
        while True:
            kind, value = self.pipes[at].recv()
            if kind == wanted:
                return value

    def cpu_s(self) -> float:
        for pipe in self.pipes:
            pipe.send(("usage", None))
        return float(sum(self._receive(at, "usage") for at in range(len(self.pipes))))

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send(("close", None))
            process.join(30)


def measure(count: int, seconds: float, *, backups: bool) -> dict[str, float]:
    """Pull and push batches of Zipf ids for some seconds each."""
    servers = BenchServers(count, backups=backups)
    policy = PushPolicy()
    access = TableAccess("w", [TABLE], policy, ServerRows(MemberId("w"), [TABLE], policy, servers.news, lambda: None))
    rng = np.random.default_rng(0)
    batches = [np.unique(np.minimum(rng.zipf(1.2, 10_000), IDS)) for _ in range(20)]
    gradients = [np.ones((len(ids), TABLE.dim), np.float32) for ids in batches]
    for ids, gradient in zip(batches, gradients, strict=True):
        access.push({"t": (ids, gradient)})
    found: dict[str, float] = {"servers": count, "backups": backups}
    for name in ("pull", "push"):
        times: list[float] = []
        rows = 0
        cpu, until = servers.cpu_s(), time.perf_counter() + seconds
        while time.perf_counter() < until:
            at = len(times) % len(batches)
            began = time.perf_counter()
            if name == "pull":
                access.pull("t", batches[at])
            else:
                access.push({"t": (batches[at], gradients[at])})
            times.append(time.perf_counter() - began)
            rows += len(batches[at])
        used = servers.cpu_s() - cpu
        found |= {
            f"{name}_rows_per_s": round(rows / sum(times)),
            f"{name}_rows_per_server_core_s": round(rows / used) if used else 0,
            f"{name}_p50_ms": round(float(np.percentile(times, 50)) * 1e3, 2),
            f"{name}_p99_ms": round(float(np.percentile(times, 99)) * 1e3, 2),
        }
    access.close()
    servers.close()
    return found


def socket_bytes_per_s(seconds: float) -> float:
    """Return how much one plain socket carries over loopback between two threads."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        received = 0

        def receive() -> None:
            nonlocal received
            connection, _ = listener.accept()
            buffer = bytearray(1 << 20)
            with connection:
                while count := connection.recv_into(buffer):
                    received += count

        thread = threading.Thread(target=receive)
        thread.start()
        began = time.perf_counter()
        with socket.create_connection(listener.getsockname()) as connection:
            content = bytes(1 << 20)
            while time.perf_counter() < began + seconds:
                connection.sendall(content)
        thread.join()
        return received / (time.perf_counter() - began)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=float, default=3.0)
    given = options.parse_args()
    runs = []
    for count, backups in ((1, False), (2, False), (2, True), (3, True), (4, True)):
        runs.append(measure(count, given.seconds, backups=backups))
        print(runs[-1], flush=True)
    found = {
        "ok": True,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "row_bytes": 4 * TABLE.dim,
        "socket_mb_per_s": round(socket_bytes_per_s(given.seconds) / 1e6),
        "runs": runs,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

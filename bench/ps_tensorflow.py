"""Measure TensorFlow's ParameterServerStrategy and Pliant's servers on one model: rows of an embedding with Adagrad.

Two servers and one worker each, processes of their own over loopback, in turn. A step looks up a batch of Zipf ids and
applies the gradients of their sum of squares. TensorFlow keeps one copy of each row; Pliant is measured with one and
with two. Needs the frameworks' environment. Ends with one JSON object. Timings are reported, not judged.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import statistics
import time
from typing import Any

import numpy as np
from ps import IDS, TABLE, BenchServers

from pliant.core.model.names import MemberId
from pliant.ps import PushPolicy
from pliant.ps.access import TableAccess
from pliant.ps.client import ServerRows

SERVERS = 2
STEPS = 40
ROUNDS = 3
RATE = 0.05


def batches() -> list[Any]:
    rng = np.random.default_rng(0)
    return [np.unique(np.minimum(rng.zipf(1.2, 10_000), IDS) - 1) for _ in range(STEPS)]


def serve(cluster: dict[str, list[str]], job: str, index: int) -> None:
    """Run one server of TensorFlow until this process is ended."""
    import tensorflow as tf

    tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index, protocol="grpc").join()


def free_addresses(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = ["{}:{}".format(*each.getsockname()) for each in sockets]
    for each in sockets:
        each.close()
    return found


class TensorFlowServers:
    """A cluster of ParameterServerStrategy with one worker, and a compiled step on it."""

    def __init__(self) -> None:
        addresses = free_addresses(SERVERS + 1)
        cluster = {"worker": addresses[:1], "ps": addresses[1:]}
        context = multiprocessing.get_context("spawn")
        places = [("worker", 0), *(("ps", index) for index in range(SERVERS))]
        self._processes = [context.Process(target=serve, args=(cluster, *place), daemon=True) for place in places]
        for process in self._processes:
            process.start()
        import tensorflow as tf

        self._tf = tf
        spec = tf.train.ClusterSpec({**cluster, "chief": free_addresses(1)})
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            spec, rpc_layer="grpc", task_type="chief", task_id=0
        )
        split = tf.distribute.experimental.partitioners.FixedShardsPartitioner(SERVERS)
        strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=split)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            rows = tf.Variable(tf.random.uniform((IDS, TABLE.dim)), name="rows")
            sums = tf.Variable(tf.fill((IDS, TABLE.dim), 0.1), name="sums")

        def step(ids: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.nn.embedding_lookup(rows, ids) ** 2)
            found = tape.gradient(loss, rows.variables)
            for part, total, gradient in zip(rows.variables, sums.variables, found, strict=True):
                tf.raw_ops.ResourceSparseApplyAdagradV2(
                    var=part.handle,
                    accum=total.handle,
                    lr=RATE,
                    epsilon=1e-7,
                    grad=gradient.values,
                    indices=gradient.indices,
                )
            return loss

        self._step = tf.function(step, input_signature=[tf.TensorSpec((None,), tf.int64)])

    def step(self, ids: Any) -> None:
        self._coordinator.schedule(self._step, args=(self._tf.constant(ids),)).fetch()

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
            process.join()


class PliantServers:
    """Servers and one worker of Pliant."""

    def __init__(self, *, backups: bool) -> None:
        self._servers = BenchServers(SERVERS, backups=backups)
        policy = PushPolicy()
        rows = ServerRows(MemberId("w"), [TABLE], policy, self._servers.news, lambda: None)
        self._access = TableAccess("w", [TABLE], policy, rows)

    def step(self, ids: Any) -> None:
        rows = self._access.pull("t", ids)
        self._access.push({"t": (ids, 2 * rows)})

    def close(self) -> None:
        self._access.close()
        self._servers.close()


def rows_per_s(system: TensorFlowServers | PliantServers, given: list[Any]) -> float:
    began = time.perf_counter()
    for ids in given:
        system.step(ids)
    return sum(map(len, given)) / (time.perf_counter() - began)


def main() -> None:
    given = batches()
    systems: dict[str, TensorFlowServers | PliantServers] = {
        "tensorflow": TensorFlowServers(),
        "pliant": PliantServers(backups=False),
        "pliant_two_copies": PliantServers(backups=True),
    }
    try:
        for system in systems.values():
            rows_per_s(system, given)  # creates the rows, and compiles
        found: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(ROUNDS):
            for name, system in systems.items():
                found[name].append(rows_per_s(system, given))
    finally:
        for system in systems.values():
            system.close()
    medians = {f"{name}_rows_per_s": round(statistics.median(each)) for name, each in found.items()}
    rows = round(statistics.mean(map(len, given)))
    print(json.dumps({"ok": True, "load": round(os.getloadavg()[0], 1), "rows_in_a_step": rows, **medians}))


if __name__ == "__main__":
    main()

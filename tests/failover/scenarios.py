"""The faults of a leader. After each, a resize must work again, no member may be lost, and no step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import httpx2

from failover.cluster import AGENTS, Cluster, Coordinator
from failover.lab import STORE_NET, WORK_NET

FROZEN_S = 30.0
CUT_S = 30.0
QUORUM_LOST_S = 60.0
COMPACTIONS = 5  # before the resize, and after it
HEALTH_S = 0.2  # the longest answer of /healthz meanwhile

Fault = Callable[[Cluster, Coordinator], AbstractContextManager[None]]


def _passed(began: float, seconds: float) -> Callable[[], bool]:
    return lambda: time.monotonic() >= began + seconds


@contextmanager
def killed(cluster: Cluster, leader: Coordinator) -> Iterator[None]:
    """The leader is killed, and started again later."""
    leader.kill()
    yield
    leader.restart()


@contextmanager
def frozen(cluster: Cluster, leader: Coordinator) -> Iterator[None]:
    """The leader is frozen for 30 s with all its connections open, and resumed."""
    began = time.monotonic()
    leader.freeze()
    yield
    cluster.until(_passed(began, FROZEN_S), "the freeze to last")
    leader.resume()


def _cut(*networks: str) -> Fault:
    @contextmanager
    def fault(cluster: Cluster, leader: Coordinator) -> Iterator[None]:
        began = time.monotonic()
        leader.host.cut(*networks)
        yield
        cluster.until(_passed(began, CUT_S), "the cut to last")
        leader.host.heal()

    return fault


FAULTS: dict[str, Fault] = {
    "killed": killed,
    "frozen": frozen,
    "cut off from etcd": _cut(STORE_NET),
    "cut off from members": _cut(WORK_NET),
    "cut off from both": _cut(STORE_NET, WORK_NET),
}


@dataclass
class HealthProbe:
    """Asks `/healthz` of every coordinator ten times a second, and keeps the longest time to an answer."""

    cluster: Cluster
    longest_s: float = 0.0
    answers: int = 0
    failures: list[str] = field(default_factory=list)

    def __enter__(self) -> HealthProbe:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        with self.cluster.health_client() as client:
            while not self._over.wait(0.1):
                for url in self.cluster.urls:
                    began = time.monotonic()
                    try:
                        self.cluster.healthz(url, client)
                    except httpx2.HTTPError as error:
                        self.failures.append(f"{url}: {error!r}")
                    self.answers += 1
                    self.longest_s = max(self.longest_s, time.monotonic() - began)


def lose_quorum(cluster: Cluster) -> dict[str, float]:
    """Two of three etcd members stop for a minute: training goes on, `/healthz` answers, and no member is lost."""
    there, before = cluster.members(), cluster.trained()
    with HealthProbe(cluster) as probe:
        cluster.stop_etcd(2)
        cluster.until(_passed(time.monotonic(), QUORUM_LOST_S), "the loss of the quorum to last")
        trained = cluster.trained()
        cluster.resume_etcd()
        resized = cluster.resize(AGENTS - 1)
    assert not probe.failures, f"/healthz failed: {probe.failures[:3]}"
    assert probe.longest_s < HEALTH_S, f"/healthz took {probe.longest_s:.3f} s"
    assert max(trained.values()) > max(before.values()), f"training stood still: {before}, {trained}"
    assert cluster.members() <= there, "a member was replaced"
    cluster.resize(AGENTS)
    return {
        "resized_s": resized.trained_s,
        "health_longest_s": round(probe.longest_s, 3),
        "health_answers": probe.answers,
    }


def compact(cluster: Cluster) -> dict[str, float]:
    """Compact and defragment etcd again and again during a resize: nothing waits for it that matters."""
    there, revisions = cluster.members(), []
    with HealthProbe(cluster) as probe:
        revisions = [cluster.compact_etcd() for _ in range(COMPACTIONS)]
        resized = cluster.resize(AGENTS - 1)
        revisions += [cluster.compact_etcd() for _ in range(COMPACTIONS)]
    assert not probe.failures, f"/healthz failed: {probe.failures[:3]}"
    assert probe.longest_s < HEALTH_S, f"/healthz took {probe.longest_s:.3f} s"
    assert revisions[-1] > revisions[0], "nothing was written between the compactions"
    assert cluster.members() <= there, "a member was replaced"
    cluster.resize(AGENTS)
    return {
        "resized_s": resized.trained_s,
        "compactions": len(revisions),
        "health_longest_s": round(probe.longest_s, 3),
        "health_answers": probe.answers,
    }


def undisturbed(cluster: Cluster) -> dict[str, float]:
    """Return how long the same resize takes without a fault, to compare with."""
    resized = cluster.resize(AGENTS - 1)
    cluster.until(lambda: len(cluster.members()) == AGENTS - 1, "the one that leaves to be gone")
    cluster.resize(AGENTS)
    return {"accepted_s": resized.accepted_s, "resized_s": resized.trained_s}


def strike(cluster: Cluster, fault: Fault) -> dict[str, float]:
    """Strike the leader, resize during the fault and after it, and return the seconds that each took."""
    leader = cluster.leader()
    assert leader is not None, "no coordinator leads"
    there = cluster.members()
    began = time.monotonic()
    with fault(cluster, leader):
        resized = cluster.resize(AGENTS - 1)
    cluster.until(lambda: len(cluster.members()) == AGENTS - 1, "the one that leaves to be gone")
    stayed = cluster.members()
    assert stayed <= there, f"{sorted(stayed - there)} replaced members, which were {sorted(there)}"
    cluster.resize(AGENTS)
    assert stayed <= cluster.members(), f"{sorted(stayed - cluster.members())} are gone"
    return {
        "accepted_s": resized.accepted_s,
        "resized_s": resized.trained_s,
        "fault_s": round(time.monotonic() - began, 1),
    }

"""The stores that are held to the contract, and how a test gets one.

To add a store, write a function that yields an `Opened` and name it in `STORES`. Every test of this folder
then runs on it. `another` opens one more handle on the same store, as a second process would; a store that
lives in one process hands out itself. `where` names the store to other processes; a
store that has one belongs into `SHARED` too. `clock` is the time that holds are measured by; tests let it pass and
never wait.
"""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from contract.etcd_cluster import EtcdCluster, etcd_cluster
from pliant.stores.base import Busy, Hold, Store
from pliant.stores.etcd import EtcdAccess, EtcdStore
from pliant.stores.memory import MemoryStore
from pliant.stores.sqlite import SqliteStore


class Clock:
    """The time of a test. A store that measures holds by a clock of its own replaces `advance`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True, slots=True)
class Opened:
    """A new, empty store under test."""

    store: Store
    another: Callable[[], Store]
    where: str = ""
    clock: Clock = field(default_factory=Clock)
    is_one_process: bool = False  # all its callers share one clock

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)


@dataclass(frozen=True, slots=True)
class Caller:
    """A process that asks for holds: its own name, its own handle, and its own clock, which runs like all others."""

    owner: str
    store: Store
    clock: Clock
    skew_s: float = 0.0

    @property
    def now(self) -> float:
        return self.clock.now + self.skew_s

    def ask(self, ttl_s: float = 10.0, name: str = "lead", url: str = "") -> Hold | Busy:
        answer = self.store.hold(name, self.owner, ttl_s, self.now, url)
        if isinstance(answer, Hold):
            assert (answer.name, answer.owner, answer.url) == (name, self.owner, url)
            assert answer.until_s >= self.now + ttl_s
        else:
            assert answer.hold.owner != self.owner
            assert answer.hold.until_s >= self.now
        return answer

    def gain(self, ttl_s: float = 10.0, name: str = "lead", url: str = "") -> Hold:
        """Ask where another answer would be a mistake of the store."""
        answer = self.ask(ttl_s, name, url)
        assert isinstance(answer, Hold), answer
        return answer

    def held_by(self, ttl_s: float = 10.0, name: str = "lead") -> tuple[str, int]:
        """Ask while another one holds; return its name and its term."""
        answer = self.ask(ttl_s, name)
        assert isinstance(answer, Busy), answer
        return answer.hold.owner, answer.hold.term


@contextmanager
def memory(identity: str) -> Iterator[Opened]:
    store = MemoryStore(identity)
    yield Opened(store, another=lambda: store, is_one_process=True)


@contextmanager
def sqlite(identity: str) -> Iterator[Opened]:
    handles: list[SqliteStore] = []

    def another() -> SqliteStore:
        # On a machine that is busy with other tests, waiting long for another writer is no failure.
        handles.append(SqliteStore(path, identity=identity, wait_s=30.0))
        return handles[-1]

    with TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        try:
            yield Opened(another(), another, where=f"sqlite:{path}")
        finally:
            for handle in handles:
                handle.close()


class LeaseClock(Clock):
    """A clock for etcd, whose leases run by etcd's own: when time passes here, the leases that it ends are revoked."""

    def __init__(self, cluster: EtcdCluster, prefix: str) -> None:
        super().__init__()
        self._ask = cluster.servers[0].ask
        self._prefix = prefix
        self.ends: dict[str, float] = {}  # of each hold, by its name

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        for name, end_s in [*self.ends.items()]:
            if self.now >= end_s:
                del self.ends[name]
                key = base64.b64encode(f"{self._prefix}/hold/{name}".encode()).decode()
                found: Any = self._ask("/v3/kv/range", {"key": key}).get("kvs", [])
                for entry in found:
                    self._ask("/v3/lease/revoke", {"ID": entry["lease"]})


class LeaseNotingStore(EtcdStore):
    """A handle that tells the clock when holds end."""

    clock: LeaseClock

    def hold(self, name: str, owner: str, ttl_s: float, now: float, url: str = "") -> Hold | Busy:
        answer = super().hold(name, owner, ttl_s, now, url)
        if isinstance(answer, Hold):
            self.clock.ends[name] = self.clock.now + ttl_s
        return answer


@contextmanager
def etcd(cluster: EtcdCluster, identity: str) -> Iterator[Opened]:
    prefix = f"test-{uuid.uuid4().hex}"
    # On a machine that is busy with other tests, a slow answer is no failure.
    access = EtcdAccess(cluster.endpoints, prefix, deadline_s=30.0)
    clock = LeaseClock(cluster, prefix)
    handles: list[EtcdStore] = []

    def another() -> EtcdStore:
        handle = LeaseNotingStore(access, identity=identity)
        handle.clock = clock
        granted = handle._client.grant
        handle._client.grant = lambda ttl_s: granted(3600)  # type: ignore[method-assign]  # the clock above ends them
        handles.append(handle)
        return handle

    try:
        yield Opened(another(), another, where=f"etcd:{access.place}", clock=clock)
    finally:
        for handle in handles:
            handle.close()


Factory = Callable[[str], AbstractContextManager[Opened]]

STORES: dict[str, Factory] = {"memory": memory, "sqlite": sqlite}
CLUSTERS = {"etcd": 1, "etcd of three": 3}  # the number of members
SHARED = ["sqlite", *CLUSTERS]  # those that several processes can open; `racer.py` must know how

HISTORIES = int(os.environ.get("PLIANT_TEST_HISTORIES", "100"))


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], EtcdCluster]]:
    """The etcd clusters of this process, each started when it is first needed."""
    with ExitStack() as stack:

        @cache
        def start(name: str) -> EtcdCluster:
            folder = tmp_path_factory.mktemp("etcd")
            return stack.enter_context(etcd_cluster(folder, CLUSTERS[name]))

        yield start


def make_factory(name: str, clusters: Callable[[str], EtcdCluster]) -> Factory:
    return STORES[name] if name in STORES else partial(etcd, clusters(name))


@pytest.fixture(params=[*STORES, *CLUSTERS])
def factory(request: pytest.FixtureRequest, clusters: Callable[[str], EtcdCluster]) -> Factory:
    """For a test that needs many stores: called with an identity, gives a new one each time."""
    return make_factory(request.param, clusters)


@pytest.fixture
def opened(factory: Factory) -> Iterator[Opened]:
    with factory("the-store") as opened:
        yield opened


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest, clusters: Callable[[str], EtcdCluster]) -> Iterator[Opened]:
    """For a test with several processes: the processes open `shared.where`."""
    with make_factory(request.param, clusters)("the-shared-store") as opened:
        yield opened


@pytest.fixture
def store(opened: Opened) -> Store:
    return opened.store


@pytest.fixture
def second(opened: Opened) -> Store:
    """Another handle on the store of the same test."""
    return opened.another()


@pytest.fixture
def x(opened: Opened) -> Caller:
    return Caller("x", opened.store, opened.clock)


@pytest.fixture
def y(opened: Opened) -> Caller:
    """Another process than `x`. Where that may be, it is on a machine that was started long before."""
    return Caller("y", opened.another(), opened.clock, 0.0 if opened.is_one_process else 1e6)


@pytest.fixture
def histories(factory: Factory) -> int:
    """Return how many random histories each store is put through; PLIANT_TEST_HISTORIES asks for more."""
    return HISTORIES if factory in STORES.values() else max(2, HISTORIES // 50)

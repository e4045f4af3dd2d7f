"""Members of etcd that are killed, frozen, cut off or full."""

from __future__ import annotations

import base64
import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from contract.etcd_cluster import EtcdCluster, EtcdServer, etcd_cluster, run_page
from pliant.errors import StoreError, StoreTimeout, StoreUnavailable
from pliant.stores.base import Conflict, Hold, Write, Written
from pliant.stores.etcd import EtcdAccess, EtcdStore
from tidy.files import ROOT

DEADLINE_S = 1.0
SLACK_S = 1.5  # for a machine that is busy with other tests
PATIENCE_S = 30.0
JOB = "a"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("three"), 3) as cluster:
        yield cluster


@pytest.fixture
def cluster(three: EtcdCluster) -> Iterator[EtcdCluster]:
    """A cluster of three whose members all run at the beginning of a test."""
    yield three
    for server in three.servers:
        if server.process is None:
            server.start()
        server.resume()
    three.wait_healthy()


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"test-{random.SystemRandom().getrandbits(64):x}"


@pytest.fixture
def store(cluster: EtcdCluster, prefix: str) -> Iterator[EtcdStore]:
    with EtcdStore(EtcdAccess(cluster.endpoints, prefix, deadline_s=DEADLINE_S)) as store:
        yield store


@pytest.fixture
def patient(cluster: EtcdCluster, prefix: str) -> Iterator[EtcdStore]:
    """A handle for tests in which no deadline matters."""
    with EtcdStore(EtcdAccess(cluster.endpoints, prefix, deadline_s=PATIENCE_S)) as store:
        yield store


def keep_on(action: Callable[[], object], until_s: float = 30.0) -> object:
    """Repeat what the store cannot do now, as a coordinator does."""
    end = time.monotonic() + until_s
    while True:
        try:
            return action()
        except (StoreUnavailable, StoreTimeout):
            assert time.monotonic() < end, "etcd did not recover"


class Writer:
    """A coordinator that adds numbered events to one job, and decides again after each doubt, as the contract says."""

    def __init__(self, store: EtcdStore) -> None:
        self._store = store
        self.acknowledged: list[bytes] = []
        self.doubts = 0

    def add(self, data: bytes) -> None:
        end = time.monotonic() + 30.0
        while True:
            assert time.monotonic() < end, "etcd did not recover"
            expected = len(self.acknowledged)
            try:
                (outcome,) = self._store.write([Write(JOB, expected, (data,), b"r" if expected % 10 == 0 else None)])
            except StoreTimeout:
                self.doubts += 1
                found = keep_on(partial(self._store.events, JOB, expected, 1))
                assert isinstance(found, tuple)
                outcome = Written(expected + 1) if found and found[0].data == data else Conflict(expected)
            except StoreUnavailable:
                continue
            if outcome in (Written(expected + 1), Conflict(expected + 1)):  # a conflict with its own write
                self.acknowledged.append(data)
                return


def stored(store: EtcdStore) -> list[bytes]:
    return [entry.data for entry in store.events(JOB, 0, 10_000)]


# ------------------------------------------------------------------------------------------------ members that die


@pytest.mark.parametrize("which", ["leader", "follower", "asked"])
def test_no_acknowledged_write_is_lost_or_doubled_when_a_member_is_killed(
    cluster: EtcdCluster, store: EtcdStore, which: str
) -> None:
    leader = cluster.leader()
    victims = {
        "leader": leader,
        "follower": next(server for server in cluster.servers if server is not leader),
        "asked": cluster.servers[0],
    }
    writer = Writer(store)
    for number in range(60):
        if number == 20:
            victims[which].kill()
        if number == 40:
            victims[which].start()
        writer.add(b"%d" % number)
    assert stored(store) == writer.acknowledged == [b"%d" % number for number in range(60)]
    cluster.wait_healthy()
    for server in cluster.servers:  # and every member has the same
        with EtcdStore(EtcdAccess((server.endpoint,), store.place.partition("/")[2], deadline_s=PATIENCE_S)) as alone:
            assert stored(alone) == writer.acknowledged


def test_a_hold_outlives_the_death_of_the_leader_of_etcd(cluster: EtcdCluster, store: EtcdStore) -> None:
    mine = store.hold("lead", "x", 10.0, 0.0)
    assert isinstance(mine, Hold)
    cluster.leader().kill()
    again = keep_on(lambda: store.hold("lead", "x", 10.0, 1.0))
    assert isinstance(again, Hold)
    assert again.term == mine.term
    assert keep_on(lambda: store.write([Write(JOB, 0, (b"e",), b"r")], mine)) in [(Written(1),), (Conflict(1),)]


# --------------------------------------------------------------------------------------------- without a majority


def take_away(servers: list[EtcdServer], how: str) -> None:
    for server in servers:
        if how == "frozen":
            server.freeze()
        else:
            server.kill()


@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_without_a_majority_every_call_ends_in_time_and_afterwards_all_goes_on(
    cluster: EtcdCluster, store: EtcdStore, how: str
) -> None:
    store.write([Write(JOB, 0, (b"e1",), b"r")])
    take_away(cluster.servers[1:], how)
    calls: list[tuple[Callable[[], object], type[StoreError]]] = [
        (lambda: store.write([Write(JOB, 1, (b"e2",))]), StoreTimeout),
        (lambda: store.read(JOB), StoreUnavailable),
        (lambda: store.events(JOB, 0, 1), StoreUnavailable),
        (lambda: store.jobs(), StoreUnavailable),
        (lambda: store.read_page("", 10), StoreUnavailable),
        (lambda: store.hold("lead", "x", 3.0, 0.0), StoreUnavailable),
    ]
    for call, kind in calls:
        began = time.monotonic()
        with pytest.raises((kind, StoreTimeout)):
            call()
        assert time.monotonic() - began < DEADLINE_S + SLACK_S
    for server in cluster.servers[1:]:
        if how == "frozen":
            server.resume()
        else:
            server.start()
    found = keep_on(lambda: store.events(JOB, 1, 10))
    assert isinstance(found, tuple)
    expected = 1 + len(found)  # the write in doubt was applied or not, and never later than a newer one
    assert expected in (1, 2)
    outcome = keep_on(lambda: store.write([Write(JOB, expected, (b"e3",))]))
    assert outcome in [(Written(expected + 1),), (Conflict(2),), (Conflict(expected + 1),)]
    assert isinstance(keep_on(lambda: store.hold("lead", "x", 3.0, 0.0)), Hold)


@pytest.mark.long
def test_a_minute_without_a_majority_loses_nothing(cluster: EtcdCluster, store: EtcdStore) -> None:
    writer = Writer(store)
    for number in range(10):
        writer.add(b"%d" % number)
    take_away(cluster.servers[1:], "frozen")
    until = time.monotonic() + 60.0
    while time.monotonic() < until:
        began = time.monotonic()
        with pytest.raises((StoreUnavailable, StoreTimeout)):
            store.write([Write(JOB, 99, (b"never",))])
        assert time.monotonic() - began < DEADLINE_S + SLACK_S
    for server in cluster.servers[1:]:
        server.resume()
    for number in range(10, 20):
        writer.add(b"%d" % number)
    assert stored(store) == [b"%d" % number for number in range(20)]


# ------------------------------------------------------------------------------------------------------ endpoints


@pytest.fixture
def silent() -> Iterator[str]:
    """An endpoint that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def closed() -> str:
    """An endpoint that refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_silent_endpoint_is_passed_over(cluster: EtcdCluster, prefix: str, silent: str) -> None:
    access = EtcdAccess((silent, *cluster.endpoints), prefix, deadline_s=DEADLINE_S)
    with EtcdStore(access) as store:
        assert store.write([Write(JOB, 0, (b"e1",), b"r")]) == (Written(1),)
        began = time.monotonic()
        for _ in range(20):
            assert store.read(JOB) is not None
        assert time.monotonic() - began < 20 * DEADLINE_S / 2  # it is not asked first any more


def test_a_change_sent_to_a_silent_endpoint_is_in_doubt_and_the_next_goes_elsewhere(
    cluster: EtcdCluster, store: EtcdStore, silent: str
) -> None:
    client = store._client
    client._urls = (f"http://{silent}", *client._urls)
    client._access = EtcdAccess((silent, *cluster.endpoints), deadline_s=DEADLINE_S)
    client._first = 0
    with pytest.raises(StoreTimeout, match="did not confirm a write"):
        store.write([Write(JOB, 1, (b"e1",))])
    assert store.write([Write(JOB, 0, (b"e1",), b"r")]) == (Written(1),)


def test_a_refusing_endpoint_is_passed_over_by_changes_too(cluster: EtcdCluster, prefix: str, closed: str) -> None:
    with EtcdStore(EtcdAccess((closed, *cluster.endpoints), prefix, deadline_s=PATIENCE_S)) as store:
        assert store.write([Write(JOB, 0, (b"e1",), b"r")]) == (Written(1),)


def test_where_no_endpoint_listens_nothing_was_written(closed: str) -> None:
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"does not answer; nothing was written. \(127.0.0.1:.*refused"):
        EtcdStore(EtcdAccess((closed,)))
    assert time.monotonic() - began < DEADLINE_S + SLACK_S


def test_a_server_that_is_no_etcd_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with suppress(OSError):  # the listener is closed at the end of the test
                while True:
                    link, _address = listener.accept()
                    with link:
                        link.recv(65536)
                        link.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\nconnection: close\r\n\r\nnope")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(StoreError, match=r"is no etcd of version 3.4 or newer"):
            EtcdStore(EtcdAccess((f"127.0.0.1:{listener.getsockname()[1]}",)))


def test_a_closed_handle_says_so(patient: EtcdStore) -> None:
    patient.close()
    patient.close()
    with pytest.raises(StoreError, match=r"was closed. Open it again"):
        patient.jobs()


# ------------------------------------------------------------------------------------------------------- the quota


def test_a_full_etcd_refuses_with_the_way_out_and_recovers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = ["--quota-backend-bytes", str(20 << 20)]
    with (
        etcd_cluster(tmp_path, options=options) as cluster,
        EtcdStore(EtcdAccess(cluster.endpoints, deadline_s=PATIENCE_S)) as store,
    ):
        mine = store.hold("lead", "x", 60.0, 0.0)
        assert isinstance(mine, Hold)
        store.write([Write(JOB, 0, (b"e1",), b"r")], mine)
        with pytest.raises(
            StoreError, match=r"has reached its quota \(alarm NOSPACE\). Run `etcdctl compact`"
        ) as caught:
            fill(store, mine)
        revision = len(stored(store))
        assert not isinstance(caught.value, (StoreTimeout, StoreUnavailable))  # a retry does not help
        assert revision > 1
        full = store.read(JOB)  # reading and holding go on
        assert full is not None
        assert full.revision == revision
        assert store.read_page("", 10) == ((JOB, full),)
        with EtcdStore(EtcdAccess(cluster.endpoints, deadline_s=PATIENCE_S)) as another:
            assert another.jobs() == (JOB,)
        assert store.hold("lead", "x", 60.0, 1.0) == Hold("lead", "x", mine.term, 61.0)
        with caplog.at_level(logging.WARNING):
            store._upkeep.check_space()
        assert "alarm:NOSPACE" in caplog.text
        with pytest.raises(StoreError, match="alarm NOSPACE"):  # no lease is granted, so no hold is gained
            store.hold("free", "y", 60.0, 1.0)
        free(cluster.endpoints[0])
        assert isinstance(store.hold("free", "y", 60.0, 2.0), Hold)
        assert store.write([Write(JOB, revision, (b"e",))], mine) == (Written(revision + 1),)


def fill(store: EtcdStore, under: Hold) -> None:
    """Write a large record again and again, until that fails."""
    for revision in range(1, 1000):
        store.write([Write(JOB, revision, (b"e",), random.randbytes(400_000))], under)


def free(endpoint: str) -> None:
    """Compact, defragment, and take the alarm back, as the page says."""
    run_page("Space", "etcdctl compact", endpoint, ROOT)


# ------------------------------------------------------------------------------------------------------ compaction


def test_a_read_whose_revision_is_compacted_meanwhile_reads_again(
    cluster: EtcdCluster, patient: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record and tail are read by two requests; between them another coordinator writes, and etcd is compacted."""
    patient.write([Write(JOB, 0, (b"e1",), b"after 1")])
    client: Any = patient._client
    ask, asked = client._ask_one, []

    def disturbed(url: str, path: str, *rest: object) -> object:
        answer = ask(url, path, *rest)
        asked.append(path)
        if len(asked) == 1:
            key = base64.b64encode(b"other").decode()
            cluster.servers[0].ask("/v3/kv/put", {"key": key, "value": key})
            newest = cluster.servers[0].ask("/v3/kv/put", {"key": key, "value": key})["header"]
            assert isinstance(newest, dict)
            cluster.servers[0].ask("/v3/kv/compaction", {"revision": newest["revision"], "physical": True})
        return answer

    monkeypatch.setattr(client, "_ask_one", disturbed)
    found = patient.read(JOB)
    assert found is not None
    assert (found.record, found.tail) == (b"after 1", ())
    assert len(asked) > 2


def test_the_holder_compacts_what_is_older_than_its_last_turn(
    cluster: EtcdCluster, patient: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient.write([Write(JOB, 0, (b"e1",), b"r")])
    for revision in range(1, 6):
        patient.write([Write(JOB, revision, (b"e",))])
    old = patient._client.revision
    for _ in range(3):
        monkeypatch.setattr(patient._upkeep, "_next_s", 0.0)
        assert isinstance(patient.hold("lead", "x", 60.0, 0.0), Hold)
        patient._upkeep.close()  # its turn has ended
    key = base64.b64encode(b"x").decode()
    with pytest.raises(Exception, match="400"):
        cluster.servers[0].ask("/v3/kv/range", {"key": key, "revision": old - 1})
    assert len(stored(patient)) == 6


# -------------------------------------------------------------------------------------------------------- identity


def test_a_store_that_was_removed_while_it_is_open_is_not_written_to(cluster: EtcdCluster, patient: EtcdStore) -> None:
    patient.write([Write(JOB, 0, (b"e1",), b"r")])
    start, end = (base64.b64encode(patient.place.partition("/")[2].encode() + last).decode() for last in (b"/", b"0"))
    cluster.servers[0].ask("/v3/kv/deleterange", {"key": start, "range_end": end})
    with pytest.raises(StoreError, match="was removed, or restored under another identity"):
        patient.write([Write("b", 0, (b"e1",), b"r")])
    with pytest.raises(StoreError, match="was removed, or restored under another identity"):
        patient.write([Write("b", 0, (b"e1",), b"r")], Hold("lead", "x", 1, 0.0))


def test_keys_of_another_program_are_not_taken_for_a_store(cluster: EtcdCluster) -> None:
    key, value = (base64.b64encode(text).decode() for text in (b"theirs/identity", b"something else"))
    cluster.servers[0].ask("/v3/kv/put", {"key": key, "value": value})
    with pytest.raises(StoreError, match=r"are not a store of Pliant. Use another prefix"):
        EtcdStore(EtcdAccess(cluster.endpoints, "theirs", deadline_s=PATIENCE_S))
    newer = base64.b64encode(b'{"identity": "x", "cluster_id": 1, "format": 2}').decode()
    cluster.servers[0].ask("/v3/kv/put", {"key": key, "value": newer})
    with pytest.raises(StoreError, match="has format 2; this Pliant supports formats up to 1"):
        EtcdStore(EtcdAccess(cluster.endpoints, "theirs", deadline_s=PATIENCE_S))

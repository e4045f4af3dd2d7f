"""Servers are killed, added and drained while workers push: no acknowledged push is lost, none is applied twice."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from e2e.running import wait_for
from pliant.core import messages as m
from pliant.core.model.names import MemberId
from pliant.core.ps.model import BUCKETS
from pliant.errors import BadInput
from pliant.ps import SGD, Adam, PushPolicy, Table
from pliant.ps import wire as w
from pliant.ps.saving import SavedTables, newest_set
from pliant.ps.server import ParameterServer
from pliant.ps.tables.hashing import buckets_of
from pliant.ps.tables.spec import BY_STEP
from pliant.ps.tables.table_copy import Part, Update
from pliant.ps.wire import InstallBuckets
from pliant.train.peer.framing import PeerLost
from unit.ps.servers import CountingWorker, RunningServers

TABLE = Table("t", 2, SGD(1.0), scale=0.0)
IDS = 3000


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[RunningServers]:
    found = RunningServers(tmp_path)
    yield found
    found.close()


def require_sums(servers: RunningServers, *workers: CountingWorker) -> None:
    """Require that the rows are the sums of all acknowledged pushes, on both copies of every bucket."""
    values = workers[0].access.pull("t", np.arange(IDS))
    np.testing.assert_array_equal(values[:, 0], sum(worker.sums for worker in workers))
    layout = servers.fleet.layout
    for bucket in range(0, BUCKETS, 37):
        copies = layout.copies(bucket)
        if copies.primary is None or copies.backup is None:
            continue
        one = servers.running[copies.primary]._copies.extract(np.asarray([bucket]))
        two = servers.running[copies.backup]._copies.extract(np.asarray([bucket]))
        for ours, theirs in zip(_sorted(one["rows"]["t"]), _sorted(two["rows"]["t"]), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def _sorted(rows: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(rows[0])
    return rows[0][order], rows[1][order]


@pytest.mark.timeout(300)
def test_no_acknowledged_push_is_lost_through_joins_kills_and_drains(servers: RunningServers) -> None:
    servers.start("a")
    workers = [CountingWorker(servers, f"w{at}", TABLE, IDS, at) for at in range(2)]
    names = iter("bcdefgh")

    def join() -> None:
        servers.start(next(names))

    def kill() -> None:
        servers.kill(sorted(servers.running)[0])

    def drain() -> None:
        servers.tell(m.Drain(sorted(servers.running)[-1], 30, "x"))

    for change in (join, join, kill, join, drain, join, kill):
        threads = [threading.Thread(target=worker.push, args=(12,)) for worker in workers]
        for thread in threads:
            thread.start()
        change()
        servers.settle()
        for thread in threads:
            thread.join()
        require_sums(servers, *workers)


@pytest.mark.timeout(120)
def test_a_push_that_arrives_again_is_applied_once(servers: RunningServers) -> None:
    servers.start("a")
    servers.start("b")
    servers.settle()
    access = servers.access("w", [TABLE])
    ids = np.arange(50, dtype=np.int64)
    buckets = np.unique(buckets_of(TABLE, ids))
    update = Update("w", 1, buckets, np.full(len(buckets), -1), (Part("t", ids, np.ones((50, 2), np.float32)),))
    for _ in range(3):
        assert access._rows.push(update)
    assert (access.pull("t", ids) == -1).all()
    servers.kill("a")
    assert access._rows.push(update)
    assert (access.pull("t", ids) == -1).all()


@pytest.mark.timeout(120)
def test_all_servers_lost_continue_from_the_last_checkpoint(servers: RunningServers) -> None:
    table = Table("t", 2, Adam(0.1))
    for name in "ab":
        servers.start(name)
    servers.settle()
    access = servers.access("w", [table])
    ids = np.arange(500)
    access.push({"t": (ids, np.ones((500, 2)))})
    leader = servers.running[servers.fleet.layout.ids[0]]
    saved = access.pull("t", ids)
    for number in (1, 2, 3, 4):
        leader.save_everywhere(number)
    access.push({"t": (ids, np.ones((500, 2)))})
    twice = access.pull("t", ids)
    servers.kill("a")
    servers.settle()
    servers.kill("b")
    for name in "cd":
        servers.start(name)
    np.testing.assert_array_equal(access.pull("t", ids), saved)
    access.push({"t": (ids, np.ones((500, 2)))})
    np.testing.assert_array_equal(access.pull("t", ids), twice, "the slots are saved, too")
    assert len(leader._storage.sets(1)) == 2, "older sets are removed"  # type: ignore[union-attr]


@pytest.mark.timeout(120)
def test_a_checkpoint_ends_without_harm_when_the_layout_changes_while_it_is_written(
    servers: RunningServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        servers.start(name)
    servers.settle()
    worker = CountingWorker(servers, "w", TABLE, IDS, 0)
    worker.push(3)
    leader = servers.running[servers.fleet.layout.ids[0]]
    storage = leader._storage
    assert storage is not None
    write = storage.write

    def write_as_a_server_joins(*given: Any) -> None:
        monkeypatch.setattr(storage, "write", write)
        write(*given)
        servers.start("c")

    monkeypatch.setattr(storage, "write", write_as_a_server_joins)
    with pytest.raises(PeerLost, match="ended"):
        leader.save_everywhere(1)
    servers.settle()
    wait_for(lambda: leader._number == servers.fleet.layout.number, "the newest layout to be entered")
    leader.save_everywhere(2)
    assert len(storage.sets(1)) == 1
    worker.push(3)
    require_sums(servers, worker)


@pytest.mark.timeout(120)
def test_a_server_saves_nothing_for_the_leader_of_an_older_layout(servers: RunningServers) -> None:
    """Its part would stay in the storage, and enter a set that the next leader writes with the same number."""
    for name in "ab":
        servers.start(name)
    servers.settle()
    other, layout = servers.running[servers.fleet.layout.ids[1]], servers.fleet.layout.number
    wait_for(lambda: other._number == layout, "the newest layout to be entered")
    assert other._storage is not None
    reply, _ = other._answer(layout - 1, w.SaveTables(1), [])
    assert (reply, other._storage._storage.checkpoint_names()) == (w.NotAnswered("the layout changed", again=True), [])
    assert other._answer(layout, w.SaveTables(1), [])[0] == w.Answered()
    assert len(other._storage._storage.checkpoint_names()) == 1


@pytest.mark.timeout(120)
def test_servers_that_end_together_save_one_layout_though_they_had_entered_others(servers: RunningServers) -> None:
    for name in "abc":
        servers.start(name)
    servers.settle()
    worker = CountingWorker(servers, "w", TABLE, IDS, 0)
    worker.push(5)
    wait_for(
        lambda: {each._number for each in servers.running.values()} == {servers.fleet.layout.number}, "the last layout"
    )
    ending = [servers.running.pop(MemberId(name)) for name in "abc"]
    ending[0].close()
    assert ending[0].save()
    for name in "abc":
        servers.tell(m.Drain(MemberId(name), 30, "x"))
    layout, history = servers.fleet.layout, servers.fleet.it.ps.history  # type: ignore[union-attr]
    for server in ending:
        assert not ending[0].is_saved()
        server.close()
        server.take_over(layout, history)
        assert server.save()
    assert all(server.is_saved() for server in ending)
    for name in "abc":
        servers.tell(m.Exited(MemberId(name), 0))
    servers.start("d")
    np.testing.assert_array_equal(worker.access.pull("t", np.arange(IDS))[:, 0], worker.sums)


@pytest.mark.timeout(120)
def test_a_server_that_freezes_while_it_receives_copies_holds_nothing_up_once_it_is_replaced(
    servers: RunningServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers.start("a")
    worker = CountingWorker(servers, "w", TABLE, IDS, 0)
    worker.push(3)
    frozen, thawed = threading.Event(), threading.Event()
    answer = ParameterServer._answer_primary

    def freeze(server: ParameterServer, layout: int, head: Any, bodies: list[bytearray]) -> Any:
        if server.me == "b" and isinstance(head, InstallBuckets):
            frozen.set()
            thawed.wait()
        return answer(server, layout, head, bodies)

    monkeypatch.setattr(ParameterServer, "_answer_primary", freeze)
    frozen_server = servers.start("b")
    assert frozen.wait(60)
    try:
        servers.running.pop(MemberId("b"))
        servers.tell(m.Expire(MemberId("b")))
        values = pulled_within(worker, 30)
    finally:
        thawed.set()
        frozen_server.close()
    np.testing.assert_array_equal(values[:, 0], worker.sums)


def pulled_within(worker: CountingWorker, limit_s: float) -> np.ndarray:
    """Pull all rows in another thread, so that a server that never answers fails the test."""
    found: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: found.append(worker.access.pull("t", np.arange(IDS))), daemon=True)
    thread.start()
    thread.join(limit_s)
    assert found, "no answer to a pull"
    return found[0]


@pytest.mark.timeout(120)
def test_sums_that_wait_for_more_pushes_survive_a_kill(servers: RunningServers) -> None:
    for name in "ab":
        servers.start(name)
    servers.settle()
    access = servers.access("w", [TABLE], PushPolicy(grads_to_wait=2))
    access.push({"t": (np.arange(100), np.full((100, 2), 2.0))})
    assert (access.pull("t", np.arange(100)) == 0).all()
    servers.kill("a")
    access.push({"t": (np.arange(100), np.full((100, 2), 4.0))})
    assert (access.pull("t", np.arange(100)) == -3).all()


@pytest.mark.timeout(120)
def test_the_sum_of_a_step_survives_kills_and_counts_each_slot_once(servers: RunningServers) -> None:
    for name in "ab":
        servers.start(name)
    servers.settle()
    members = [servers.access(name, [TABLE], BY_STEP) for name in ("w0", "w1")]
    ids = np.arange(300)
    rows = [members[0].part("t", ids, np.ones((300, 2)))]
    for step in range(1, 4):
        assert (members[0].pull("t", ids, step) == -3 * (step - 1)).all()
        members[0].push_slot(step, 0, rows)
        members[1].push_slot(step, 1, rows)
        servers.kill(sorted(servers.running)[0])
        members[0].push_slot(step, 1, rows)  # the other member is thought to be lost
        members[0].push_slot(step, 2, rows)
        servers.start(f"c{step}")
        servers.settle()
    for member in members:
        assert (member.pull("t", ids, 4) == -9).all()


@pytest.mark.timeout(120)
def test_a_pull_does_not_make_two_copies_differ(servers: RunningServers) -> None:
    for name in "ab":
        servers.start(name)
    servers.settle()
    access = servers.access("w", [TABLE], BY_STEP)
    ids = np.arange(300)
    access.push_slot(1, 0, [access.part("t", ids, np.ones((300, 2)))])
    access.pull("t", ids, 2)
    layout, buckets = servers.fleet.layout, np.unique(buckets_of(TABLE, ids))
    for at, server in enumerate(layout.ids):
        mine = buckets[np.asarray(layout.primary)[buckets] == at]
        other = servers.running[layout.ids[1 - at]]._copies
        np.testing.assert_array_equal(servers.running[server]._copies.digests(mine), other.digests(mine))


@pytest.mark.timeout(120)
def test_saved_tables_have_the_last_step_and_no_part_of_another(servers: RunningServers, tmp_path: Path) -> None:
    servers.start("a")
    access = servers.access("w", [TABLE], BY_STEP)
    one = [access.part("t", [1], [[1.0, 1.0]])]
    for step, slot in ((1, 0), (1, 1), (2, 0)):
        access.push_slot(step, slot, one)
    access.end_steps(2)
    servers.running[MemberId("a")].save_everywhere(1)
    saved = SavedTables(str(tmp_path), newest_set(str(tmp_path)))
    assert saved.pull("t", [1])[0, 0] == -2
    access.push_slot(2, 1, one)
    assert access.pull("t", [1], 3)[0, 0] == -4, "a job that goes on completes the other step"


@pytest.mark.timeout(120)
def test_a_worker_with_other_tables_is_refused(servers: RunningServers) -> None:
    servers.start("a")
    servers.access("w", [TABLE]).pull("t", [1])
    with pytest.raises(BadInput, match="Pass the same settings"):
        servers.access("v", [Table("t", 3)]).pull("t", [1])


@pytest.mark.timeout(120)
def test_a_wrong_key_opens_nothing(servers: RunningServers) -> None:
    servers.start("a")
    access = servers.access("w", [TABLE])
    servers.news.put(servers.fleet.layout, "00" * 32)
    tries = 0

    class _EnoughTries(Exception):
        pass

    def check() -> None:
        nonlocal tries
        tries += 1
        if tries > 20:
            raise _EnoughTries

    from pliant.ps.client import LayoutNews, ServerRows

    news = LayoutNews()
    news.put(servers.fleet.layout, "00" * 32)
    with pytest.raises(_EnoughTries):
        ServerRows(MemberId("evil"), [TABLE], PushPolicy(), news, check).pull(TABLE, np.arange(3))
    assert (access.pull("t", [1, 2]) == 0).all()

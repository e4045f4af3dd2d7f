"""Two coordinators on an etcd cluster of three members, and what breaks among them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contract.etcd_cluster import EtcdCluster, etcd_cluster
from e2e.asked import Asked, gone
from e2e.examples import JOB, furnish
from e2e.running import Running, start, wait_for
from pliant.coordinator.service.leader import HOLD_TTL_S
from pliant.core import messages as m
from pliant.core.model.job import Target
from pliant.wire.api import LEADER_HEADER

LEASE_S = 6.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path, members=3) as cluster:
        yield cluster


@pytest.fixture
def pair(cluster: EtcdCluster, tmp_path: Path) -> Iterator[tuple[Running, Running]]:
    """The first one leads."""
    store = f"etcd:{','.join(cluster.endpoints)}"
    with start(store, home=tmp_path / "home", lease_ttl_s=LEASE_S) as first:
        furnish(first)
        with renewing(first):  # a leader without a message would stand back for the second one
            second = start(store, home=tmp_path / "home", lease_ttl_s=LEASE_S)
        with second:
            yield first, second


@contextmanager
def renewing(*coordinators: Running) -> Iterator[None]:
    """Members of both jobs renew at each of these coordinators, as clients do that know all addresses."""
    over = threading.Event()

    def ask(running: Running) -> None:
        asked = Asked(running)
        while not over.wait(0.2):
            asked.once()

    threads = [threading.Thread(target=ask, args=(running,)) for running in coordinators]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_leader_that_ends_is_replaced_and_no_member_is_lost(pair: tuple[Running, Running], end: str) -> None:
    first, second = pair
    with renewing(second):
        first.kill() if end == "killed" else first.stop()
        wait_for(second.client().is_healthy, "the standby to lead")
        second.client().send(JOB, m.Resize(Target(3)))
    assert gone(second) == []


def test_a_frozen_leader_changes_nothing_when_it_comes_back(pair: tuple[Running, Running]) -> None:
    first, second = pair
    with renewing(second):
        with first.paused():
            wait_for(second.client().is_healthy, "the standby to lead")
            second.client().send(JOB, m.Resize(Target(3)))
            before = second.client().events(JOB, 0, 1000)
        answer = first.admin.post(f"/v1/jobs/{JOB}/resize", json={"target": {"size": 4}})
    assert (answer.status_code, answer.headers[LEADER_HEADER]) == (503, second.url)
    assert second.client().events(JOB, 0, 1000) == before
    assert second.client().is_healthy()
    assert gone(second) == []


def test_the_loss_of_etcds_own_leader_costs_no_member(pair: tuple[Running, Running], cluster: EtcdCluster) -> None:
    first, _ = pair
    asked = Asked(first)
    cluster.leader().kill()
    asked.ask_for(2 * HOLD_TTL_S)
    wait_for(lambda: any(each.client().is_healthy() for each in pair), "a coordinator to lead")
    asked.check_answered_at_once()
    leader = next(each for each in pair if each.client().is_healthy())
    leader.client().send(JOB, m.Resize(Target(3)))
    assert gone(leader) == []


def test_without_a_majority_of_etcd_answers_come_at_once_and_no_member_is_lost(
    pair: tuple[Running, Running], cluster: EtcdCluster
) -> None:
    """Two of three members are killed for longer than a hold and a lease, and started again."""
    first, second = pair
    asked = Asked(first)
    asked.once()
    for server in cluster.servers[1:]:
        server.kill()
    asked.ask_for(2 * HOLD_TTL_S + LEASE_S)
    for server in cluster.servers[1:]:
        server.start()
    cluster.wait_healthy()
    wait_for(lambda: any(each.client().is_healthy() for each in pair), "a coordinator to lead")
    assert {answer.status for answer in asked.health} == {200, 503}
    assert {answer.status for answer in asked.renewals} == {200, 503}
    asked.check_answered_at_once()
    leader = next(each for each in pair if each.client().is_healthy())
    leader.client().send(JOB, m.Resize(Target(3)))
    assert gone(leader) == []
    for running in (first, second):
        assert "Traceback" not in running.log

"""Two coordinators, as programs, on an etcd cluster of three members."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.etcd_cluster import EtcdCluster, etcd_cluster
from pliant.client.client import Client
from pliant.credentials import read_token
from unit.cli.program import Running, coordinator, invoke, until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path, 3) as cluster:
        yield cluster


def leads(running: Running) -> bool:
    with Client([running.url], read_token(running.token_file)) as client:
        return client.is_healthy()


def jobs(asked: Running, *others: Running) -> list[str]:
    """Return the names of the jobs, by whichever of these coordinators leads."""
    urls = ",".join(each.url for each in (asked, *others))
    done = invoke("jobs", "--coordinator", urls, "--token-file", str(asked.token_file), "--json")
    assert done.code == 0, done.err
    return [job["name"] for job in done.json["jobs"]]


def create(name: str, *running: Running) -> None:
    urls = ",".join(each.url for each in running)
    args = ("--coordinator", urls, "--token-file", str(running[0].token_file))
    done = invoke("jobs", "create", name, "--workers", "1:2", *args)
    assert done.code == 0, done.err


def test_a_standby_takes_over_whatever_happens_to_the_leader_and_to_etcd(tmp_path: Path, cluster: EtcdCluster) -> None:
    store = ("--store", f"etcd:{','.join(cluster.endpoints)}/team")
    with (
        coordinator(tmp_path / "one", *store) as one,
        coordinator(tmp_path / "two", *store) as two,
    ):
        assert (one.ready["leads"], two.ready["leads"]) == (True, False)
        assert one.ready["identity"] == two.ready["identity"]
        create("first", one)

        cluster.leader().kill()  # etcd elects another one, and the coordinator goes on leading
        until(lambda: leads(one), "an answer of the leader after an election of etcd")
        create("second", one)

        one.process.send_signal(signal.SIGSTOP)
        until(lambda: leads(two), "the takeover")
        create("third", two)
        one.process.send_signal(signal.SIGCONT)
        until(lambda: not leads(one), "the old leader to stand by")
        assert leads(two)
        assert jobs(two) == jobs(one, two) == ["first", "second", "third"]

        two.process.kill()
        two.process.wait()
        until(lambda: leads(one), "the takeover back")
        assert jobs(one) == ["first", "second", "third"]
        one.process.terminate()
        assert one.process.wait(20) == 0


def test_a_coordinator_lives_through_an_etcd_without_a_majority(tmp_path: Path, cluster: EtcdCluster) -> None:
    with coordinator(tmp_path / "one", "--store", f"etcd:{','.join(cluster.endpoints)}") as one:
        create("before", one)
        for server in cluster.servers[1:]:
            server.freeze()
        until(lambda: not leads(one), "the end of the hold")
        assert one.process.poll() is None
        for server in cluster.servers[1:]:
            server.resume()
        until(lambda: leads(one), "an answer")
        create("after", one)
        assert jobs(one) == ["after", "before"]

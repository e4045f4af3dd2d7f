"""Backups of etcd: made and restored as `docs/operating/etcd.md` shows it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from contract.etcd_cluster import EtcdCluster, EtcdServer, etcd_cluster, programs
from pliant.errors import StoreError
from pliant.stores.base import Write, Written
from pliant.stores.etcd import EtcdAccess, EtcdStore

PATIENCE_S = 30.0  # for a machine that is busy with other tests


def tool(name: str, *args: str) -> None:
    done = subprocess.run([str(programs() / name), *args], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def option(server: EtcdServer, name: str) -> str:
    return server.command[server.command.index(name) + 1]


def back_up(cluster: EtcdCluster, file: Path) -> None:
    tool("etcdctl", "--endpoints", cluster.endpoints[0], "snapshot", "save", str(file))


def restore(cluster: EtcdCluster, file: Path, token: str) -> None:
    """Put a backup in the place of every member of a cluster, under the token of a new cluster."""
    for server in cluster.servers:
        server.kill()
    for server in cluster.servers:
        data = f"{option(server, '--data-dir')}-restored"
        same = ("--name", "--initial-cluster", "--initial-advertise-peer-urls")
        args = [word for name in same for word in (name, option(server, name))]
        tool("etcdutl", "snapshot", "restore", str(file), "--data-dir", data, *args, "--initial-cluster-token", token)
        server.command[server.command.index("--data-dir") + 1] = data
        server.start()
    cluster.wait_healthy()


@pytest.mark.parametrize("members", [1, 3])
def test_a_restored_store_has_the_contents_of_the_backup_and_another_identity(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, members: int
) -> None:
    with etcd_cluster(tmp_path, members) as cluster:
        access = EtcdAccess(cluster.endpoints, deadline_s=PATIENCE_S)
        with EtcdStore(access) as store:
            store.write([Write("a", 0, (b"e1", b"e2"), b"after 2")])
            back_up(cluster, tmp_path / "backup.db")
            assert store.write([Write("a", 2, (b"acknowledged and lost",))]) == (Written(3),)
            restore(cluster, tmp_path / "backup.db", "another-token")
            with pytest.raises(StoreError, match="was replaced or set back to a backup while it was in use"):
                store.read("a")
        with EtcdStore(access) as restored, EtcdStore(access) as another:
            assert restored.identity == another.identity != store.identity
            assert [entry.data for entry in restored.events("a", 0, 10)] == [b"e1", b"e2"]
            assert restored.write([Write("a", 2, (b"e3",))]) == (Written(3),)
        assert "was restored into another etcd cluster: changed its identity" in caplog.text


def test_a_store_set_back_under_the_same_token_is_noticed_by_an_open_handle(tmp_path: Path) -> None:
    """After that mistake the identity stays, and only revisions show it: those of the handle, and those of clients."""
    with etcd_cluster(tmp_path) as cluster, EtcdStore(EtcdAccess(cluster.endpoints, deadline_s=PATIENCE_S)) as store:
        store.write([Write("a", 0, (b"e1",), b"r")])
        back_up(cluster, tmp_path / "backup.db")
        for revision in (1, 2, 3):
            store.write([Write("a", revision, (b"e",))])
        restore(cluster, tmp_path / "backup.db", option(cluster.servers[0], "--initial-cluster-token"))
        with pytest.raises(StoreError, match="set back to a backup"):
            store.write([Write("a", 4, (b"e",))])
        with EtcdStore(EtcdAccess(cluster.endpoints, deadline_s=PATIENCE_S)) as again:
            assert again.identity == store.identity

"""Two coordinators on an etcd with TLS and users. They replace the one with a volume, so this file is last."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.etcd_cluster import EtcdServer, free_ports, programs
from kube.acceptance.installed import SYSTEM, Installed, elastic_job, wait_until
from kube.cluster import lab
from kube.cluster.images import PLIANT

PASSWORD = "test-password"  # of an etcd that lives as long as this test
PEERS = "*.pliant-coordinators.pliant-system.svc"


@pytest.fixture
def etcd(installed: Installed, tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd on the lab's address with a certificate of the user's CA, and the user pliant."""
    installed.shell(f"pliant certs issue etcd --ip {lab.ADDRESS}")
    certs = installed.state / "certs"
    client, peer = free_ports(2)
    url = f"https://{lab.ADDRESS}:{client}"
    command = [
        *[str(programs() / "etcd"), "--name", "m0", "--data-dir", str(tmp_path / "m0")],
        *["--listen-client-urls", url, "--advertise-client-urls", url, "--unsafe-no-fsync", "--log-level", "warn"],
        *[
            "--listen-peer-urls",
            f"http://127.0.0.1:{peer}",
            "--initial-advertise-peer-urls",
            f"http://127.0.0.1:{peer}",
        ],
        *["--initial-cluster", f"m0=http://127.0.0.1:{peer}"],
        *["--cert-file", str(certs / "etcd.pem"), "--key-file", str(certs / "etcd.key")],
    ]
    context = ssl.create_default_context(cafile=str(installed.state / "ca" / "ca.pem"))
    server = EtcdServer(command, f"{lab.ADDRESS}:{client}", tmp_path / "etcd.log", context)
    server.start()
    try:
        wait_until(server.is_healthy, "etcd")
        server.ask("/v3/auth/role/add", {"name": "root"})
        for user in ("root", "pliant"):
            server.ask("/v3/auth/user/add", {"name": user, "password": PASSWORD})
            server.ask("/v3/auth/user/grant", {"user": user, "role": "root"})
        server.ask("/v3/auth/enable", {})
        yield server
    finally:
        server.kill()


def test_a_rollout_of_two_coordinators_ends_and_a_job_outlives_the_leader(
    installed: Installed, etcd: EtcdServer, expected: str, tmp_path: Path
) -> None:
    certs, ca = installed.state / "certs", installed.state / "ca" / "ca.pem"
    password = tmp_path / "password"
    password.write_text(PASSWORD, encoding="ascii")
    files = f"--from-file=tls.crt={certs}/two.pem --from-file=tls.key={certs}/two.key --from-file=ca.crt={ca}"
    options = f"--store etcd:{etcd.endpoint} --coordinators 2 --etcd-secret pliant-etcd --etcd-user pliant"
    for command in (
        f"pliant certs issue two --dns localhost --dns pliant.pliant-system.svc --dns '{PEERS}'",
        f"kubectl -n {SYSTEM} delete deployment/pliant pvc/pliant secret/pliant-tls",
        f"kubectl -n {SYSTEM} create secret generic pliant-tls {files}",
        f"kubectl -n {SYSTEM} create secret generic pliant-etcd --from-file=ca.crt={ca} --from-file={password}",
        f"pliant kube install --print --image {PLIANT} {options} | kubectl apply -f -",
        f"kubectl -n {SYSTEM} rollout status statefulset/pliant --timeout=280s",
    ):
        installed.shell(command)
    installed.use("statefulset/pliant")
    assert sorted(installed.coordinator_pods()) == ["pliant-0", "pliant-1"]

    with elastic_job(installed, "two", 1, 3, 2) as job:
        job.wait_active(2)
        pods = job.running()
        leader = installed.leader()
        installed.plane.kubectl("-n", SYSTEM, "delete", "pod", leader, "--grace-period=0", "--force")
        wait_until(lambda: installed.leader() not in ("", leader), "the other coordinator to lead")
        job.wait_steps(3)
        assert job.running() == pods
        installed.wait_ready()
        job.scale(3)
        job.wait_active(3)
        assert pods.items() <= job.running().items()
        job.judge(expected)

"""Users, passwords and certificates of etcd, with real servers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from contract.etcd_cluster import EtcdCluster, etcd_cluster, run_page
from pliant.errors import StoreError, StoreUnavailable
from pliant.stores.base import Hold, Write, Written
from pliant.stores.etcd import EtcdAccess, EtcdStore
from unit.stores.etcd.certificates import CertificateAuthority

PASSWORD = "correct-horse-battery"

patient = partial(EtcdAccess, deadline_s=30.0)  # for a machine that is busy with other tests


def works(access: EtcdAccess) -> None:
    """Use a store in every way that needs a permission of its own."""
    with EtcdStore(access) as store:
        mine = store.hold("lead", "x", 10.0, 0.0)
        assert isinstance(mine, Hold)
        assert store.hold("lead", "x", 10.0, 1.0) == Hold("lead", "x", mine.term, 11.0)
        found = store.read("a")
        at = found.revision if found is not None else 0
        assert store.write([Write("a", at, (b"e",), b"r")], mine) == (Written(at + 1),)
        assert store.jobs() == ("a",)
        store._client.compact(store._client.revision - 1)
        store._upkeep.check_space()
        store.release(mine)


# --------------------------------------------------------------------------------------------------------- users


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """A server with users: `root`, and `pliant`, made with the commands of the page."""
    folder = tmp_path_factory.mktemp("guarded")
    with etcd_cluster(folder) as cluster:
        ask = cluster.servers[0].ask
        ask("/v3/auth/role/add", {"name": "root"})
        ask("/v3/auth/user/add", {"name": "root", "password": PASSWORD})
        ask("/v3/auth/user/grant", {"user": "root", "role": "root"})
        (folder / "etcd-password").write_text(f"{PASSWORD}\n")
        run_page("Credentials", "etcdctl role", cluster.endpoints[0], folder)
        ask("/v3/auth/enable", {})
        yield cluster


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.touch(mode=0o600)
    file.write_text(f"{PASSWORD}\n")
    return file


def test_a_user_with_the_prefix_needs_no_more(
    guarded: EtcdCluster, password_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        works(patient(guarded.endpoints, user="pliant", password_file=password_file))
    assert PASSWORD not in caplog.text


def test_a_session_that_ended_is_opened_again(guarded: EtcdCluster, password_file: Path) -> None:
    with EtcdStore(patient(guarded.endpoints, user="pliant", password_file=password_file)) as store:
        before = store._client._token
        assert before
        store._client._token = "ended.1"
        assert isinstance(store.write([Write("b", 0, (b"e",), b"r")])[0], Written)
        assert store._client._token not in (None, "ended.1")


def test_no_user_a_wrong_password_and_another_prefix_are_refused_with_the_reason(
    guarded: EtcdCluster, password_file: Path
) -> None:
    with pytest.raises(StoreError, match="PLIANT_ETCD_USER"):
        EtcdStore(patient(guarded.endpoints))
    with pytest.raises(StoreError, match="permission denied"):
        EtcdStore(patient(guarded.endpoints, "other", user="pliant", password_file=password_file))
    password_file.write_text("wrong-password")
    with pytest.raises(StoreError, match="Check PLIANT_ETCD_USER and the file") as caught:
        EtcdStore(patient(guarded.endpoints, user="pliant", password_file=password_file))
    assert "wrong-password" not in caught.value.why


def test_a_user_where_etcd_has_none_is_reported(tmp_path: Path, password_file: Path) -> None:
    with etcd_cluster(tmp_path) as cluster, pytest.raises(StoreError, match="unset PLIANT_ETCD_USER"):
        EtcdStore(patient(cluster.endpoints, user="pliant", password_file=password_file))


# ----------------------------------------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, ca: CertificateAuthority) -> Iterator[EtcdCluster]:
    """A server that shows a certificate of the CA and wants one."""
    cert_file, key_file = ca.issue("server")
    options = ["--cert-file", str(cert_file), "--key-file", str(key_file)]
    options += ["--client-cert-auth", "--trusted-ca-file", str(ca.file)]
    admin_cert, admin_key = ca.issue("admin")
    admin = EtcdAccess(("127.0.0.1:1",), ca_file=ca.file, cert_file=admin_cert, key_file=admin_key).tls()
    assert not isinstance(admin, bool)
    with etcd_cluster(tmp_path_factory.mktemp("secured"), options=options, tls=admin) as cluster:
        yield cluster


def test_a_client_with_a_certificate_works(secured: EtcdCluster, ca: CertificateAuthority) -> None:
    cert_file, key_file = ca.issue("coordinator")
    works(patient(secured.endpoints, ca_file=ca.file, cert_file=cert_file, key_file=key_file))


def test_a_client_without_a_certificate_or_without_tls_is_refused(
    secured: EtcdCluster, ca: CertificateAuthority, tmp_path: Path
) -> None:
    stranger_cert, stranger_key = CertificateAuthority(tmp_path / "strangers").issue("stranger")
    for access in (
        patient(secured.endpoints, ca_file=ca.file),
        patient(secured.endpoints, ca_file=ca.file, cert_file=stranger_cert, key_file=stranger_key),
        patient(secured.endpoints),
    ):
        with pytest.raises(StoreError):
            EtcdStore(access)


def test_a_server_of_another_ca_is_not_trusted(secured: EtcdCluster, ca: CertificateAuthority, tmp_path: Path) -> None:
    cert_file, key_file = ca.issue("coordinator")
    other = CertificateAuthority(tmp_path / "other", "another CA")
    with pytest.raises(
        StoreError, match=r"The certificate of etcd is not accepted. Check PLIANT_ETCD_CA_FILE"
    ) as caught:
        EtcdStore(patient(secured.endpoints, ca_file=other.file, cert_file=cert_file, key_file=key_file))
    assert not isinstance(caught.value, StoreUnavailable)  # a retry does not help


def test_a_certificate_for_another_host_is_not_trusted(tmp_path: Path, ca: CertificateAuthority) -> None:
    cert_file, key_file = ca.issue("elsewhere", address="10.0.0.1")
    options = ["--cert-file", str(cert_file), "--key-file", str(key_file)]
    lenient = EtcdAccess(("127.0.0.1:1",), ca_file=ca.file).tls()
    assert not isinstance(lenient, bool)
    lenient.check_hostname = False
    with (
        etcd_cluster(tmp_path, options=options, tls=lenient) as cluster,
        pytest.raises(StoreError, match="is not accepted"),
    ):
        EtcdStore(patient(cluster.endpoints, ca_file=ca.file))

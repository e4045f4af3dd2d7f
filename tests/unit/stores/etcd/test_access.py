"""Addresses and credentials for etcd."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.errors import BadInput
from pliant.stores.etcd import EtcdAccess, parse_place


@pytest.mark.parametrize(
    ("text", "endpoints", "prefix"),
    [
        ("a:2379", ("a:2379",), "pliant"),
        ("a", ("a:2379",), "pliant"),
        ("a:1,b:2, c:3", ("a:1", "b:2", "c:3"), "pliant"),
        ("a:1/team", ("a:1",), "team"),
        ("a:1/team/pliant/", ("a:1",), "team/pliant"),
        ("[::1]:2379,[::2]", ("[::1]:2379", "[::2]:2379"), "pliant"),
        ("10.0.0.1:02379", ("10.0.0.1:2379",), "pliant"),
    ],
)
def test_a_place_has_endpoints_and_a_prefix(text: str, endpoints: tuple[str, ...], prefix: str) -> None:
    assert parse_place(text) == (endpoints, prefix)
    assert parse_place(EtcdAccess(endpoints, prefix).place) == (endpoints, prefix)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no HOST:PORT"),
        ("a:", "'a:' is no HOST:PORT"),
        ("a:x", "'a:x' is no HOST:PORT"),
        ("a:0", "is no HOST:PORT"),
        ("a:65536", "is no HOST:PORT"),
        ("a:1,,b:1", "'' is no HOST:PORT"),
        ("::1:2379", "is no HOST:PORT"),
        ("user@a:1", "is no HOST:PORT"),
        ("http://a:1", "is no HOST:PORT"),
        ("a:1/", "prefix of an etcd store must be printable and not empty"),
        ("a:1/\n", "must be printable"),
        ("a:1,a:1", "must name each endpoint once"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        parse_place(text)


def test_credentials_come_in_pairs_and_need_tls(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for wrong in (
        {"user": "pliant"},
        {"password_file": file},
        {"ca_file": file, "cert_file": file},
        {"ca_file": file, "key_file": file},
        {"cert_file": file, "key_file": file},
    ):
        with pytest.raises(BadInput):
            EtcdAccess(("127.0.0.1:2379",), **wrong)


@pytest.mark.parametrize(
    ("endpoint", "refused"),
    [("127.0.0.1:1", False), ("localhost:1", False), ("[::1]:1", False), ("10.0.0.1:1", True), ("etcd.test:1", True)],
)
def test_a_password_crosses_a_network_only_with_tls(tmp_path: Path, endpoint: str, refused: bool) -> None:
    file = tmp_path / "password"
    if refused:
        with pytest.raises(BadInput, match="would cross the network unencrypted"):
            EtcdAccess(("127.0.0.1:1", endpoint), user="pliant", password_file=file)
    else:
        EtcdAccess((endpoint,), user="pliant", password_file=file)
    EtcdAccess((endpoint,), user="pliant", password_file=file, ca_file=file)


def test_a_password_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "password"
    access = EtcdAccess(("127.0.0.1:1",), user="pliant", password_file=file)
    with pytest.raises(BadInput, match="cannot be read"):
        access.password()
    file.write_text("secret word\n")
    file.chmod(0o640)
    with pytest.raises(BadInput, match=r"mode 0640\). Run: chmod 600") as caught:
        access.password()
    assert "secret" not in caught.value.why
    file.chmod(0o600)
    assert access.password() == "secret word"


def test_files_of_tls_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("no certificate")
    for file in (nonsense, tmp_path / "missing.pem"):
        with pytest.raises(BadInput, match=f"The CA of etcd cannot be read from {file}"):
            EtcdAccess(("127.0.0.1:1",), ca_file=file).tls()

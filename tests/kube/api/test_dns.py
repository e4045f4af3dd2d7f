"""The names that the test cluster's DNS server answers, without a cluster."""

import struct
from typing import Any

import pytest

from kube.cluster.dns import Directory, respond


def service(address: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "jobs", "name": "web"}, "spec": {"clusterIP": address}}


@pytest.fixture
def directory() -> Directory:
    found = Directory()
    found.services["jobs", "web"] = service("10.96.0.7")
    found.services["jobs", "bare"] = service("None")
    endpoints = [
        {"addresses": ["10.244.1.2"], "hostname": "w1"},
        {"addresses": ["10.244.1.3"], "hostname": "w2", "conditions": {"ready": False}},
    ]
    labels = {"kubernetes.io/service-name": "bare"}
    found.slices["jobs", "bare-x"] = {"metadata": {"labels": labels}, "endpoints": endpoints}
    return found


@pytest.mark.parametrize(
    ("name", "addresses"),
    [
        ("web.jobs.svc.cluster.local", ["10.96.0.7"]),
        ("WEB.jobs.svc.cluster.local.", ["10.96.0.7"]),
        ("bare.jobs.svc.cluster.local", ["10.244.1.2"]),
        ("w1.bare.jobs.svc.cluster.local", ["10.244.1.2"]),
        ("w2.bare.jobs.svc.cluster.local", None),
        ("web.other.svc.cluster.local", None),
        ("web.jobs.svc.cluster.local.jobs.svc.cluster.local", None),
        ("example.org", None),
    ],
)
def test_a_name_has_the_addresses_of_its_service(directory: Directory, name: str, addresses: list[str] | None) -> None:
    assert directory.resolve(name) == addresses


def query(name: str, kind: int) -> bytes:
    labels = b"".join(bytes([len(each)]) + each.encode() for each in name.split("."))
    return b"\x12\x34" + struct.pack(">HHHHH", 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


@pytest.mark.parametrize(
    ("name", "kind", "code", "answers"),
    [
        ("web.jobs.svc.cluster.local", 1, 0, 1),
        ("web.jobs.svc.cluster.local", 28, 0, 0),  # the name exists, an IPv6 address does not
        ("no.jobs.svc.cluster.local", 1, 3, 0),
    ],
)
def test_a_response_tells_a_missing_name_from_a_missing_record(
    directory: Directory, name: str, kind: int, code: int, answers: int
) -> None:
    asked = query(name, kind)
    found = respond(asked, directory)
    flags, questions, count = struct.unpack(">HHH", found[2:8])
    assert (found[:2], flags & 0xF, questions, count) == (b"\x12\x34", code, 1, answers)
    assert found[12 : len(asked)] == asked[12:]
    assert not answers or found.endswith(bytes([10, 96, 0, 7]))

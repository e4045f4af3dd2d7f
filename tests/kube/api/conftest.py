"""One real API server for all tests of this folder, each test with a namespace of its own."""

from collections.abc import Iterator
from itertools import count

import pytest

from kube.cluster.control_plane import ControlPlane, control_plane
from kube.cluster.programs import why_not_built
from pliant.kube.manifests.crd import custom_resource_definition

MERGE_PATCH = "application/merge-patch+json"
_numbers = count(1)


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane on loopback: etcd, API server and controllers, without nodes."""
    if why := why_not_built():
        pytest.skip(why)
    with control_plane(tmp_path_factory.mktemp("kube")) as started:
        yield started


@pytest.fixture
def namespace(plane: ControlPlane) -> str:
    """A new namespace."""
    return plane.namespace(f"test-{next(_numbers)}")


@pytest.fixture(scope="session")
def defined_plane(plane: ControlPlane) -> ControlPlane:
    """The API server with the definition of ElasticJob."""
    plane.apply(custom_resource_definition())
    plane.kubectl("wait", "--for=condition=Established", "crd/elasticjobs.pliant.dev", "--timeout=60s")
    return plane


@pytest.fixture
def jobs_plane(defined_plane: ControlPlane, namespace: str) -> Iterator[ControlPlane]:
    """The same API server. No job is left for the operator of the next test."""
    yield defined_plane
    http, jobs = defined_plane.http(), f"/apis/pliant.dev/v1alpha1/namespaces/{namespace}/elasticjobs"
    for job in http.get(jobs).json()["items"]:
        patch = {"metadata": {"finalizers": None}}
        http.patch(f"{jobs}/{job['metadata']['name']}", json=patch, headers={"content-type": MERGE_PATCH})
    for path in (jobs, f"/api/v1/namespaces/{namespace}/pods"):
        http.delete(path).raise_for_status()

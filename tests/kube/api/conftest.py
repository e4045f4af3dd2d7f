"""One real API server for all tests of this folder, each test with a namespace of its own."""

from collections.abc import Iterator
from itertools import count

import pytest

from e2e.running import Running, start, wait_for
from kube.api.scene import PATIENCE_S, Scene
from kube.cluster.control_plane import ControlPlane, control_plane
from kube.cluster.fake_nodes import FakeNodes
from kube.cluster.programs import why_not_built
from pliant.client import Client
from pliant.kube.manifests.crd import custom_resource_definition
from pliant.kube.manifests.install import Installation, manifests

INSTALLED = (
    "CustomResourceDefinition",
    "Namespace",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "PriorityClass",
)
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


@pytest.fixture(scope="session")
def installed(plane: ControlPlane) -> ControlPlane:
    """The API server with everything of an installation but its pods."""
    found = manifests(Installation("pliant:test"))
    plane.apply(*(each for each in found if each["kind"] in INSTALLED))
    path = "/apis/pliant.dev/v1alpha1/elasticjobs"
    wait_for(lambda: plane.http().get(path).status_code == 200, "the definition", PATIENCE_S)
    return plane


@pytest.fixture(scope="session")
def nodes(installed: ControlPlane) -> Iterator[FakeNodes]:
    with FakeNodes(installed, 2, "operator") as made:
        yield made


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A coordinator for all scenes."""
    with start(home=tmp_path_factory.mktemp("coordinator"), lease_ttl_s=3600.0) as coordinator:
        yield coordinator


@pytest.fixture
def client(running: Running) -> Iterator[Client]:
    with Client([running.url], running.token, patience_s=5.0) as made:
        yield made


@pytest.fixture
def scene(installed: ControlPlane, nodes: FakeNodes, client: Client) -> Iterator[Scene]:
    """A new namespace that admits restricted pods only, and an operator with the rights of its manifest alone."""
    name = installed.namespace(f"op-{next(_numbers)}", **{"pod-security.kubernetes.io/enforce": "restricted"})
    made = Scene(installed, name, nodes.names[0], client)
    yield made
    made.delete_jobs()
    installed.http().delete(f"/api/v1/namespaces/{name}")
    made.rights.close()

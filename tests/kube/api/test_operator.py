"""The operator against a real API server and a real coordinator, with exactly the rights of its manifest.

No kubelet runs here: fake nodes report pods as running, and `Agents` acts as the agent in each of them.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import httpx2
import pytest

from e2e.running import Running, start, wait_for
from kube.cluster.control_plane import ControlPlane
from kube.cluster.fake_nodes import FakeNodes
from pliant.client import Client
from pliant.core.messages import AgentJoin, AgentLeave
from pliant.core.model.names import AgentId
from pliant.errors import PliantError
from pliant.kube.api import KubeApi
from pliant.kube.manifests.install import Installation, manifests
from pliant.kube.operator import Operator, make_operator

PATIENCE_S = 120.0
pytestmark = pytest.mark.long  # minutes on a busy machine
INSTALLED = (
    "CustomResourceDefinition",
    "Namespace",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "PriorityClass",
)
MERGE = {"content-type": "application/merge-patch+json"}
_numbers = count(1)


@pytest.fixture(scope="session")
def installed(plane: ControlPlane) -> ControlPlane:
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
    with start(home=tmp_path_factory.mktemp("coordinator"), lease_ttl_s=3600.0) as coordinator:
        yield coordinator


@pytest.fixture
def client(running: Running) -> Iterator[Client]:
    with Client([running.url], running.token, patience_s=5.0) as made:
        yield made


def as_operator(plane: ControlPlane) -> httpx2.Client:
    """A client with the rights of the operator's service account, and no others."""
    path = "/api/v1/namespaces/pliant-system/serviceaccounts/pliant/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = plane.http().post(path, json=body)
    assert answer.status_code == 201, answer.text
    token = answer.json()["status"]["token"]
    return httpx2.Client(
        base_url=plane.url,
        verify=ssl.create_default_context(cafile=str(plane.authority.pair.cert)),
        headers={"authorization": f"Bearer {token}"},
        timeout=20.0,
        trust_env=False,
    )


class Scene:
    """One namespace with an operator that is called by hand, and the agents of its pods."""

    def __init__(self, plane: ControlPlane, namespace: str, node: str, client: Client) -> None:
        self.plane = plane
        self.namespace = namespace
        self.node = node
        self.client = client
        self.http = plane.http()
        self.path = f"/apis/pliant.dev/v1alpha1/namespaces/{namespace}/elasticjobs"
        self.pods_path = f"/api/v1/namespaces/{namespace}/pods"
        self.rights = as_operator(plane)
        self.operator = self.new_operator()

    def new_operator(self) -> Operator:
        return make_operator(KubeApi(self.rights), self.client, "https://pliant.pliant-system.svc:7711", None)

    def manifest(self, name: str = "digits", **more: Any) -> dict[str, Any]:
        container = {"name": "main", "image": "none:1", "command": ["pliant", "run", "train.py"]}
        template = {"spec": {"nodeName": self.node, "containers": [container]}}
        workers = {"min": 1, "max": 6, "target": 3, "template": template, **more.pop("workers", {})}
        return {
            "apiVersion": "pliant.dev/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": name},
            "spec": {"workers": workers, **more},
        }

    def create(self, **more: Any) -> httpx2.Response:
        return self.http.post(self.path, json=self.manifest(**more))

    def patch(self, patch: dict[str, Any], name: str = "digits") -> httpx2.Response:
        return self.http.patch(f"{self.path}/{name}", json=patch, headers=MERGE)

    def job(self, name: str = "digits") -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"{self.path}/{name}").json()
        return found

    def pods(self) -> dict[str, dict[str, Any]]:
        listed = self.http.get(self.pods_path).raise_for_status().json()["items"]
        return {each["metadata"]["name"]: each for each in listed}

    def live(self) -> list[str]:
        found = self.pods().items()
        return sorted(name for name, each in found if each["status"]["phase"] not in ("Succeeded", "Failed"))

    def agents(self, name: str = "digits") -> dict[str, bool]:
        try:
            return {each.id: each.draining for each in self.client.job(f"{self.namespace}.{name}").agents}
        except PliantError:
            return {}

    def play_agents(self) -> None:
        """Do what the agent of each pod would do now."""
        known = self.agents()
        for name, pod in self.pods().items():
            key = f"{self.namespace}.{pod['metadata']['labels']['pliant.dev/job']}"
            leaves = known.get(name, False) or "deletionTimestamp" in pod["metadata"]
            if name in known and leaves:
                self.client.send(key, AgentLeave(AgentId(name)))
                status = {"status": {"phase": "Succeeded"}}
                self.http.patch(f"{self.pods_path}/{name}/status", json=status, headers=MERGE)
            elif name not in known and pod["status"]["phase"] == "Running" and not leaves:
                joined = pod["metadata"].get("annotations", {}).get("pliant.dev/joined")
                if joined is None:
                    self.client.send(key, AgentJoin(AgentId(name), 1, "10.0.0.1", name, "1"))

    def turn(self) -> None:
        self.operator.turn(fresh=True)
        self.play_agents()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        def tried() -> bool:
            self.turn()
            return holds()

        wait_for(tried, what, PATIENCE_S)

    def settled(self, size: int) -> bool:
        agents = self.agents()
        return len(self.live()) == size and len(agents) == size and not any(agents.values())


@pytest.fixture
def scene(installed: ControlPlane, nodes: FakeNodes, client: Client) -> Iterator[Scene]:
    name = installed.namespace(f"op-{next(_numbers)}", **{"pod-security.kubernetes.io/enforce": "restricted"})
    made = Scene(installed, name, nodes.names[0], client)
    yield made
    path = f"{made.path}/digits"
    made.http.patch(path, json={"metadata": {"finalizers": None}}, headers=MERGE)
    made.http.delete(path)
    installed.http().delete(f"/api/v1/namespaces/{name}")
    made.rights.close()


def test_a_job_grows_and_shrinks_by_consent(scene: Scene) -> None:
    assert scene.create().status_code == 201
    scene.until(lambda: scene.settled(3), "three pods")
    assert scene.live() == ["digits-w1", "digits-w2", "digits-w3"]
    scene.plane.kubectl("-n", scene.namespace, "scale", "elasticjob/digits", "--replicas=5")
    scene.until(lambda: scene.settled(5), "five pods")
    scene.plane.kubectl("-n", scene.namespace, "scale", "elasticjob/digits", "--replicas=2")
    scene.until(lambda: scene.settled(2) and len(scene.pods()) == 2, "two pods")
    assert scene.live() == ["digits-w1", "digits-w2"]  # the youngest went
    assert scene.job()["status"]["workers"]["pods"] == 2
    shown = scene.plane.kubectl("-n", scene.namespace, "get", "ej")
    assert shown.split()[:6] == ["NAME", "STATE", "ACTIVE", "TARGET", "STEP", "WHY"]


def test_a_deleted_pod_is_replaced_under_a_new_name(scene: Scene) -> None:
    scene.create()
    scene.until(lambda: scene.settled(3), "three pods")
    scene.http.delete(f"{scene.pods_path}/digits-w2")
    scene.until(lambda: scene.settled(3) and "digits-w2" not in scene.pods(), "a replacement")
    assert scene.live() == ["digits-w1", "digits-w3", "digits-w4"]


def test_a_job_without_a_target_gets_one_once(scene: Scene) -> None:
    manifest = scene.manifest()
    del manifest["spec"]["workers"]["target"]
    assert scene.http.post(scene.path, json=manifest).status_code == 201
    scene.until(lambda: scene.job()["spec"]["workers"].get("target") == 6, "the target")
    scene.plane.kubectl("-n", scene.namespace, "scale", "elasticjob/digits", "--replicas=2")
    scene.until(lambda: scene.settled(2), "two pods")


@pytest.mark.parametrize(
    ("workers", "more", "why"),
    [
        ({"target": 9}, {}, "target must lie between min and max"),
        ({"min": 7}, {}, "min must not exceed max"),
        ({"sizes": [2, 4]}, {}, "sizes must contain min"),
        ({}, {"strategy": "ParameterServer"}, "parameterServers is required with strategy ParameterServer"),
        ({}, {"checkpoints": {}}, "exactly one of claimName and volumeClaim is required"),
        ({}, {"name": "x" * 41}, "metadata.name must have at most 40 characters"),
    ],
)
def test_the_api_server_refuses_what_cannot_work(
    scene: Scene, workers: dict[str, Any], more: dict[str, Any], why: str
) -> None:
    answer = scene.create(workers=workers, **more)
    assert answer.status_code == 422
    assert why in answer.json()["message"]


def test_strategy_and_the_bounds_of_a_resize_are_kept(scene: Scene) -> None:
    scene.create()
    server = {"count": 1, "template": scene.manifest()["spec"]["workers"]["template"]}
    changed = scene.patch({"spec": {"strategy": "ParameterServer", "parameterServers": server}})
    assert "strategy is immutable" in changed.json()["message"]
    said = scene.plane.kubectl("-n", scene.namespace, "scale", "elasticjob/digits", "--replicas=7", code=1)
    assert "target must lie between min and max" in said


def test_suspension_empties_the_job_and_resumption_fills_it(scene: Scene) -> None:
    scene.create()
    scene.until(lambda: scene.settled(3), "three pods")
    scene.patch({"spec": {"suspend": True}})
    scene.until(lambda: not scene.pods(), "no pods")
    scene.until(lambda: scene.job()["status"]["state"] == "Suspended", "the state")
    scene.patch({"spec": {"suspend": False}})
    scene.until(lambda: scene.settled(3), "three pods again")
    assert scene.live() == ["digits-w4", "digits-w5", "digits-w6"]


def test_a_job_created_suspended_makes_no_pods(scene: Scene) -> None:
    scene.create(suspend=True)
    scene.until(lambda: scene.job().get("status", {}).get("state") == "Suspended", "the state")
    assert not scene.pods()


def test_a_quota_s_words_are_in_the_status(scene: Scene) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "2"}}}
    scene.http.post(f"/api/v1/namespaces/{scene.namespace}/resourcequotas", json=quota).raise_for_status()
    path = f"/api/v1/namespaces/{scene.namespace}/resourcequotas/q"
    wait_for(lambda: "hard" in scene.http.get(path).json().get("status", {}), "the quota", PATIENCE_S)
    scene.create()

    def refused() -> bool:
        conditions = {each["type"]: each for each in scene.job().get("status", {}).get("conditions", ())}
        return str(conditions.get("PodsHealthy", {}).get("reason")) == "QuotaExceeded"

    scene.until(lambda: refused() and len(scene.agents()) == 2, "the refusal")
    assert "exceeded quota" in scene.job()["status"]["reason"]
    scene.http.patch(path, json={"spec": {"hard": {"pods": "9"}}}, headers=MERGE)
    scene.until(lambda: scene.settled(3) and not refused(), "three pods")


def test_a_second_operator_changes_nothing(scene: Scene) -> None:
    scene.create()
    scene.until(lambda: scene.settled(3), "three pods")
    before = set(scene.pods())
    other = make_operator(KubeApi(scene.rights), scene.client, "https://x", None)
    for _ in range(3):
        other.turn(fresh=True)
        scene.turn()
    assert set(scene.pods()) == before

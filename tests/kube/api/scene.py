"""One namespace with an operator that is called by hand, on a real API server with a real coordinator.

No kubelet runs here: fake nodes report pods as running, and `Scene` acts as the agent in each of them.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import httpx2

from e2e.running import wait_for
from kube.cluster.control_plane import ControlPlane
from pliant.client import Client
from pliant.core.messages import AgentJoin, AgentLeave, Cancel
from pliant.core.model.names import AgentId
from pliant.errors import PliantError
from pliant.kube.api import KubeApi
from pliant.kube.operator import Operator, make_operator

PATIENCE_S = 120.0
RESTRICTED = {
    "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "main",
            "image": "none:1",
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ],
}
MERGE = {"content-type": "application/merge-patch+json"}


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

    def make_pod(self, meta: dict[str, Any]) -> None:
        """Create a pod as any user may. It has no node, so nothing runs it."""
        self.http.post(self.pods_path, json={"metadata": meta, "spec": RESTRICTED}).raise_for_status()

    def live(self) -> list[str]:
        found = self.pods().items()
        return sorted(name for name, each in found if each["status"]["phase"] not in ("Succeeded", "Failed"))

    def condition(self, kind: str, name: str = "digits") -> tuple[str, str, str]:
        """The status, the reason and the message of a condition."""
        found = self.job(name).get("status", {}).get("conditions", ())
        return next(
            ((each["status"], each["reason"], each["message"]) for each in found if each["type"] == kind), ("", "", "")
        )

    def agents(self, name: str = "digits") -> dict[str, bool]:
        """The agents of a job, and whether each is leaving."""
        try:
            return {each.id: each.draining for each in self.client.job(f"{self.namespace}.{name}").agents}
        except PliantError:
            return {}

    def play_agents(self) -> None:
        """Do what the agent of each pod would do now."""
        for name, pod in self.pods().items():
            job = pod["metadata"].get("labels", {}).get("pliant.dev/job")
            if job is None or f"{self.namespace}.{job}" not in [line.name for line in self.client.jobs()]:
                continue
            key, known = f"{self.namespace}.{job}", self.agents(job)
            was_there = "pliant.dev/joined" in pod["metadata"].get("annotations", {})
            leaves = known.get(name, False) or "deletionTimestamp" in pod["metadata"]
            if name in known and leaves:
                self.client.send(key, AgentLeave(AgentId(name)))
                status = {"status": {"phase": "Succeeded"}}
                self.http.patch(f"{self.pods_path}/{name}/status", json=status, headers=MERGE)
            elif name not in known and pod["status"]["phase"] == "Running" and not (leaves or was_there):
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

    def delete_jobs(self) -> None:
        """Delete all jobs without the operator, and end the coordinator's, so that no later job waits for them."""
        for item in self.http.get(self.path).json()["items"]:
            path = f"{self.path}/{item['metadata']['name']}"
            self.http.patch(path, json={"metadata": {"finalizers": None}}, headers=MERGE)
            self.http.delete(path)
        for line in self.client.jobs():
            if line.name.startswith(f"{self.namespace}.") and not line.state.ended:
                self.client.send(line.name, Cancel("the test has ended"))

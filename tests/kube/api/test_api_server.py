"""The API server that the other tests of this folder use."""

from pathlib import Path
from typing import Any

import httpx2

from e2e.running import wait_for
from kube.cluster.control_plane import ControlPlane
from kube.cluster.fake_nodes import FakeNodes
from kube.cluster.programs import version

PATIENCE_S = 60.0


def pod(name: str, **spec: object) -> dict[str, Any]:
    whole = {"containers": [{"name": "main", "image": "none:1"}], "restartPolicy": "Never", **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole}


def test_it_is_the_version_that_is_pinned(plane: ControlPlane) -> None:
    assert plane.http().get("/version").json()["gitVersion"] == version()


def test_a_pod_without_a_node_stays_pending(plane: ControlPlane, namespace: str) -> None:
    made = plane.http().post(f"/api/v1/namespaces/{namespace}/pods", json=pod("alone"))
    assert made.status_code == 201, made.text
    assert made.json()["status"]["phase"] == "Pending"


def test_an_owned_pod_is_removed_with_its_owner(plane: ControlPlane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}"
    owner = plane.http().post(f"{path}/configmaps", json={"metadata": {"name": "owner"}}).json()
    whose = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    owned = pod("owned")
    owned["metadata"]["ownerReferences"] = [whose]
    assert plane.http().post(f"{path}/pods", json=owned).status_code == 201
    plane.http().delete(f"{path}/configmaps/owner").raise_for_status()
    wait_for(lambda: plane.http().get(f"{path}/pods/owned").status_code == 404, "the owned pod's end", PATIENCE_S)


def test_a_fake_node_reports_its_pods_as_running_and_as_gone(plane: ControlPlane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    with FakeNodes(plane, 1) as nodes:
        plane.http().post(path, json=pod("faked", nodeName=nodes.names[0])).raise_for_status()

        def read() -> httpx2.Response:
            return plane.http().get(f"{path}/faked")

        wait_for(lambda: read().json()["status"]["phase"] == "Running", "the pod to run", PATIENCE_S)
        plane.http().delete(f"{path}/faked").raise_for_status()
        wait_for(lambda: read().status_code == 404, "the pod's end", PATIENCE_S)


def test_kubectl_reports_what_the_server_refuses(plane: ControlPlane, tmp_path: Path) -> None:
    said = plane.kubectl("get", "namespace", "nowhere", code=1)
    assert 'namespaces "nowhere" not found' in said

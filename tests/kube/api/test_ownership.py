"""Objects that bear a job's name or labels and belong to another owner: never used, and told."""

from __future__ import annotations

from typing import Any

import pytest

from kube.api.scene import MERGE, Scene
from pliant.kube.api import KubeApi
from pliant.kube.names import INDEX_LABEL, JOB_LABEL, ROLE_LABEL, TIER_LABEL
from pliant.kube.operator import make_operator

Object = dict[str, Any]
LABELS = {JOB_LABEL: "digits", ROLE_LABEL: "worker", INDEX_LABEL: "7", TIER_LABEL: "surplus"}
CRASHED: Object = {
    "phase": "Failed",
    "containerStatuses": [
        {
            "name": "main",
            "image": "none:1",
            "imageID": "none:1",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": {"exitCode": 9, "reason": "Error"}},
        }
    ],
}
CONTENT: dict[str, Object] = {
    "Secret": {"stringData": {"token": "theirs"}},
    "Service": {"spec": {"ports": [{"port": 80}]}},
    "NetworkPolicy": {"spec": {"podSelector": {}}},
}
PATHS = {
    "Secret": "/api/v1/namespaces/{}/secrets",
    "Service": "/api/v1/namespaces/{}/services",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}


def crash(scene: Scene, name: str, *owners: Object) -> None:
    """Make a pod with the labels of a job's pod, and let it fail."""
    scene.make_pod({"name": name, "labels": LABELS, "ownerReferences": list(owners)})
    path = f"{scene.pods_path}/{name}/status"
    scene.http.patch(path, json={"status": CRASHED}, headers=MERGE).raise_for_status()


def other_owner(scene: Scene) -> Object:
    """An object that exists, so that the garbage collector leaves its pods alone."""
    path = f"/api/v1/namespaces/{scene.namespace}/configmaps"
    made = scene.http.post(path, json={"metadata": {"name": "other"}}).raise_for_status().json()
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": made["metadata"]["uid"]}


def test_a_pod_of_another_owner_neither_counts_nor_fails_the_job(scene: Scene) -> None:
    scene.create(failure={"fatalExitCodes": [9]})
    crash(scene, "without-owner")
    crash(scene, "of-another", other_owner(scene))
    scene.until(lambda: scene.settled(3), "three pods")
    assert scene.job()["status"]["restarts"]["counted"] == 0
    assert scene.job()["status"]["state"] == "Waiting"


def test_a_pod_of_its_own_counts_even_if_it_has_another_owner_too(scene: Scene) -> None:
    scene.create(failure={"fatalExitCodes": [9]})
    own = {"apiVersion": "pliant.dev/v1alpha1", "kind": "ElasticJob", "name": "digits"}
    crash(scene, "digits-w7", other_owner(scene), {**own, "uid": scene.job()["metadata"]["uid"]})
    scene.until(lambda: scene.job().get("status", {}).get("state") == "Failed", "the end")
    assert scene.job()["status"]["restarts"]["counted"] == 1


@pytest.mark.parametrize(("kind", "name"), [("Secret", "digits-join"), ("Service", "digits"), ("Pod", "digits-w1")])
def test_an_object_of_another_owner_under_our_name_is_told_until_it_is_gone(scene: Scene, kind: str, name: str) -> None:
    meta = {"name": name, "labels": {JOB_LABEL: "digits"}}
    if kind == "Pod":
        scene.make_pod(meta)
        path = f"{scene.pods_path}/{name}"
    else:
        path = PATHS[kind].format(scene.namespace)
        scene.http.post(path, json={"metadata": meta, **CONTENT[kind]}).raise_for_status()
        path = f"{path}/{name}"
    uid = scene.http.get(path).json()["metadata"]["uid"]
    scene.create()
    told = f"{kind} {name} belongs to another owner"
    scene.until(lambda: told in str(scene.job().get("status", {}).get("reason")), "the reason")
    assert set(scene.pods()) <= {name}
    assert scene.http.get(path).json()["metadata"]["uid"] == uid
    scene.http.delete(path, params={"gracePeriodSeconds": "0"}).raise_for_status()
    scene.until(lambda: scene.settled(3) and told not in scene.job()["status"]["reason"], "three pods")


def test_objects_that_an_operator_made_before_are_its_own(scene: Scene) -> None:
    scene.create()
    scene.until(lambda: scene.settled(3), "three pods")
    path = f"{PATHS['Secret'].format(scene.namespace)}/digits-join"
    token = scene.http.get(path).json()["data"]["token"]
    tokens = len(scene.client.tokens())
    scene.operator = make_operator(KubeApi(scene.rights), scene.client, "https://x", None)  # it has seen nothing yet
    for _ in range(2):
        scene.turn()
    assert scene.http.get(path).json()["data"]["token"] == token
    assert len(scene.client.tokens()) == tokens
    assert scene.condition("PodsHealthy")[0] == "True"


@pytest.mark.parametrize("is_foreign", [True, False])
def test_only_a_claim_of_the_operator_is_used_and_deleted(scene: Scene, is_foreign: bool) -> None:
    claims = f"/api/v1/namespaces/{scene.namespace}/persistentvolumeclaims"
    if is_foreign:
        foreign = {"metadata": {"name": "digits-checkpoints"}, "spec": CLAIM}
        scene.http.post(claims, json=foreign).raise_for_status()
    scene.create(checkpoints={"volumeClaim": {"spec": CLAIM}, "onDelete": "Delete"})

    def said() -> str:
        return str(scene.job().get("status", {}).get("reason"))

    told = "PersistentVolumeClaim digits-checkpoints belongs to another owner"
    scene.until(lambda: told in said() if is_foreign else scene.settled(3), "the claim to be looked at")
    scene.http.delete(f"{scene.path}/digits").raise_for_status()
    scene.until(lambda: "metadata" not in scene.job() or "uid" not in scene.job()["metadata"], "the deletion")
    found = scene.http.get(f"{claims}/digits-checkpoints").json()
    is_left = found.get("kind") == "PersistentVolumeClaim" and "deletionTimestamp" not in found["metadata"]
    assert is_left is is_foreign

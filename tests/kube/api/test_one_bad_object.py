"""One object that the operator cannot use costs no other job, and its own job's status has the reason."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.running import Running
from kube.api.scene import Scene
from pliant.client import Client
from pliant.credentials import parse_token
from pliant.kube.api import KubeApi
from pliant.kube.manifests import companions
from pliant.kube.names import INDEX_LABEL, JOB_LABEL
from pliant.kube.operator import make_operator
from pliant.wire.api import Scope, TokenRequest

Object = dict[str, Any]


def healthy(scene: Scene, name: str) -> tuple[str, str]:
    status, _, message = scene.condition("PodsHealthy", name)
    return status, message


def pods_of(scene: Scene, name: str) -> list[str]:
    return [pod for pod in scene.live() if pod.startswith(f"{name}-w")]


def test_a_template_that_makes_no_pod_is_told_in_its_job_and_costs_no_other_job(scene: Scene) -> None:
    wrong = {"spec": {"containers": [{"name": "main", "image": "none:1", "env": [{"value": "x"}]}]}}
    assert scene.create(name="bad", workers={"template": wrong}).status_code == 201
    assert scene.create(name="good").status_code == 201
    scene.until(lambda: len(pods_of(scene, "good")) == 3 and healthy(scene, "bad")[0] == "False", "three pods")
    assert "CreatePod" in healthy(scene, "bad")[1]
    assert not pods_of(scene, "bad")
    assert healthy(scene, "good")[0] == "True"


def test_a_job_that_cannot_be_decided_is_told_and_costs_no_other_job(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    companion_objects = companions.companion_objects

    def failing(job: Any) -> Any:
        if job.name == "bad":
            raise TypeError("not iterable")
        return companion_objects(job)

    monkeypatch.setattr(companions, "companion_objects", failing)
    for name in ("bad", "good"):
        assert scene.create(name=name).status_code == 201
    scene.until(lambda: len(pods_of(scene, "good")) == 3 and healthy(scene, "bad")[0] == "False", "three pods")
    assert "not iterable" in healthy(scene, "bad")[1]


def test_an_empty_part_of_a_template_counts_as_missing(scene: Scene) -> None:
    for number, part in enumerate(("securityContext", "volumes", "initContainers")):
        spec = {**scene.manifest()["spec"]["workers"]["template"]["spec"], part: None}
        assert scene.create(name=f"j{number}", workers={"target": 1, "template": {"spec": spec}}).status_code == 201
    scene.until(lambda: scene.live() == ["j0-w1", "j1-w1", "j2-w1"], "a pod of each")


def test_a_claim_that_the_api_server_refuses_is_told_in_its_words(scene: Scene) -> None:
    assert scene.create(checkpoints={"volumeClaim": {"spec": {}}}).status_code == 201
    scene.until(lambda: "accessModes" in str(scene.job().get("status", {}).get("reason")), "the reason")
    assert not scene.pods()


def test_a_pod_that_cannot_be_read_is_left_out(scene: Scene) -> None:
    scene.create()
    owner = {"apiVersion": "pliant.dev/v1alpha1", "kind": "ElasticJob", "name": "digits"}
    meta = {
        "name": "strange",
        "labels": {JOB_LABEL: "digits", INDEX_LABEL: "one"},
        "ownerReferences": [{**owner, "uid": scene.job()["metadata"]["uid"]}],
    }
    scene.make_pod(meta)
    scene.until(lambda: scene.live() == ["digits-w1", "digits-w2", "digits-w3", "strange"], "three pods more")


def test_a_coordinator_that_refuses_the_operator_is_the_reason_in_the_status(scene: Scene, running: Running) -> None:
    scene.create()
    made = scene.client.create_token(TokenRequest(Scope.ADMIN)).token
    token = parse_token(made)
    assert token is not None
    with Client([running.url], token, patience_s=5.0) as narrow:
        narrow.jobs()
        scene.client.expire_token(token.id)
        operator = make_operator(KubeApi(scene.rights), narrow, "https://x", None)
        scene.operator = operator
        for _ in range(2):
            operator.turn(fresh=True)
        assert scene.condition("CoordinatorReady")[0] == "False"
        assert scene.job()["status"]["reason"].startswith("Not allowed")
    assert not scene.pods()

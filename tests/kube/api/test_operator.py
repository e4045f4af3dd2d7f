"""The operator against a real API server and a real coordinator, with exactly the rights of its manifest."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.running import wait_for
from kube.api.scene import MERGE, PATIENCE_S, Scene
from pliant.kube.api import KubeApi
from pliant.kube.operator import make_operator

pytestmark = pytest.mark.long  # minutes on a busy machine


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
        return scene.condition("PodsHealthy")[1] == "QuotaExceeded"

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

"""The life of an ElasticJob at a real API server: applied twice, resized, finished, deleted, and its events."""

from __future__ import annotations

import json

import pytest

from kube.api.scene import MERGE, Scene
from pliant.core.messages import Cancel

APPLY = ("apply", "--server-side", "-f", "-")


def apply(scene: Scene) -> None:
    """Apply the manifest of the job by server-side apply, as GitOps does, without a target that it would own."""
    manifest = scene.manifest()
    del manifest["spec"]["workers"]["target"]
    space = ("-n", scene.namespace)
    scene.plane.kubectl(*space, *APPLY, "--field-manager=git", stdin=json.dumps(manifest))


def test_a_manifest_applied_again_changes_nothing_and_leaves_a_size_that_it_does_not_name(scene: Scene) -> None:
    apply(scene)
    scene.until(lambda: scene.settled(6), "six pods: without a target the maximum counts")
    scene.plane.kubectl("-n", scene.namespace, "scale", "elasticjob/digits", "--replicas=2")
    scene.until(lambda: scene.settled(2), "two pods")
    before = scene.job()["metadata"]["generation"]
    apply(scene)
    for _ in range(2):
        scene.turn()
    assert scene.job()["metadata"]["generation"] == before
    assert scene.settled(2)


def test_an_autoscaler_reads_and_writes_the_scale_subresource(scene: Scene) -> None:
    scene.create()
    scene.until(lambda: scene.settled(3) and scene.job()["status"]["workers"]["pods"] == 3, "three pods")
    path = f"{scene.path}/digits/scale"
    scale = scene.http.get(path).raise_for_status().json()
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (3, 3)
    selected = scene.http.get(scene.pods_path, params={"labelSelector": scale["status"]["selector"]}).json()["items"]
    assert sorted(each["metadata"]["name"] for each in selected) == scene.live()
    scale["spec"]["replicas"] = 4
    scene.http.put(path, json=scale).raise_for_status()
    scene.until(lambda: scene.settled(4), "four pods")


def test_an_ended_job_stays_ended_and_goes_after_its_time(scene: Scene) -> None:
    scene.create(podsAfterFinish="Keep")
    scene.until(lambda: scene.settled(3), "three pods")
    scene.client.send(f"{scene.namespace}.digits", Cancel("the data was wrong", failed=True))
    scene.until(lambda: scene.job()["status"]["state"] == "Failed", "the end")
    assert "the data was wrong" in scene.job()["status"]["reason"]
    refused = scene.plane.kubectl("-n", scene.namespace, "scale", "elasticjob/digits", "--replicas=2", code=1)
    assert "ended" in refused, refused
    for name in scene.live():
        scene.http.delete(f"{scene.pods_path}/{name}", params={"gracePeriodSeconds": "0"})
    for _ in range(3):
        scene.turn()
    assert not scene.live(), "a pod of an ended job was made again"
    scene.patch({"spec": {"ttlSecondsAfterFinished": 0}}).raise_for_status()
    scene.until(lambda: "spec" not in scene.job(), "the deletion")


def test_a_deleted_job_is_ended_in_the_coordinator_first(scene: Scene) -> None:
    scene.create()
    scene.until(lambda: scene.settled(3), "three pods")
    scene.http.delete(f"{scene.path}/digits").raise_for_status()
    assert scene.job()["metadata"]["finalizers"] == ["pliant.dev/coordinator"]
    scene.until(lambda: "spec" not in scene.job(), "the deletion")
    assert f"{scene.namespace}.digits" not in [line.name for line in scene.client.jobs()]


def test_events_tell_each_change_once(scene: Scene) -> None:
    scene.create()
    scene.until(lambda: scene.settled(3), "three pods")
    for _ in range(3):
        scene.turn()
    path = f"/api/v1/namespaces/{scene.namespace}/events"
    chosen = {"fieldSelector": "involvedObject.kind=ElasticJob"}
    before = [(each["reason"], each["message"]) for each in scene.http.get(path, params=chosen).json()["items"]]
    assert len(before) == len(set(before))
    for _ in range(5):
        scene.turn()
    assert len(scene.http.get(path, params=chosen).json()["items"]) == len(before)


@pytest.mark.parametrize("name", ["a", "n" * 40])
def test_the_shortest_and_the_longest_name_make_pods_in_two_namespaces(scene: Scene, name: str) -> None:
    other = scene.plane.namespace(f"{scene.namespace}-twin")
    path = scene.path.replace(scene.namespace, other)
    manifest = scene.manifest(name, workers={"target": 1})
    scene.http.post(path, json=manifest).raise_for_status()
    scene.create(name=name, workers={"target": 1}).raise_for_status()
    pods = f"/api/v1/namespaces/{other}/pods"

    def both() -> bool:
        there = [each["metadata"]["name"] for each in scene.http.get(pods).json()["items"]]
        return scene.live() == there == [f"{name}-w1"]

    scene.until(both, "a pod in each")
    keys = [line.name for line in scene.client.jobs()]
    assert len([key for key in keys if key.startswith(scene.namespace)]) == 2
    scene.http.patch(f"{path}/{name}", json={"metadata": {"finalizers": None}}, headers=MERGE)
    scene.http.delete(f"/api/v1/namespaces/{other}").raise_for_status()

"""Jobs in queues on a real API server: nodes lend slots, the coordinator grants, the operator makes pods of grants."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kube.api.scene import Scene
from pliant.core.allocate import Pool
from pliant.kube.names import JOB_LABEL, SLOTS_LABEL


@pytest.fixture
def lending(scene: Scene) -> Iterator[Scene]:
    """A node lends four slots to the pool."""
    scene.client.set_pool(Pool(0, is_lent=True))
    label(scene, f"{SLOTS_LABEL}=4")
    yield scene
    label(scene, f"{SLOTS_LABEL}-")
    scene.client.set_pool(Pool(0))


def label(scene: Scene, text: str) -> None:
    scene.plane.kubectl("label", "node", scene.node, "--overwrite", text)


def live(scene: Scene, job: str) -> set[str]:
    """The pods of a job that have not ended, and whose agents are not leaving."""
    leaving = {name for name, goes in scene.agents(job).items() if goes}
    found = scene.pods()
    return {name for name in scene.live() if found[name]["metadata"]["labels"].get(JOB_LABEL) == job} - leaving


def settled(scene: Scene, **sizes: int) -> bool:
    return all(len(live(scene, job)) == len(scene.agents(job)) == size for job, size in sizes.items())


def test_an_urgent_job_gets_the_slots_of_others_by_consent_and_they_grow_back(lending: Scene) -> None:
    scene = lending
    scene.create(name="night", queue="batch")
    scene.until(lambda: settled(scene, night=3), "three pods of the first job")
    before = live(scene, "night")
    scene.create(name="urgent", queue="research", priority=5, workers={"min": 2})
    scene.until(lambda: settled(scene, night=1, urgent=3), "the urgent job's pods")
    assert live(scene, "night") < before
    assert "slot" in scene.condition("Granted", "night")[2]
    assert scene.condition("Granted", "urgent")[:2] == ("True", "Granted")
    held = [line.held for line in scene.client.pool().jobs]
    assert sum(held) <= 4
    scene.http.delete(f"{scene.path}/urgent")
    scene.until(lambda: settled(scene, night=3), "the first job to grow back")


def test_a_job_waits_with_its_position_until_nodes_lend_enough(lending: Scene) -> None:
    scene = lending
    label(scene, f"{SLOTS_LABEL}=1")
    scene.create(queue="batch", workers={"min": 2})
    scene.until(lambda: "the pool has 1 slot" in scene.condition("Granted")[2], "the reason")
    assert scene.condition("Granted")[:2] == ("False", "Waiting")
    assert scene.pods() == {}
    label(scene, f"{SLOTS_LABEL}=3")
    scene.until(lambda: settled(scene, digits=3), "the pods")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"priority": 1}, "priority has no effect without queue"),
        ({"queue": "-"}, "spec.queue"),
        ({"queue": "a", "priority": 1001}, "spec.priority"),
    ],
)
def test_a_queue_that_cannot_work_is_refused(scene: Scene, more: dict[str, object], why: str) -> None:
    answer = scene.create(**more)
    assert answer.status_code == 422
    assert why in answer.json()["message"]


def test_a_queue_stays(scene: Scene) -> None:
    scene.create(queue="batch")
    assert "queue is immutable" in scene.patch({"spec": {"queue": "other"}}).json()["message"]
    assert scene.patch({"spec": {"priority": 3}}).status_code == 200

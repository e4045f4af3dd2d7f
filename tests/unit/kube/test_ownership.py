"""Objects that bear a job's name or labels and belong to another owner: never used, and told."""

import pytest

from pliant.kube import actions as a
from pliant.kube.manifests.companions import claim
from pliant.kube.model import JobView
from pliant.kube.observe import read_job
from pliant.kube.operator import Lists, Operator
from unit.kube.objects import Object, pod_object
from unit.kube.stand_ins import AnsweringApi, AnsweringClient, operator_of, ready_job, waiting_view

CRASHED: Object = {
    "phase": "Failed",
    "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 9, "reason": "Error"}}}],
}


@pytest.fixture(autouse=True)
def every_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def views(_operator: Operator, lists: Lists) -> dict[str, JobView]:
        return {f"research.{each['metadata']['name']}": waiting_view() for each in lists.jobs.items}

    monkeypatch.setattr(Operator, "_read_views", views)


@pytest.mark.parametrize(
    "foreign",
    [
        {"ownerReferences": []},
        {"ownerReferences": [{"kind": "ElasticJob", "name": "digits", "uid": "an-earlier-one"}]},
        {"ownerReferences": [{"uid": "uid-of-digits"}], "namespace": "elsewhere"},
    ],
)
def test_a_pod_of_another_owner_neither_counts_nor_fails_the_job(foreign: Object) -> None:
    item = ready_job(failure={"fatalExitCodes": [9]})
    api, client = AnsweringApi(item, pods=(pod_object(CRASHED, **foreign),)), AnsweringClient()
    operator_of(api, client).turn(fresh=True)
    assert len(api.made("Pod")) == 4
    assert item["status"]["restarts"]["counted"] == 0
    assert client.sent == []


def test_a_pod_of_its_own_counts() -> None:
    item = ready_job(failure={"fatalExitCodes": [9]})
    own = [{"uid": "another"}, {"uid": item["metadata"]["uid"]}]
    api = AnsweringApi(item, pods=(pod_object(CRASHED, ownerReferences=own),))
    operator_of(api, AnsweringClient()).turn(fresh=True)
    assert item["status"]["restarts"]["counted"] == 1


@pytest.mark.parametrize(
    ("kind", "name"),
    [("Secret", "digits-join"), ("Service", "digits"), ("NetworkPolicy", "digits"), ("Pod", "digits-w1")],
)
def test_an_object_of_another_owner_under_our_name_is_told_until_it_is_gone(kind: str, name: str) -> None:
    item = ready_job()
    api, client = AnsweringApi(item), AnsweringClient()
    foreign = {
        "kind": kind,
        "metadata": {"name": name, "namespace": "research", "labels": {"pliant.dev/job": "digits"}},
    }
    api.objects[kind, name] = foreign
    operator = operator_of(api, client)
    for _ in range(2):
        operator.turn(fresh=True)
    assert f"{kind} {name} belongs to another owner" in item["status"]["reason"]
    assert api.made("Pod") <= {"digits-w1"}
    assert api.objects[kind, name] is foreign
    del api.objects[kind, name]
    for _ in range(3):
        operator.turn(fresh=True)
    assert len(api.made("Pod")) == 4
    assert item["status"]["reason"] == "it waits"


def test_objects_that_the_operator_made_before_are_its_own() -> None:
    item = ready_job()
    api = AnsweringApi(item)
    operator_of(api, AnsweringClient()).turn(fresh=True)
    client = AnsweringClient()
    operator_of(api, client).turn(fresh=True)  # another operator, which has seen nothing yet
    assert client.tokens_made == 0
    assert item["status"]["reason"] == "it waits"


@pytest.mark.parametrize(("labels", "is_left"), [({}, True), ({"pliant.dev/job": "digits"}, False)])
def test_only_a_claim_of_the_operator_is_used_and_deleted(labels: Object, is_left: bool) -> None:
    item = ready_job(checkpoints={"volumeClaim": {"spec": {}}, "onDelete": "Delete"})
    job = read_job(item)
    api = AnsweringApi(item)
    key = ("PersistentVolumeClaim", "digits-checkpoints")
    made = claim(job)
    api.objects[key] = {**made, "metadata": {**made["metadata"], "uid": "c1", "labels": labels}}
    operator = operator_of(api, AnsweringClient())
    for _ in range(2):
        operator.turn(fresh=True)
    assert ("belongs to another owner" in item["status"]["reason"]) is is_left
    operator.performer.perform(job, item, a.DeleteClaim(key[1]))
    assert (key in api.objects) is is_left

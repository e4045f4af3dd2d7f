"""The slots that nodes lend to the pool, and the pods of a job that is granted fewer than it wants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pliant.core.allocate import Pool
from pliant.kube.api import Listing
from pliant.kube.model import AgentView, ElasticJob, JobView, Pod, Unknown
from pliant.kube.names import SLOTS_LABEL
from pliant.kube.observe import LEAVING_TAINTS, cluster_slots, lent_slots
from pliant.kube.operator import Lists, make_operator
from pliant.kube.reconcile import Observation, job_spec
from pliant.kube.scaling import plan_change
from pliant.wire.api import PoolStatus
from unit.kube.objects import elastic_job, node_object
from unit.kube.stand_ins import NOW, AnsweringClient, unused_api, waiting_view


def node(name: str, slots: object, ready: str = "True", *taints: str, cordoned: bool = False) -> dict[str, Any]:
    made = node_object(name, ready, *taints)
    made["metadata"]["labels"] = {SLOTS_LABEL: str(slots)}
    return {**made, "spec": {**made["spec"], "unschedulable": cordoned}}


def pod(index: int, on: str = "a") -> Pod:
    return Pod(f"digits-w{index}", f"u{index}", 3, "worker", index, "surplus", "h", NOW, "Running", True, node=on)


def agent(members: int = 1, wanted: int | None = 1) -> AgentView:
    return AgentView(members, members, holds=True, draining=False, wanted=wanted)


Seen = tuple[ElasticJob, tuple[Pod, ...], JobView]


def seen(*pods: Pod, queue: str = "batch", view: JobView | None = None, **workers: Any) -> Seen:
    known = replace(waiting_view(), agents={each.name: agent() for each in pods})
    return elastic_job(workers, queue=queue), pods, view or known


def test_nodes_lend_what_their_label_says() -> None:
    assert cluster_slots([node("a", 4), node("b", 2), node_object("c")], []) == 6


@pytest.mark.parametrize("text", ["", "-3", "many", "1.5", "1" * 7])
def test_a_label_that_is_no_number_lends_nothing(text: str) -> None:
    assert lent_slots(node("a", text)) == 0


@pytest.mark.parametrize(
    "closed",
    [
        node("a", 4, cordoned=True),
        node("a", 4, "Unknown"),
        node("a", 4, "True", LEAVING_TAINTS[0]),
    ],
)
def test_a_node_that_takes_no_new_pods_lends_what_jobs_in_queues_use_there(closed: dict[str, Any]) -> None:
    assert cluster_slots([closed], []) == 0
    two = seen(pod(1), pod(2), pod(3, "b"))
    assert cluster_slots([closed, node("b", 1)], [two]) == 3
    assert cluster_slots([closed], [seen(pod(1), pod(2), processesPerPod=8)]) == 4
    assert cluster_slots([closed], [seen(pod(1), queue="")]) == 0, "a job in no queue uses no slot"
    assert cluster_slots([closed], [seen(pod(1), view=Unknown("It does not answer."))]) == 0
    assert cluster_slots([closed], [seen(pod(1), view=waiting_view())]) == 0, "its agent is not there"


@pytest.mark.parametrize(
    ("workers", "granted", "pods"),
    [
        ({}, 0, 0),
        ({}, 3, 3),
        ({}, 9, 4),
        ({"sizes": [2, 4]}, 3, 2),
        ({"spares": 2}, 5, 5),
        ({"spares": 2}, 4, 4),
        ({"processesPerPod": 2}, 3, 2),
        ({}, None, 4),
    ],
)
def test_a_job_has_the_pods_that_its_grant_pays_for(workers: dict[str, Any], granted: int | None, pods: int) -> None:
    assert elastic_job(workers, queue="batch").spec.wanted_pods("worker", granted) == pods


def test_queue_and_priority_reach_the_coordinator() -> None:
    wanted = job_spec(elastic_job(queue="batch", priority=-3).spec)
    assert (wanted.queue, wanted.priority) == ("batch", -3)


def test_what_a_job_can_use_of_a_pool_reaches_the_coordinator() -> None:
    workers = {"processesPerPod": 2, "sizes": [2, 4, 8]}
    wanted = job_spec(elastic_job(workers, queue="batch", suspend=True).spec)
    assert (wanted.unit, wanted.sizes, wanted.suspended) == (2, (2, 4, 8), True)
    alone = job_spec(elastic_job(workers, suspend=True).spec)
    assert (alone.unit, alone.sizes, alone.suspended) == (1, (), False), "no pool decides about it"


def test_a_pod_that_has_ended_uses_no_slot_of_a_closed_node() -> None:
    closed = node("a", 4, cordoned=True)
    assert cluster_slots([closed], [seen(pod(1), replace(pod(2), phase="Succeeded"))]) == 1


class Counting(AnsweringClient):
    """A coordinator that keeps the slots that the operator reports."""

    def __init__(self) -> None:
        super().__init__()
        self.reported: list[int] = []

    def report_cluster(self, slots: int) -> PoolStatus:
        self.reported.append(slots)
        return PoolStatus(Pool(slots), ())


def test_no_slots_are_reported_while_those_in_use_on_closed_nodes_are_unknown() -> None:
    client, none = Counting(), Listing((), 1)
    operator = make_operator(unused_api(), client, "https://x", None)
    lists = Lists(none, none, Listing((node("a", 4, cordoned=True), node("b", 2)), 1), NOW)

    def report(*found: Seen) -> list[int]:
        operator._report_slots(lists, [(Observation(job, pods, 1, view, NOW), {}) for job, pods, view in found])
        return client.reported

    silent = Unknown("It does not answer.")
    assert report(seen(pod(1)), seen(view=silent)) == []
    assert report(seen(pod(1)), seen(queue="", view=silent)) == [3]


def test_the_pod_goes_whose_workers_the_coordinator_does_not_want_any_more() -> None:
    pods = (pod(1), pod(2), pod(3))
    agents = {"digits-w1": agent(wanted=0), "digits-w2": agent(), "digits-w3": agent()}

    def removed() -> list[str]:
        view = replace(waiting_view(), agents=agents)
        return [each.name for each in plan_change(pods, 2, 1, "h", view).remove]

    assert removed() == ["digits-w1"]
    agents["digits-w2"] = agent(members=0)
    assert removed() == ["digits-w2"]

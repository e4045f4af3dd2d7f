"""The status of an ElasticJob: one sentence that is true now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pliant.kube.model import AgentView, CoordinatorView, ElasticJob, Pod
from pliant.kube.status import Situation, build_status
from unit.kube.objects import elastic_job

VIEW = CoordinatorView(
    "running", "digits-w1.1 was lost (its lease ran out)", "store", 5.0, 4, 4, 9, 100, 0, 3, 0, {}, active=4
)
FAILED = Pod("digits-w1", "u1", 3, "worker", 1, "base", "h", 0.0, "Failed", exit_code=1)


def status(view: CoordinatorView, *pods: Pod, job: ElasticJob | None = None) -> dict[str, Any]:
    made = replace(elastic_job(), status={"coordinatorJob": view.identity})
    return dict(build_status(job or made, pods, view, 100.0, "", Situation()))


def healthy(found: dict[str, Any]) -> tuple[str, str]:
    [each] = [each for each in found["conditions"] if each["type"] == "PodsHealthy"]
    return each["status"], each["reason"]


def test_the_last_change_is_not_the_reason_once_all_workers_train() -> None:
    assert status(VIEW)["reason"] == "all 4 workers train"
    fewer = replace(VIEW, active=3)
    assert status(fewer)["reason"] == "digits-w1.1 was lost (its lease ran out)"
    stopping = replace(VIEW, state="stopping", why="cancelled by a user")
    assert status(stopping)["reason"] == "cancelled by a user"


def test_a_failed_pod_is_a_problem_until_the_job_has_all_its_workers_again() -> None:
    short = status(replace(VIEW, active=3), FAILED)
    assert healthy(short) == ("False", "Crashing")
    assert "the last failure: digits-w1" in short["reason"]
    whole = status(VIEW, FAILED)
    assert healthy(whole) == ("True", "Healthy")
    assert whole["reason"] == "all 4 workers train"


def condition(found: dict[str, Any], kind: str) -> tuple[str, str, str]:
    return next(
        ((each["status"], each["reason"], each["message"]) for each in found["conditions"] if each["type"] == kind),
        ("", "", ""),
    )


def test_a_job_that_waits_in_a_queue_says_why_and_uses_no_time() -> None:
    waiting = replace(VIEW, state="waiting", active=0, size=0, granted=0, granted_why="1 of 2 jobs before it waits")
    found = status(waiting)
    assert condition(found, "Granted") == ("False", "Waiting", "1 of 2 jobs before it waits")
    assert found["reason"] == "1 of 2 jobs before it waits"
    assert found["workers"]["granted"] == 0
    assert "activeSince" not in found
    assert status(replace(waiting, granted=2))["activeSince"] == 100.0


def test_a_job_that_lost_its_grant_stops_its_clock_once_its_pods_have_ended() -> None:
    waiting = replace(VIEW, state="waiting", granted=0)
    running = replace(elastic_job(), status={"coordinatorJob": VIEW.identity, "activeSince": 60.0})
    assert status(waiting, Pod("digits-w1", "u1", 3, "worker", 1, "base", "h", 0.0), job=running)["activeSince"] == 60.0
    assert status(waiting, job=running)["activeSeconds"] == 40.0


def test_the_message_says_how_many_workers_will_come_or_leave() -> None:
    wanted = elastic_job().spec.desired
    assert condition(status(replace(VIEW, active=wanted)), "AtTarget")[2] == f"{wanted} workers"
    fewer = condition(status(replace(VIEW, active=1)), "AtTarget")
    assert fewer == ("False", "Waiting", f"1 of {wanted} workers; 0 pods are pending")
    more = condition(status(replace(VIEW, active=wanted + 2)), "AtTarget")
    assert more == ("False", "Waiting", f"{wanted + 2} workers, {wanted} wanted; 2 will leave")


def test_a_job_with_all_that_it_was_granted_is_complete_and_names_the_pool_s_reason() -> None:
    held = replace(VIEW, active=2, size=2, granted=2, granted_why="urgent has 6 of the 8 slots")
    found = status(held, FAILED)
    assert healthy(found) == ("True", "Healthy")
    assert condition(found, "Granted") == ("True", "Partly", "2 of 4 workers: urgent has 6 of the 8 slots")
    assert condition(found, "AtTarget")[:2] == ("False", "Waiting")
    assert found["reason"] == "2 of 4 workers: urgent has 6 of the 8 slots"
    all_of_it = status(replace(VIEW, granted=4, granted_why="all that it wants"))
    assert condition(all_of_it, "Granted")[:2] == ("True", "Granted")
    assert all_of_it["reason"] == "all 4 workers train"


def test_a_job_in_no_queue_has_no_grant_to_report() -> None:
    assert condition(status(VIEW), "Granted") == ("", "", "")
    assert status(VIEW)["workers"]["granted"] == 4


def test_a_worker_of_a_task_queue_that_waits_for_a_shard_counts_as_active_and_a_server_does_not() -> None:
    servers = {"count": 1, "template": {"spec": {"containers": [{"name": "ps", "image": "trainer:1"}]}}}
    job = elastic_job(strategy="ParameterServer", mode="Tasks", parameterServers=servers)
    job = replace(job, status={"coordinatorJob": VIEW.identity})
    agents = {
        "digits-w1": AgentView(1, 1, holds=True, draining=False, wanted=1, ready=1),
        "digits-w2": AgentView(1, 0, holds=False, draining=False, wanted=1, ready=1),
        "digits-ps3": AgentView(1, 1, holds=False, draining=False, wanted=0, ready=1, capacity=0),
    }
    assert agents["digits-ps3"].is_complete
    found = status(replace(VIEW, active=2, spare=1, size=3, agents=agents), job=job)["workers"]
    assert (found["active"], found["spare"]) == (2, 0)
    more = {f"digits-w{index}": agents["digits-w1"] for index in range(1, 6)}
    found = status(replace(VIEW, active=5, size=5, agents=more), job=job)["workers"]
    assert (found["active"], found["spare"]) == (4, 1), "one more runs while a pod is replaced"

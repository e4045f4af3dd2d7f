"""Single decisions of the operator that the simulated schedules do not reach."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pliant.kube import actions as a
from pliant.kube.model import Absent, AgentView, ElasticJob, JobView, Pod
from pliant.kube.names import FINALIZER
from pliant.kube.reconcile import Observation, job_spec, reconcile
from unit.kube.objects import elastic_job
from unit.kube.stand_ins import NOW, waiting_view

VIEW = waiting_view()


def job(status: dict[str, Any] | None = None, **spec: Any) -> ElasticJob:
    known = {"coordinatorJob": {"store": VIEW.store, "createdAt": VIEW.created_at}}
    return replace(elastic_job(**spec), finalizers=(FINALIZER,), status={**known, **(status or {})})


def pod(index: int, phase: str = "Failed", **fields: Any) -> Pod:
    return Pod(f"digits-w{index}", f"u{index}", 3, "worker", index, "base", "h", NOW - 60, phase, True, **fields)


def decide(of: ElasticJob, *pods: Pod, view: JobView = VIEW, refusal: str = "") -> tuple[a.Action, ...]:
    return reconcile(Observation(of, pods, 1000, view, NOW, refusal))


def written(actions: tuple[a.Action, ...]) -> dict[str, Any]:
    [status] = [each.status for each in actions if isinstance(each, a.WriteStatus)]
    return dict(status)


def condition(status: dict[str, Any], kind: str = "PodsHealthy") -> str:
    [each] = [each for each in status["conditions"] if each["type"] == kind]
    return f"{each['status']}: {each['message']}"


def cancelled(actions: tuple[a.Action, ...]) -> str:
    return next((each.why for each in actions if isinstance(each, a.CancelJob)), "")


# ---------------------------------------------------------------------------------------------- failures of pods

NEVER_JOINED: dict[str, Any] = {"phase": "Succeeded", "exit_code": 0}
REFUSED: dict[str, Any] = {"phase": "Failed", "exit_code": 3}


@pytest.mark.parametrize(
    ("end", "words"), [(NEVER_JOINED, "exit code 0, and it never joined"), (REFUSED, "exit code 3, refused")]
)
def test_a_pod_that_ends_without_joining_or_is_refused_counts_and_is_named(end: dict[str, Any], words: str) -> None:
    actions = decide(job(), pod(1, **end))
    status = written(actions)
    assert (status["restarts"]["counted"], status["restarts"]["pods"]) == (1, ["digits-w1"])
    assert condition(status).startswith("False: ")
    assert f"digits-w1, {words}" in condition(status)
    assert not any(isinstance(each, a.DeletePod) for each in actions)  # its log is what the user needs


@pytest.mark.parametrize("end", [NEVER_JOINED, REFUSED])
def test_pods_that_never_join_end_the_job_after_its_restarts(end: dict[str, Any]) -> None:
    limited = job(failure={"maxRestarts": 2})
    assert not cancelled(decide(limited, pod(1, **end), pod(2, **end)))
    assert "3 pods failed" in cancelled(decide(limited, pod(1, **end), pod(2, **end), pod(3, **end)))


@pytest.mark.parametrize("end", [{"joined": True}, {"deleting_at": NOW + 9}, {"disrupted": "EvictionByEvictionAPI"}])
def test_a_pod_that_left_or_was_taken_away_does_not_count(end: dict[str, Any]) -> None:
    assert written(decide(job(), pod(1, **NEVER_JOINED, **end)))["restarts"]["counted"] == 0


def test_a_fatal_exit_code_ends_the_job_also_if_the_pod_was_counted_before() -> None:
    before = {"restarts": {"counted": 1, "disruptions": 0, "recent": [NOW - 9], "pods": ["digits-w1"]}}
    actions = decide(job(before, failure={"fatalExitCodes": [9]}), pod(1, exit_code=9))
    assert cancelled(actions) == "digits-w1 ended with the fatal exit code 9"
    assert not any(isinstance(each, a.CreatePod) for each in actions)


def test_a_fatal_exit_code_of_a_pod_that_was_taken_away_ends_nothing() -> None:
    taken = pod(1, exit_code=9, disrupted="EvictionByEvictionAPI")
    assert not cancelled(decide(job(failure={"fatalExitCodes": [9]}), taken))


def test_too_many_failures_end_the_job_also_if_they_were_counted_before() -> None:
    before = {"restarts": {"counted": 2, "disruptions": 0, "recent": [NOW - 9] * 2, "pods": ["digits-w1", "digits-w2"]}}
    limited = job(before, failure={"maxRestarts": 1})
    assert cancelled(decide(limited, pod(2, exit_code=1))).endswith("the last is digits-w2, exit code 1")
    assert cancelled(decide(limited)) == "2 pods failed within 3600 s"


def test_a_job_that_is_stopping_gets_no_pods_and_no_second_end() -> None:
    stopping = replace(VIEW, state="stopping")
    actions = decide(job(failure={"maxRestarts": 0}), pod(1, exit_code=3), view=stopping)
    assert [each for each in actions if not isinstance(each, a.WriteStatus | a.PublishEvent)] == []
    assert "restarts" not in written(actions)


# ------------------------------------------------------------------------------------------------- the first pass


def test_a_refusal_before_the_coordinator_s_job_is_made_is_told() -> None:
    new = replace(job(), status={})
    actions = decide(new, view=Absent("store"), refusal="exceeded quota: claims")
    assert isinstance(actions[0], a.WriteStatus)
    assert condition(written(actions)) == "False: exceeded quota: claims"
    assert isinstance(actions[-1], a.CreateJob)  # it is tried again


def test_the_coordinator_s_job_is_announced_in_the_status_before_it_is_made() -> None:
    actions = decide(replace(job(), status={}), view=Absent("store"))
    assert isinstance(actions[0], a.WriteStatus)
    assert written(actions)["coordinatorJob"] == {"store": "store"}
    assert isinstance(actions[-1], a.CreateJob)


@pytest.mark.parametrize("state", ["finished", "running", "waiting"])
def test_a_job_of_that_name_that_the_coordinator_had_before_is_left_alone_and_told(state: str) -> None:
    leftover = replace(VIEW, state=state, step=70)
    actions = decide(replace(job(), status={}), view=leftover)
    status = written(actions)
    assert (status["state"], "coordinatorJob" in status, "progress" in status) == ("Starting", False, False)
    assert "pliant jobs delete research.digits" in condition(status, "CoordinatorReady")
    assert all(isinstance(each, a.WriteStatus | a.PublishEvent) for each in actions)
    deleted = replace(job(), status=status, deleting=True)
    assert decide(deleted, view=leftover) == (a.RemoveFinalizer(),)


def test_a_job_that_was_announced_and_made_is_its_own_also_if_it_is_deleted_at_once() -> None:
    announced = replace(job(), status={"coordinatorJob": {"store": "store"}})
    assert written(decide(announced))["coordinatorJob"] == {"store": "store", "createdAt": 5.0}
    [cancel] = decide(replace(announced, deleting=True))
    assert isinstance(cancel, a.CancelJob)
    ended = replace(VIEW, state="cancelled")
    assert decide(replace(announced, deleting=True), view=ended) == (a.ForgetJob(), a.RemoveFinalizer())


def test_an_announcement_to_a_store_that_was_replaced_is_made_again() -> None:
    announced = replace(job(), status={"coordinatorJob": {"store": "earlier"}})
    assert written(decide(announced, view=Absent("store")))["coordinatorJob"] == {"store": "store"}
    assert decide(replace(announced, deleting=True)) == (a.RemoveFinalizer(),)  # that job is another one's


def test_each_of_many_lost_pods_counts_once() -> None:
    lost = [pod(index, "Running", node="a", node_lost=True, lost_since=NOW, joined=True) for index in range(1, 121)]
    first = written(decide(job(), *lost))["restarts"]
    assert first["disruptions"] == 120
    assert written(decide(job({"restarts": first}), *lost))["restarts"] == first
    assert len(written(decide(job({"restarts": first})))["restarts"]["pods"]) == 50  # all are gone


def test_changed_settings_never_start_a_job_again_that_ended_meanwhile() -> None:
    [change] = [each for each in decide(job(failure={"maxRestarts": 9})) if isinstance(each, a.CreateJob)]
    assert change.only_settings
    [first] = [
        each
        for each in decide(job({"coordinatorJob": {"store": "s"}}), view=Absent("s"))
        if isinstance(each, a.CreateJob)
    ]
    assert not first.only_settings


# ---------------------------------------------------------------------------------------------- parameter servers

PS: dict[str, Any] = {"spec": {"containers": [{"name": "ps", "image": "trainer:1"}]}}


def with_servers(count: int, **spec: Any) -> ElasticJob:
    return job(strategy="ParameterServer", mode="Tasks", parameterServers={"count": count, "template": PS}, **spec)


def test_servers_leave_one_at_a_time_and_only_while_every_row_has_its_copies() -> None:
    of = with_servers(1)
    [role] = [each for each in of.spec.roles if each.role == "ps"]
    servers = [Pod(f"digits-ps{n}", f"u{n}", 3, "ps", n, "base", role.hash, NOW, "Running", True) for n in (1, 2, 3)]
    starting = replace(servers[2], index=4, name="digits-ps4", uid="u4", phase="Pending", joined=False)
    agents = {each.name: AgentView(1, 1, holds=False, draining=False, ready=1, capacity=0) for each in servers}

    def leaving(*, whole: bool) -> tuple[list[str], list[str]]:
        view = replace(VIEW, agents=agents, spec=job_spec(of.spec), tables_whole=whole)
        actions = decide(of, *servers, starting, view=view)
        deleted = [each.pod for each in actions if isinstance(each, a.DeletePod)]
        return [each.pod for each in actions if isinstance(each, a.DrainPod)], deleted

    assert leaving(whole=True) == (["digits-ps3"], ["digits-ps4"])
    assert leaving(whole=False) == ([], ["digits-ps4"])


def test_servers_save_only_to_a_claim_that_all_of_them_share() -> None:
    kept = {"claimName": "shared", "everySeconds": 30}
    assert job_spec(with_servers(2, checkpoints=kept).spec).checkpoints.seconds == 30.0
    assert job_spec(with_servers(2).spec).checkpoints.seconds == 0.0
    assert job_spec(elastic_job().spec).checkpoints.seconds > 0.0, "workers hold the state themselves"

"""The operator's decisions through simulated faults: consent before deletion, one pod for each place, convergence."""

from collections.abc import Callable

import pytest

from pliant.kube import actions as a
from pliant.kube.model import Unknown
from property.kube.simulated import DEAD_NODE, Cluster, run_schedule

KEPT = (1, 5, 21, 42, 53, 2328, 3894, 12606, 16071, 19425)  # each found a bug once
KEPT_OF_A_QUEUE = (4724, 20494)  # an old pod whose worker does not run leaves for a new pod that is ready


@pytest.mark.parametrize("seed", [*KEPT, *range(100, 140)])
def test_promises_hold_through_random_faults(seed: int) -> None:
    run_schedule(seed)


@pytest.mark.parametrize("seed", [*KEPT_OF_A_QUEUE, *range(200, 240)])
def test_promises_hold_while_the_grant_of_a_job_in_a_queue_changes(seed: int) -> None:
    run_schedule(seed, queue=True)


@pytest.mark.long
@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize("first", range(1000, 21000, 1000))
def test_promises_hold_through_thousands_of_schedules(first: int, queue: bool) -> None:
    for seed in range(first, first + 1000):
        run_schedule(seed, queue=queue)


def test_a_job_in_a_queue_has_the_pods_of_its_grant() -> None:
    cluster = Cluster(1, spec={"queue": "batch", "workers": {"min": 2, "max": 6, "target": 4}}, granted=0)
    cluster.settle(10)
    assert (cluster.pods, cluster.job is not None) == ({}, True)
    assert cluster.status["workers"]["granted"] == 0
    for granted, pods in ((1, 3), (6, 4), (2, 4)):
        cluster.granted = granted
        cluster.settle(30)
        assert len([each for each in cluster.pods.values() if not each.pod.ended]) == pods


def running(target: int = 3) -> Cluster:
    cluster = Cluster(1)
    cluster.edit(target=target)
    cluster.settle(20)
    return cluster


def grow(cluster: Cluster) -> None:
    cluster.edit(target=6)


def shrink(cluster: Cluster) -> None:
    cluster.edit(target=1)


def suspend(cluster: Cluster) -> None:
    cluster.suspend(True)


def delete(cluster: Cluster) -> None:
    cluster.delete_object()


def replace_template(cluster: Cluster) -> None:
    cluster.change_image("b")


@pytest.mark.parametrize("change", [grow, shrink, suspend, delete, replace_template])
def test_an_operator_killed_at_any_call_of_a_change_is_taken_over(change: Callable[[Cluster], None]) -> None:
    undisturbed = running()
    change(undisturbed)
    before = undisturbed.calls
    for _ in range(40):
        undisturbed.operate()
        undisturbed.advance(15.0)
    calls = undisturbed.calls - before
    assert calls >= 3
    for killed_at in range(calls):
        cluster = running()
        change(cluster)
        left = killed_at
        while left > 0 and (made := cluster.operate(stop_after=left)):
            left -= made
            cluster.advance(15.0)
        cluster.settle(40)


def test_a_shrink_asks_first_and_deletes_after_the_agent_has_left() -> None:
    cluster = running(4)
    cluster.edit(target=2)
    cluster.log.clear()
    for _ in range(20):
        cluster.operate()
        cluster.advance(5.0)
    moves = [line.split()[1:] for line in cluster.log if "DrainPod" in line or "DeletePod" in line]
    assert [move for move in moves if move[0] == "DrainPod"] == [["DrainPod", "digits-w4"], ["DrainPod", "digits-w3"]]
    for name in ("digits-w3", "digits-w4"):
        assert moves.index(["DrainPod", name]) < moves.index(["DeletePod", name])


def test_an_unreachable_coordinator_means_no_creation_and_no_deletion() -> None:
    cluster = running(3)
    cluster.coordinator_away = True
    cluster.edit(target=6)
    cluster.crash_pod("digits-w1", 137)
    for _ in range(5):
        cluster.advance(20.0)
        seen = cluster.observe()
        assert isinstance(seen.view, Unknown)
        assert all(isinstance(each, a.WriteStatus | a.PublishEvent) for each in cluster.decide(seen))
        cluster.operate()
    reasons = {each["type"]: each["reason"] for each in cluster.status["conditions"]}
    assert reasons["CoordinatorReady"] == "Unreachable"
    cluster.settle()


def test_a_list_that_is_older_than_the_object_leads_to_nothing() -> None:
    cluster = running(3)
    cluster.edit(target=6)
    seen = cluster.observe()
    old = type(seen)(seen.job, (), seen.job.revision - 1, seen.view, seen.now)
    assert cluster.decide(old) == ()


def test_a_wrong_image_leaves_running_workers_alone() -> None:
    cluster = running(3)
    before = set(cluster.agents)
    cluster.change_image("bad")
    for _ in range(20):
        cluster.operate()
        cluster.advance(15.0)
    assert set(cluster.agents) == before
    cluster.change_image("b")
    cluster.settle()
    assert not before & set(cluster.agents)


def test_a_lost_node_is_replaced_before_its_pods_are_given_up() -> None:
    cluster = running(3)
    cluster.lose_node("node-0")
    cluster.lose_node("node-1")
    for _ in range(40):
        cluster.advance(10.0)
        cluster.operate()
    live = [each.pod for each in cluster.pods.values() if each.pod.name in cluster.agents]
    assert len(live) == 3
    assert {pod.node for pod in live} == {"node-2"}
    assert all(each.pod.node == "node-2" for each in cluster.pods.values())  # the others were force-deleted


def test_suspension_lets_all_leave_and_resumes_under_new_names() -> None:
    cluster = running(3)
    before = set(cluster.pods)
    cluster.suspend(True)
    cluster.settle()
    assert cluster.status["state"] == "Suspended"
    assert not cluster.pods
    cluster.suspend(False)
    cluster.settle()
    assert not before & set(cluster.pods)
    assert len(cluster.pods) == 3


def test_a_finished_job_creates_nothing_again() -> None:
    cluster = running(3)
    cluster._end("finished")
    cluster.settle()
    cluster.pods.clear()
    cluster.settle(5)
    assert not cluster.pods
    assert cluster.status["state"] == "Finished"


def test_a_pod_on_a_lost_node_is_given_up_after_the_end_of_its_job() -> None:
    cluster = running(3)
    cluster.lose_node(DEAD_NODE)
    cluster._end("finished")
    cluster.settle()
    assert all(each.pod.ended for each in cluster.pods.values())


def test_a_pod_of_a_lost_node_is_replaced_while_it_is_still_there() -> None:
    cluster = running(3)
    before = set(cluster.pods)
    lost = {each.pod.name for each in cluster.pods.values() if each.pod.node == "node-1"}
    assert lost
    cluster.lose_node("node-1")
    for _ in range(200):
        cluster.advance(2.0)
        cluster.operate()
        if set(cluster.pods) - before:
            break
    assert set(cluster.pods) - before
    assert lost <= set(cluster.pods)

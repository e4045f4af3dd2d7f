"""Disruptions by the cluster itself: evictions, taints, quotas, full nodes, cut networks and changed templates."""

from typing import Any

import pytest

from kube.acceptance.installed import Installed, elastic_job, node_with_workers, wait_until
from kube.cluster.images import PLIANT


def test_a_drained_node_gives_its_workers_away_and_the_budget_holds_the_minimum(
    installed: Installed, expected: str
) -> None:
    with elastic_job(installed, "drained", 2, 3, 2) as job:
        job.wait_active(2)
        node, here = node_with_workers(installed, job)
        drain = ("drain", node.name, "--ignore-daemonsets", "--delete-emptydir-data", "--force")
        try:
            assert "disruption budget" in installed.plane.kubectl(*drain, "--timeout=10s", code=1)
            assert set(here) <= set(job.running()), "an eviction below the minimum passed"
            job.scale(3)
            wait_until(lambda: len(set(job.running()) - set(here)) >= 2, "workers elsewhere")
            job.wait_active(3)
            survivors = set(job.running()) - set(here)
            installed.plane.kubectl(*drain, "--timeout=280s")
            assert survivors <= set(job.running())
        finally:
            installed.plane.kubectl("uncordon", node.name)
        job.wait_active(3)
        job.judge(expected)


def test_a_spot_taint_starts_the_drain_before_any_deletion(installed: Installed, expected: str) -> None:
    with elastic_job(installed, "spot", 1, 2, 2) as job:
        job.wait_active(2)
        node, here = node_with_workers(installed, job)
        survivors = set(job.running()) - set(here)
        taint = "pliant.dev/leaving"
        installed.plane.kubectl("taint", "node", node.name, f"{taint}=true:NoSchedule")
        try:
            wait_until(lambda: job.active() == 2 and not set(here) & set(job.running()), "workers elsewhere")
            assert survivors <= set(job.running())
            assert not job.gone(), "a worker was lost instead of asked"
        finally:
            installed.plane.kubectl("taint", "node", node.name, f"{taint}-")
        job.judge(expected)


def test_a_quota_holds_growth_with_its_words_and_costs_no_worker(installed: Installed, expected: str) -> None:
    with elastic_job(installed, "quota", 1, 3, 2) as job:
        job.wait_active(2)
        pods = set(job.running())
        job.kubectl("create", "quota", "small", "--hard=pods=1")
        job.scale(3)
        wait_until(lambda: job.condition("PodsHealthy")[1] == "QuotaExceeded", "the reason")
        assert "exceeded quota" in job.status()["reason"]
        assert set(job.running()) == pods
        job.kubectl("delete", "quota", "small")
        job.wait_active(3)
        assert pods <= set(job.running())
        job.judge(expected)


def test_a_worker_that_fits_nowhere_is_named_and_the_job_ends_without_it(installed: Installed, expected: str) -> None:
    with elastic_job(installed, "full", 1, 2, 1, ttlSecondsAfterFinished=600) as job:
        job.wait_active(1)
        pods = set(job.running())
        for node in installed.cluster.nodes:
            installed.plane.kubectl("cordon", node.name)
        try:
            job.scale(2)
            wait_until(lambda: job.condition("PodsHealthy")[1] == "Unschedulable", "the reason")
            assert "unschedulable" in job.status()["reason"]
            assert pods <= set(job.running())
            job.judge(expected)
        finally:
            for node in installed.cluster.nodes:
                installed.plane.kubectl("uncordon", node.name)
        refused = job.scale(1, code=1)
        assert "workers" in refused, refused
        wait_until(lambda: not any(_is_alive(pod) for pod in job.pods().values()), "no pod that is left to start")
        job.kubectl("delete", "pod", "--all")
        job.patch({"ttlSecondsAfterFinished": 1})
        wait_until(lambda: job.kubectl("get", "elasticjobs", "-o", "name") == "", "the deletion of the object")
        assert job.pods() == {}, "a pod of a finished job was made again"


def test_a_worker_out_of_memory_is_named_with_its_limit_and_the_others_go_on(
    installed: Installed, expected: str
) -> None:
    with elastic_job(installed, "memory", 1, 2, 2, resources={"limits": {"memory": "900Mi"}}) as job:
        job.wait_active(2)
        victim, survivor = sorted(job.running())
        job.kubectl("exec", victim, "--", "sh", "-c", ": > /tmp/eat")
        wait_until(job.gone, "the kernel to kill the worker")
        # Under control groups of version 2 the whole container ends, and the pod has the reason.
        reasons = f"{job.gone()} {job.condition('PodsHealthy')} {job.object()['status']}"
        assert "out of memory (limit 900" in reasons, reasons
        job.wait_active(2)
        assert survivor in job.running()
        job.judge(expected, lost=[victim])


def _is_alive(pod: dict[str, object]) -> bool:
    status = pod["status"]
    assert isinstance(status, dict)
    return status.get("phase") in ("Pending", "Running")


@pytest.mark.parametrize("way", ["both ways", "one way"])
def test_a_node_that_is_cut_off_is_replaced_and_its_worker_is_no_member_again(
    installed: Installed, expected: str, way: str
) -> None:
    with elastic_job(installed, f"cut-{way.split()[0]}", 1, 2, 2, failure={"unreachableSeconds": 15}) as job:
        job.wait_active(2)
        node, lost = node_with_workers(installed, job)
        survivors = set(job.running()) - set(lost)
        cut, heal = (node.link.cut, node.link.heal) if way == "both ways" else (node.link.mute, node.link.unmute)
        cut()
        try:
            wait_until(lambda: not set(lost) & set(job.pods()), "the forced deletion")
            job.wait_active(2)
            assert survivors <= set(job.running())
        finally:
            heal()
        node.wait_ready()
        job.judge(expected, lost=lost)


def test_an_urgent_pod_preempts_a_pod_beyond_the_minimum_and_its_worker_leaves(
    installed: Installed, expected: str
) -> None:
    plane, seats = installed.plane, installed.cluster.nodes[1:]
    for node in seats:
        _offer_seat(installed, node.name)
    classes: dict[str, Any] = {"priorityClassName": "pliant-base", "surplusPriorityClassName": "pliant-surplus"}
    with elastic_job(installed, "preempted", 1, 2, 2, resources={"limits": {SEAT: "1"}}, **classes) as job:
        job.wait_active(2)
        base, surplus = sorted(job.running())
        plane.apply(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": "urgent"},
                "value": 100_000,
            },
            _urgent_pod(),
        )
        try:
            wait_until(lambda: plane.get("pod", "urgent")["status"]["phase"] == "Running", "the urgent pod")
            wait_until(lambda: surplus not in job.pods() and job.trains(1), "the base alone")
            assert base in job.running(), "a pod up to the minimum was preempted"
            assert not job.gone(), "a worker was lost instead of asked"
            wait_until(lambda: job.condition("PodsHealthy")[1] == "Unschedulable", "the reason")
        finally:
            plane.kubectl("delete", "pod", "urgent", "--wait=false")
            plane.kubectl("delete", "priorityclass", "urgent")
        job.wait_active(2)
        assert base in job.running()
        job.judge(expected)


SEAT = "example.com/seat"


def _offer_seat(installed: Installed, node: str) -> None:
    """Let a node advertise one unit of a resource of its own."""
    path, patch = f"/api/v1/nodes/{node}", {"status": {"capacity": {SEAT: "1"}}}
    headers = {"content-type": "application/merge-patch+json"}
    installed.plane.http().patch(f"{path}/status", json=patch, headers=headers).raise_for_status()
    wait_until(lambda: SEAT in installed.plane.get("node", node)["status"]["allocatable"], f"the seat of {node}")


def _urgent_pod() -> dict[str, object]:
    command = ["python", "-c", "import threading; threading.Event().wait()"]
    container = {"name": "main", "image": PLIANT, "imagePullPolicy": "Never", "command": command}
    spec = {
        "containers": [{**container, "resources": {"limits": {SEAT: "1"}}}],
        "priorityClassName": "urgent",
        "terminationGracePeriodSeconds": 1,
    }
    meta = {"name": "urgent", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def test_a_changed_template_replaces_all_workers_and_never_too_many(installed: Installed, expected: str) -> None:
    with elastic_job(installed, "rolled", 2, 3, 2) as job:
        job.wait_active(2)
        before, worlds = set(job.running()), len(job.world_sizes())
        template = job.object()["spec"]["workers"]["template"]
        template["spec"]["containers"][0]["env"].append({"name": "ROUND", "value": "2"})
        job.patch({"workers": {"template": template}})
        wait_until(lambda: job.active() == 2 and not before & set(job.pods()), "new pods")
        sizes = job.world_sizes()[worlds:]
        assert len(sizes) >= 2, "pods are replaced one after another"
        assert min(sizes) >= 2, "the job went below its minimum"
        job.judge(expected)

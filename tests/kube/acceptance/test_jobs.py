"""Elastic jobs on the real cluster: every survivor stays the same process, the audit is green, the bits are equal."""

import json
import signal

from e2e.running import wait_for
from kube.acceptance.installed import PATIENCE_S, SYSTEM, Installed, Job, elastic_job
from kube.cluster.node import Node


def test_a_job_grows_shrinks_loses_a_pod_and_finishes_with_the_same_bits(installed: Installed, expected: str) -> None:
    with elastic_job(installed, "resized", 1, 4, 2) as job:
        job.wait_active(2)
        first = set(job.running())
        assert "must lie between min and max" in job.scale(5, code=1)

        job.scale(3)
        job.wait_active(3)
        assert first <= set(job.running()), "a survivor's pod was replaced by the growth"

        job.scale(2)
        job.wait_active(2)
        wait_for(lambda: len(job.pods()) == 2, "the third pod's deletion", PATIENCE_S)
        assert set(job.running()) == first, "the youngest pod goes first"

        victim = sorted(first)[0]
        job.kubectl("delete", "pod", victim, "--wait=false")
        wait_for(lambda: victim not in job.pods() and len(job.running()) == 2, "the replacement", PATIENCE_S)
        job.wait_active(2)
        assert first - {victim} <= set(job.running())

        job.judge(expected)


def test_a_pod_killed_without_grace_costs_no_sample_and_no_bit(installed: Installed, expected: str) -> None:
    with elastic_job(installed, "killed", 1, 2, 2) as job:
        job.wait_active(2)
        victim, survivor = sorted(job.running())
        job.kubectl("delete", "pod", victim, "--grace-period=0", "--force")
        wait_for(lambda: set(job.running()) > {survivor}, "the replacement", PATIENCE_S)
        job.wait_active(2)
        assert survivor in job.running()
        job.judge(expected, lost=[victim])


def test_a_job_outlives_its_coordinator_and_operator(installed: Installed, expected: str) -> None:
    with elastic_job(installed, "away", 1, 3, 2) as job:
        job.wait_active(2)
        pods = job.running()
        begin = job.step()
        installed.plane.kubectl("-n", SYSTEM, "delete", "pod", installed.coordinator_pod(), "--wait=false")
        installed.wait_ready()
        wait_for(lambda: job.step() > begin, "steps after the coordinator's return", PATIENCE_S)
        assert job.running() == pods, "no pod is created or deleted while the coordinator is away"
        job.scale(3)
        job.wait_active(3)
        assert pods.items() <= job.running().items()
        job.judge(expected)


def test_a_suspended_job_has_no_pods_and_resumes(installed: Installed, expected: str) -> None:
    with elastic_job(installed, "paused", 1, 2, 2, suspend=True) as job:
        job.wait_state("Suspended")
        assert job.pods() == {}
        job.kubectl("patch", "elasticjob", job.name, "--type=merge", "-p", json.dumps({"spec": {"suspend": False}}))
        job.wait_active(2)
        job.judge(expected)


def test_a_wrong_image_is_named_in_the_status_and_costs_no_worker(installed: Installed, expected: str) -> None:
    with elastic_job(installed, "image", 1, 2, 1) as job:
        job.wait_active(1)
        pods = set(job.running())
        path = "/spec/workers/template/spec/containers/0/image"
        good = job.object()["spec"]["workers"]["template"]["spec"]["containers"][0]["image"]
        for image, healthy in (("pliant-missing:1", "False"), (good, "True")):
            patch = json.dumps([{"op": "replace", "path": path, "value": image}])
            job.kubectl("patch", "elasticjob", job.name, "--type=json", "-p", patch)
            wait_for(lambda healthy=healthy: condition(job.status(), "PodsHealthy") == healthy, image, PATIENCE_S)  # type: ignore[misc]
            assert pods <= set(job.running())
        job.judge(expected)


def condition(status: dict[str, object], kind: str) -> str:
    found = status.get("conditions", [])
    assert isinstance(found, list)
    return next((str(each["status"]) for each in found if each["type"] == kind), "")


def node_with_workers(installed: Installed, job: Job) -> tuple[Node, list[str]]:
    """A node that runs workers of a job and not the coordinator, and the pods of these workers."""
    homes = {name: node for name, node in job.running().items() if node != installed.cluster.nodes[0].name}
    assert homes, "all workers are on the coordinator's node"
    chosen = min(homes.values())
    return installed.cluster.node(chosen), [name for name, node in homes.items() if node == chosen]


def test_a_node_without_power_is_replaced_and_its_worker_fenced(installed: Installed, expected: str) -> None:
    spread = {"workers": {}, "failure": {"unreachableSeconds": 15}}
    with elastic_job(installed, "power", 1, 3, 3, **spread) as job:
        job.wait_active(3)
        pods = job.running()
        node, lost = node_with_workers(installed, job)
        node.power_off()
        try:
            rest = {name for name, where in pods.items() if where != node.name}
            wait_for(lambda: not set(lost) & set(job.running()), "the lost pods' replacement", PATIENCE_S)
            job.wait_active(3)
            assert rest <= set(job.running()), "a survivor's pod was replaced"
            wait_for(lambda: not set(lost) & set(job.pods()), "the forced deletion", PATIENCE_S)
        finally:
            node.start()
        node.wait_ready()
        job.judge(expected, lost=lost)


def test_the_kubelet_of_a_node_dies_and_its_workers_train_on(installed: Installed, expected: str) -> None:
    with elastic_job(installed, "kubelet", 1, 2, 2) as job:
        job.wait_active(2)
        node, lost = node_with_workers(installed, job)
        begin = job.step()
        node.kill_kubelet()
        try:
            wait_for(lambda: job.step() >= begin + 20, "steps without a kubelet", PATIENCE_S)
            assert job.gone() == [], "a worker was lost with the kubelet"
        finally:
            node.power_off()
            node.start()
            node.wait_ready()
        job.wait_active(2)
        job.judge(expected, lost=lost)


def test_the_api_server_is_away_and_training_goes_on(installed: Installed, expected: str) -> None:
    with elastic_job(installed, "api", 1, 2, 2) as job:
        job.wait_active(2)
        pods = job.running()
        server = installed.plane.api_server
        server.signal(signal.SIGSTOP)
        try:
            from threading import Event

            Event().wait(20.0)  # longer than every timeout of the operator's calls
        finally:
            server.signal(signal.SIGCONT)
        wait_for(installed.plane.is_ready, "the API server", PATIENCE_S)
        job.wait_steps(3)
        assert job.running() == pods
        job.judge(expected)

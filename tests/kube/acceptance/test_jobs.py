"""Elastic jobs on the real cluster: every survivor stays the same process, the audit is green, the bits are equal."""

import json
import signal
from threading import Event
from time import time

from kube.acceptance.installed import SYSTEM, Installed, elastic_job, node_with_workers, wait_until


def test_a_job_grows_shrinks_loses_a_pod_and_finishes_with_the_same_bits(installed: Installed, expected: str) -> None:
    with elastic_job(installed, "resized", 1, 4, 2) as job:
        job.wait_active(2)
        first = set(job.running())
        assert "must lie between min and max" in job.scale(5, code=1)

        asked_at = time()
        job.scale(3)
        job.wait_active(3)
        print(f"  {job.describe_growth(asked_at)}", flush=True)
        assert first <= set(job.running()), "a survivor's pod was replaced by the growth"

        job.scale(2)
        job.wait_active(2)
        wait_until(lambda: len(job.pods()) == 2, "the third pod's deletion")
        assert set(job.running()) == first, "the youngest pod goes first"

        victim = sorted(first)[0]
        job.kubectl("delete", "pod", victim, "--wait=false")
        wait_until(lambda: victim not in job.pods() and len(job.running()) == 2, "the replacement")
        job.wait_active(2)
        assert first - {victim} <= set(job.running())

        job.judge(expected)


def test_a_pod_killed_without_grace_costs_no_sample_and_no_bit(installed: Installed, expected: str) -> None:
    with elastic_job(installed, "killed", 1, 2, 2) as job:
        job.wait_active(2)
        victim, survivor = sorted(job.running())
        job.kubectl("delete", "pod", victim, "--grace-period=0", "--force")
        wait_until(lambda: set(job.running()) > {survivor}, "the replacement")
        job.wait_active(2)
        assert survivor in job.running()
        job.judge(expected, lost=[victim])


def test_a_job_outlives_its_coordinator_and_operator(installed: Installed, expected: str) -> None:
    with elastic_job(installed, "away", 1, 3, 2) as job:
        job.wait_active(2)
        pods = job.running()
        begin = job.step()
        installed.plane.kubectl("-n", SYSTEM, "delete", "pod", *installed.coordinator_pods(), "--wait=false")
        installed.wait_ready()
        wait_until(lambda: job.step() > begin, "steps after the coordinator's return")
        assert job.running() == pods, "no pod is created or deleted while the coordinator is away"
        job.scale(3)
        job.wait_active(3)
        assert pods.items() <= job.running().items()
        job.judge(expected)


def test_a_suspended_job_has_no_pods_and_resumes(installed: Installed, expected: str) -> None:
    with elastic_job(installed, "paused", 1, 2, 2, suspend=True) as job:
        job.wait_state("Suspended")
        assert job.pods() == {}
        job.patch({"suspend": False})
        job.wait_active(2)
        job.judge(expected)


def test_a_job_that_is_suspended_while_it_runs_goes_on_from_its_checkpoint(installed: Installed, expected: str) -> None:
    claim = {"claimName": "shared"}
    with elastic_job(installed, "held", 1, 2, 2, prepare=_make_shared_claim, checkpoints=claim) as job:
        job.wait_active(2)
        before = set(job.running())
        job.patch({"suspend": True})
        wait_until(lambda: job.status().get("state") == "Suspended" and not job.pods(), "the last pod's deletion")
        saved = job.status()["checkpoint"]["step"]
        assert saved == job.step() > 0, "the job was suspended without its state"
        assert job.condition("Suspended")[0] == "True"
        job.patch({"suspend": False})
        job.wait_active(2)
        assert not before & set(job.running())
        job.judge(expected)


def _make_shared_claim(installed: Installed, namespace: str) -> None:
    """Make a volume that all nodes can mount, in a folder that they all see, and its claim."""
    place = installed.folder / "shared"
    place.mkdir()
    place.chmod(0o777)  # a volume of this kind takes no group
    size = {"storage": "1Gi"}
    shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    claim = {"namespace": namespace, "name": "shared"}
    volume = {**shared, "capacity": size, "hostPath": {"path": str(place)}, "claimRef": claim}
    installed.plane.apply(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "shared"}, "spec": volume},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": claim,
            "spec": {**shared, "volumeName": "shared", "resources": {"requests": size}},
        },
    )
    bound = "jsonpath={.status.phase}=Bound"
    installed.plane.kubectl("-n", namespace, "wait", "--for", bound, "pvc/shared", "--timeout=120s")


def test_a_wrong_image_is_named_in_the_status_and_costs_no_worker(installed: Installed, expected: str) -> None:
    with elastic_job(installed, "image", 1, 2, 1) as job:
        job.wait_active(1)
        pods = set(job.running())
        path = "/spec/workers/template/spec/containers/0/image"
        good = job.object()["spec"]["workers"]["template"]["spec"]["containers"][0]["image"]
        for image, healthy in (("pliant-missing:1", "False"), (good, "True")):
            patch = json.dumps([{"op": "replace", "path": path, "value": image}])
            job.kubectl("patch", "elasticjob", job.name, "--type=json", "-p", patch)
            wait_until(lambda healthy=healthy: job.condition("PodsHealthy")[0] == healthy, image)  # type: ignore[misc]
            assert pods <= set(job.running())
        job.judge(expected)


def test_a_node_without_power_is_replaced_and_its_worker_fenced(installed: Installed, expected: str) -> None:
    with elastic_job(installed, "power", 1, 3, 3, failure={"unreachableSeconds": 15}) as job:
        job.wait_active(3)
        pods = job.running()
        node, lost = node_with_workers(installed, job)
        node.power_off()
        try:
            rest = {name for name, where in pods.items() if where != node.name}
            wait_until(lambda: not set(lost) & set(job.running()), "the lost pods' replacement")
            job.wait_active(3)
            assert rest <= set(job.running()), "a survivor's pod was replaced"
            wait_until(lambda: not set(lost) & set(job.pods()), "the forced deletion")
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
            wait_until(lambda: job.step() >= begin + 20, "steps without a kubelet")
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
            Event().wait(20.0)  # longer than every timeout of the operator's calls
        finally:
            server.signal(signal.SIGCONT)
        wait_until(installed.plane.is_ready, "the API server")
        job.wait_steps(3)
        assert job.running() == pods
        job.judge(expected)

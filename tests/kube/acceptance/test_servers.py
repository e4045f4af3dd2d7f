"""Task queues with Pliant's own parameter servers: lost servers and workers, a drained node, ElasticDL's tutorial."""

import json
import math
import re
from pathlib import Path

from kube.acceptance.installed import Installed, Job, elastic_job, wait_until
from kube.cluster.images import TRAINER

SCRIPT = Path(__file__).with_name("counting.py")
RECORDS = 2000


def pods_of(job: Job, role: str) -> set[str]:
    return {name for name, pod in job.pods().items() if pod["metadata"]["labels"]["pliant.dev/role"] == role} & set(
        job.running()
    )


def has_two_copies(job: Job, servers: set[str]) -> bool:
    """Return whether every bucket is on two of these servers, and none moves."""
    layouts = [event["layout"] for event in job.events() if event["type"] == "LayoutChanged"]
    if not layouts:
        return False
    last = layouts[-1]
    homes = {pod for pod in servers for each in last["servers"] if each["id"].startswith(f"{pod}-")}
    is_whole = homes == servers and len(last["servers"]) == len(servers)
    return is_whole and all(at < 0 for at in last["incoming"]) and all(at >= 0 for at in last["backup"])


def wait_complete(job: Job, workers: int, servers: int) -> None:
    """Wait until the workers and servers are there, and every row has two copies."""
    wait_until(lambda: job.active() == workers == len(pods_of(job, "worker")), f"{workers} workers of {job.key}")
    wait_until(
        lambda: len(pods_of(job, "ps")) == servers and has_two_copies(job, pods_of(job, "ps")),
        f"two copies on {servers} servers of {job.key}",
    )


def finish(job: Job) -> str:
    """Let the workers go on to the end, and return what the coordinator reports about the evaluation."""

    def has_ended() -> bool:
        for name in pods_of(job, "worker"):
            job.kubectl("exec", name, "--", "sh", "-c", ": > /tmp/hurry", code=None)
        return job.status().get("state") in ("Finished", "Failed")

    wait_until(has_ended, f"the end of {job.key}")
    assert job.status()["state"] == "Finished", job.status()
    lines = job.installed.pliant("events", job.key).splitlines()
    return next(line for line in lines if "evaluation 0 is done" in line)


def number(text: str, name: str) -> float:
    [found] = re.findall(rf"\b{name} ([\d.e-]+)", text)
    return float(found)


def audit(job: Job) -> dict[str, float]:
    found: dict[str, float] = json.loads(job.installed.pliant("audit", job.key, "--json"))
    assert found["ok"], found
    return found


def test_no_acknowledged_push_is_lost_with_a_server_a_worker_and_a_drained_node(installed: Installed) -> None:
    with elastic_job(installed, "servers", 1, 2, 2, script=SCRIPT, servers=2) as job:
        wait_complete(job, 2, 2)
        assert job.status()["workers"]["spare"] == 0

        victim = min(pods_of(job, "ps"))
        job.kubectl("delete", "pod", victim, "--grace-period=0", "--force")
        wait_until(lambda: victim not in job.pods(), "the forced deletion")
        wait_complete(job, 2, 2)

        leaving = min(pods_of(job, "ps"))
        node = job.running()[leaving]
        try:
            installed.plane.kubectl(
                "drain",
                node,
                "--ignore-daemonsets",
                "--delete-emptydir-data",
                "--force",
                f"--pod-selector=pliant.dev/job={job.name},pliant.dev/role=ps",
                "--timeout=280s",
            )
            assert leaving not in job.running()
            wait_complete(job, 2, 2)
        finally:
            installed.plane.kubectl("uncordon", node)

        lost = min(pods_of(job, "worker"))
        job.kubectl("delete", "pod", lost, "--grace-period=0", "--force")
        wait_until(lambda: lost not in job.pods(), "the forced deletion")
        wait_complete(job, 2, 2)

        told = finish(job)
        found = audit(job)
        assert (found["records"], found["shards_missing"]) == (RECORDS, 0)
        assert number(told, "missing") == 0, f"an acknowledged push was lost: {told}"
        assert number(told, "repeated") * RECORDS <= found["repeated_max"], told


def test_elasticdl_s_tutorial_goes_on_when_a_worker_is_killed(installed: Installed) -> None:
    namespace = installed.plane.namespace("t-tutorial-ps", **{"pod-security.kubernetes.io/enforce": "restricted"})
    job = Job(installed, namespace, "ads")
    installed.shell(
        f"pliant submit --image {TRAINER} --namespace {namespace} --task ads --workers 1:3 --target 2 --mode tasks "
        "--ps-num 2 --env OMP_NUM_THREADS=1 -- pliant run /app/wide_and_deep.py --records 12000 --records-per-shard 500"
    )
    try:
        wait_complete(job, 2, 2)
        wait_until(lambda: done_shards(job) >= 2, "done shards")
        victim = min(pods_of(job, "worker"))
        job.kubectl("delete", "pod", victim, "--grace-period=0", "--force")
        told = finish(job)
        found = audit(job)
        assert (found["records"], found["shards_missing"]) == (12_000, 0)
        assert number(told, "loss") < math.log(2), f"it did not learn: {told}"
    finally:
        job.kubectl("delete", "elasticjob", "--all", "--timeout=60s", code=None)
        installed.plane.kubectl("delete", "namespace", namespace, "--wait=false")


def done_shards(job: Job) -> int:
    return sum(event["type"] == "ShardDone" for event in job.events())

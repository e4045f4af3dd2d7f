"""Reading pods, nodes and jobs as the operator sees them."""

from typing import Any

import pytest

from pliant.kube.names import JOINED_ANNOTATION
from pliant.kube.observe import lost_nodes, read_job, read_pod, seconds
from unit.kube.objects import job_object, node_object, pod_object


def waiting(reason: str, message: str = "no such image") -> dict[str, Any]:
    return {"containerStatuses": [{"name": "main", "state": {"waiting": {"reason": reason, "message": message}}}]}


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": reason}}
    return {"phase": "Failed", "containerStatuses": [{"name": "main", "state": state}]}


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (waiting("ImagePullBackOff"), ("ImagePull", "ImagePullBackOff: no such image")),
        (waiting("ErrImageNeverPull"), ("ImagePull", "ErrImageNeverPull: no such image")),
        (waiting("CreateContainerConfigError", "root"), ("ContainerConfig", "CreateContainerConfigError: root")),
        (waiting("ContainerCreating"), None),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
                ]
            },
            ("Unschedulable", "0/3 nodes"),
        ),
        ({}, None),
    ],
)
def test_the_reason_why_a_pod_does_not_start_is_found(status: dict[str, Any], problem: tuple[str, str] | None) -> None:
    assert read_pod(pod_object(status), {}, {}).problem == problem


def test_a_pod_out_of_memory_is_told_with_its_limit() -> None:
    assert read_pod(pod_object(ended(137, "OOMKilled")), {}, {}).oom_limit == "2Gi"
    pod = read_pod(pod_object(ended(1)), {}, {})
    assert (pod.exit_code, pod.oom_limit, pod.ended) == (1, None, True)


def test_labels_and_marks_are_read() -> None:
    pod = read_pod(pod_object(annotations={JOINED_ANNOTATION: "true"}), {}, {})
    assert (pod.role, pod.index, pod.tier, pod.joined, pod.revision) == ("worker", 7, "surplus", True, 40)


def test_a_deletion_is_read_with_its_end() -> None:
    item = pod_object(deletionTimestamp="2026-01-01T00:02:00Z", deletionGracePeriodSeconds=30)
    pod = read_pod(item, {}, {})
    assert (pod.deleting_at, pod.deletion_grace_s) == (seconds("2026-01-01T00:02:00Z"), 30)


def test_a_silent_node_is_lost_since_its_condition_changed() -> None:
    nodes = [node_object("a"), node_object("b", "Unknown"), node_object("c", "False")]
    assert lost_nodes(nodes) == {"b": seconds("2026-01-01T00:05:00Z")}


def test_a_pod_knows_that_its_node_is_lost_leaving_or_gone() -> None:
    nodes = {"a": node_object("a"), "s": node_object("s", "True", "aws-node-termination-handler/spot-itn")}
    assert not read_pod(pod_object(node="a"), nodes, {}).node_lost
    assert read_pod(pod_object(node="a"), nodes, {"a": 5.0}).lost_since == 5.0
    assert read_pod(pod_object(node="s"), nodes, {}).node_leaving == "aws-node-termination-handler/spot-itn"
    assert read_pod(pod_object(node="gone"), nodes, {}).node_lost
    assert not read_pod(pod_object(), nodes, {}).node_lost


def test_an_eviction_is_read_from_its_condition() -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    assert read_pod(pod_object({"conditions": [target]}), {}, {}).disrupted == "EvictionByEvictionAPI"
    assert read_pod(pod_object({"conditions": [{**target, "status": "False"}]}), {}, {}).disrupted == ""


def test_a_job_has_the_defaults_of_the_schema_also_without_an_api_server() -> None:
    job = read_job(job_object())
    spec = job.spec
    assert (spec.strategy, spec.grace_s, spec.pending_s, spec.unreachable_s) == ("AllReduce", 60, 600, 60)
    assert (job.key, job.generation, job.deleting, job.ended) == ("research.digits", 3, False, False)


@pytest.mark.parametrize(
    ("workers", "desired", "pods"),
    [
        ({}, 4, 4),
        ({"spares": 1}, 4, 5),
        ({"processesPerPod": 3}, 4, 2),
        ({"sizes": [2, 3, 8]}, 3, 3),
        ({"target": None}, 8, 8),
    ],
)
def test_the_wanted_pods_follow_from_target_sizes_and_spares(workers: dict[str, Any], desired: int, pods: int) -> None:
    spec = read_job(job_object(workers)).spec
    assert (spec.desired, spec.wanted_pods("worker")) == (desired, pods)

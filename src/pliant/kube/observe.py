"""Read API objects and the coordinator's answers into the values that `reconcile` takes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pliant.core.model.view import MemberState
from pliant.kube.model import AgentView, CoordinatorView, ElasticJob, JobView, Pod, read_settings
from pliant.kube.names import (
    BASE,
    INDEX_LABEL,
    JOINED_ANNOTATION,
    ROLE_LABEL,
    SLOTS_LABEL,
    TEMPLATE_ANNOTATION,
    TIER_LABEL,
    WORKER,
)
from pliant.wire.api import JobStatus

Object = Mapping[str, Any]

LEAVING_TAINTS = (
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "cloud.google.com/impending-node-termination",
    "node.cloudprovider.kubernetes.io/shutdown",
    "node.kubernetes.io/out-of-service",
    "karpenter.sh/disrupted",
    "ToBeDeletedByClusterAutoscaler",
    "pliant.dev/leaving",
)
SLOTS_DIGITS = 6
WAITING_REASONS = {
    "ErrImagePull": "ImagePull",
    "ImagePullBackOff": "ImagePull",
    "InvalidImageName": "ImagePull",
    "ErrImageNeverPull": "ImagePull",
    "CreateContainerConfigError": "ContainerConfig",
    "CreateContainerError": "ContainerConfig",
    "RunContainerError": "ContainerConfig",
}


def read_job(item: Object) -> ElasticJob:
    meta = item["metadata"]
    return ElasticJob(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        revision=int(meta["resourceVersion"]),
        generation=meta.get("generation", 1),
        created_at=seconds(meta["creationTimestamp"]),
        deleting="deletionTimestamp" in meta,
        finalizers=tuple(meta.get("finalizers", ())),
        spec=read_settings(item["spec"]),
        status=item.get("status", {}),
    )


def read_pod(item: Object, nodes: Mapping[str, Object], lost_since: Mapping[str, float]) -> Pod:
    """Return a pod. `lost_since` has the nodes that were seen lost, with the time since when."""
    meta, spec, status = item["metadata"], item["spec"], item.get("status", {})
    labels, notes = meta.get("labels", {}), meta.get("annotations", {})
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    node = spec.get("nodeName", "")
    target = conditions.get("DisruptionTarget", {})
    deleting = meta.get("deletionTimestamp")
    exit_code, oom = _exit(spec, status)
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        revision=int(meta["resourceVersion"]),
        role=labels.get(ROLE_LABEL, WORKER),
        index=int(labels.get(INDEX_LABEL, "0")),
        tier=labels.get(TIER_LABEL, BASE),
        hash=notes.get(TEMPLATE_ANNOTATION, ""),
        created_at=seconds(meta["creationTimestamp"]),
        phase=status.get("phase", "Pending"),
        scheduled=bool(node),
        deleting_at=None if deleting is None else seconds(deleting),
        deletion_grace_s=meta.get("deletionGracePeriodSeconds"),
        node=node,
        node_lost=bool(node) and (node not in nodes or node in lost_since),
        node_leaving=leaving_taint(nodes[node]) if node in nodes else "",
        disrupted=target.get("reason", "") if target.get("status") == "True" else "",
        joined=JOINED_ANNOTATION in notes,
        exit_code=exit_code,
        oom_limit=oom,
        problem=_problem(conditions, status),
        lost_since=lost_since.get(node, 0.0) if node else None,
    )


def leaving_taint(node: Object) -> str:
    """Return the taint by which a node is about to go; empty if it stays."""
    taints = {taint["key"] for taint in node.get("spec", {}).get("taints", ())}
    return next((taint for taint in LEAVING_TAINTS if taint in taints), "")


def is_open(node: Object) -> bool:
    """Return whether a node answers, takes new pods, and is to stay."""
    is_closed = node.get("spec", {}).get("unschedulable", False) or leaving_taint(node)
    return _ready_condition(node).get("status") == "True" and not is_closed


def lent_slots(node: Object) -> int:
    """Return the number in a node's label; 0 if it has none, or one that is no number."""
    text = node["metadata"].get("labels", {}).get(SLOTS_LABEL, "")
    return int(text) if text.isdecimal() and len(text) <= SLOTS_DIGITS else 0


def cluster_slots(nodes: Iterable[Object], jobs: Iterable[tuple[ElasticJob, Sequence[Pod], JobView]]) -> int:
    """Return the slots that all nodes lend to the coordinator's pool.

    A node that takes no new pods lends those that are in use: jobs keep the workers there until they leave.
    """
    used = Counter[str]()
    for job, pods, view in jobs:
        if job.spec.queue and isinstance(view, CoordinatorView):
            for pod in pods:
                if pod.name in view.agents and not pod.ended:
                    used[pod.node] += job.spec.workers.processes
    found = 0
    for node in nodes:
        slots = lent_slots(node)
        found += slots if is_open(node) else min(slots, used[node["metadata"]["name"]])
    return found


def _ready_condition(node: Object) -> Object:
    conditions = node.get("status", {}).get("conditions", ())
    return next((each for each in conditions if each["type"] == "Ready"), {})


def lost_nodes(nodes: Iterable[Object]) -> dict[str, float]:
    """Return the nodes whose kubelet does not answer, with the time since when."""
    found = {}
    for node in nodes:
        ready = _ready_condition(node)
        if ready.get("status") == "Unknown" and "lastTransitionTime" in ready:
            found[node["metadata"]["name"]] = seconds(ready["lastTransitionTime"])
    return found


def _exit(spec: Object, status: Object) -> tuple[int | None, str | None]:
    """Return the exit code of the first container, and its memory limit if it was killed at it."""
    first = spec["containers"][0]
    for each in status.get("containerStatuses", ()):
        ended = each.get("state", {}).get("terminated")
        if each["name"] == first["name"] and ended is not None:
            limit = first.get("resources", {}).get("limits", {}).get("memory", "none")
            return ended["exitCode"], str(limit) if ended.get("reason") == "OOMKilled" else None
    return None, None


def _problem(conditions: Mapping[str, Object], status: Object) -> tuple[str, str] | None:
    """Return why a pod does not run, as a stable reason and the words of Kubernetes."""
    for each in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = each.get("state", {}).get("waiting", {})
        if (reason := WAITING_REASONS.get(waiting.get("reason", ""))) is not None:
            return reason, f"{waiting['reason']}: {waiting.get('message', each.get('image', ''))}"
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return "Unschedulable", scheduled.get("message", "no node fits")
    return None


def read_view(found: JobStatus, store: str) -> CoordinatorView:
    """Return the coordinator's view of a job."""
    states = Counter(member.state for member in found.members)
    active = Counter(member.agent for member in found.members if member.state is MemberState.ACTIVE)
    ready = Counter(each.agent for each in found.members if each.state in (MemberState.ACTIVE, MemberState.SPARE))
    holding = {member.agent for member in found.members if member.holds}
    agents = {
        str(each.id): AgentView(
            members=each.members,
            active=active[each.id],
            holds=each.id in holding,
            draining=each.draining,
            grace_s=each.grace_s,
            wanted=each.wanted,
            ready=ready[each.id],
            capacity=each.capacity,
        )
        for each in found.agents
    }
    return CoordinatorView(
        state=found.job.state.value,
        why=found.job.why,
        store=store,
        created_at=found.created_at,
        target=found.target.size,
        size=found.job.size,
        step=found.job.step,
        total_steps=found.job.total_steps,
        epoch=found.job.epoch,
        generation=found.job.generation,
        failures=found.failures,
        agents=agents,
        active=states[MemberState.ACTIVE],
        spare=states[MemberState.SPARE],
        joining=states[MemberState.JOINING],
        draining=states[MemberState.DRAINING],
        spec=found.spec,
        checkpoint_step=None if found.checkpoint is None else found.checkpoint.lineage.step,
        granted=found.granted,
        granted_why=found.granted_why,
        live=found.live,
        tables_whole=found.tables_whole,
    )


def seconds(text: str) -> float:
    """Return a time of the API server as seconds since the epoch."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()

"""Read API objects and the coordinator's answers into the values that `reconcile` takes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from pliant.core.model.view import MemberState
from pliant.kube.model import AgentView, CoordinatorView, ElasticJob, Pod, read_settings
from pliant.kube.names import (
    BASE,
    INDEX_LABEL,
    JOINED_ANNOTATION,
    ROLE_LABEL,
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
    taints = node_taints(nodes[node]) if node in nodes else frozenset()
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
        node_leaving=next((taint for taint in LEAVING_TAINTS if taint in taints), ""),
        disrupted=target.get("reason", "") if target.get("status") == "True" else "",
        joined=JOINED_ANNOTATION in notes,
        exit_code=exit_code,
        oom_limit=oom,
        problem=_problem(conditions, status),
        lost_since=lost_since.get(node, 0.0) if node else None,
    )


def node_taints(node: Object) -> frozenset[str]:
    return frozenset(taint["key"] for taint in node.get("spec", {}).get("taints", ()))


def lost_nodes(nodes: Iterable[Object]) -> dict[str, float]:
    """Return the nodes whose kubelet does not answer, with the time since when."""
    found = {}
    for node in nodes:
        conditions = {each["type"]: each for each in node.get("status", {}).get("conditions", ())}
        ready = conditions.get("Ready", {})
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
    holding = {member.agent for member in found.members if member.holds}
    agents = {
        str(each.id): AgentView(
            members=each.members,
            active=active[each.id],
            holds=each.id in holding,
            draining=each.draining,
            grace_s=each.grace_s,
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
    )


def seconds(text: str) -> float:
    """Return a time of the API server as seconds since the epoch."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()

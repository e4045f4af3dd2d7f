"""The manifest of a pod: the user's template, and what an agent needs. Pure."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from pliant.kube.manifests.companions import CA_KEY, TOKEN_KEY, claim_name, owner, token_secret
from pliant.kube.model import ElasticJob, RoleSpec
from pliant.kube.names import (
    BASE,
    INDEX_LABEL,
    PARAMETER_SERVER,
    ROLE_LABEL,
    TEMPLATE_ANNOTATION,
    TIER_LABEL,
    labels,
    pod_name,
)

STOP_S = 15  # beyond the grace period of the workers: the agent reports and ends
FS_GROUP = 65532  # of pods that name none; Secrets and volumes belong to it
JOIN_VOLUME, HOME_VOLUME, SHM_VOLUME, CHECKPOINT_VOLUME = (
    "pliant-join",
    "pliant-home",
    "pliant-shm",
    "pliant-checkpoints",
)
JOIN_PATH, HOME_PATH, SHM_PATH, CHECKPOINT_PATH = "/run/pliant/join", "/run/pliant/home", "/dev/shm", "/checkpoints"


@dataclass(frozen=True, slots=True)
class PodFacts:
    """Facts about the installation that go into every pod."""

    coordinator: str  # the URL of the coordinator for pods
    has_ca: bool


def pod_manifest(job: ElasticJob, role: RoleSpec, index: int, tier: str, facts: PodFacts) -> dict[str, Any]:
    """Return the manifest of one pod. What the user's template sets stays as it is, apart from names and restarts."""
    template = copy.deepcopy(dict(role.template))
    name = pod_name(job.name, role.role, index)
    meta = template.get("metadata") or {}
    spec: dict[str, Any] = template["spec"]
    spec["restartPolicy"] = "Never"
    spec["terminationGracePeriodSeconds"] = job.spec.grace_s + STOP_S
    spec.setdefault("automountServiceAccountToken", False)
    spec.setdefault("enableServiceLinks", False)
    spec.setdefault("hostname", name)
    spec.setdefault("subdomain", job.name)
    if chosen := job.spec.priority_class if tier == BASE else job.spec.surplus_class or job.spec.priority_class:
        spec["priorityClassName"] = chosen
    security = spec["securityContext"] = spec.get("securityContext") or {}  # a part may be null
    security.setdefault("runAsNonRoot", True)
    security.setdefault("fsGroup", FS_GROUP)
    security.setdefault("fsGroupChangePolicy", "OnRootMismatch")
    security.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    spec["volumes"] = [*(spec.get("volumes") or ()), *_volumes(job, facts)]
    first = spec.get("initContainers") or ()
    for number, container in enumerate([*first, *spec["containers"]]):
        own = container["securityContext"] = container.get("securityContext") or {}
        own.setdefault("allowPrivilegeEscalation", False)
        own.setdefault("capabilities", {"drop": ["ALL"]})
        if number == len(first):
            _prepare(container, job, role, name, facts)
    fixed = labels(job.name, **{ROLE_LABEL: role.role, INDEX_LABEL: str(index), TIER_LABEL: tier})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": {**(meta.get("labels") or {}), **fixed},
            "annotations": {**(meta.get("annotations") or {}), TEMPLATE_ANNOTATION: role.hash},
            "ownerReferences": [owner(job)],
        },
        "spec": spec,
    }


def _prepare(container: dict[str, Any], job: ElasticJob, role: RoleSpec, name: str, facts: PodFacts) -> None:
    """Add the environment and the volumes of the agent to the first container."""
    given = container.get("env") or ()
    chosen = {each["name"] for each in given}
    environment = _environment(job, role, name, facts)
    added = [{"name": key, "value": value} for key, value in environment.items() if key not in chosen]
    container["env"] = [*given, *added]
    mounted = container.get("volumeMounts") or ()
    taken = {each["mountPath"] for each in mounted}
    wanted = {JOIN_VOLUME: JOIN_PATH, HOME_VOLUME: HOME_PATH, SHM_VOLUME: SHM_PATH}
    if _claim(job) is not None:
        wanted[CHECKPOINT_VOLUME] = CHECKPOINT_PATH
    mounts = [{"name": volume, "mountPath": path} for volume, path in wanted.items() if path not in taken]
    container["volumeMounts"] = [*mounted, *mounts]


def _environment(job: ElasticJob, role: RoleSpec, name: str, facts: PodFacts) -> dict[str, str]:
    found = {
        "PLIANT_COORDINATOR": facts.coordinator,
        "PLIANT_TOKEN_FILE": f"{JOIN_PATH}/{TOKEN_KEY}",
        "PLIANT_JOB": job.key,
        "PLIANT_AGENT": name,
        "PLIANT_HOME": f"{HOME_PATH}/agent",  # kubelets make the volume itself writable for everyone
        "PLIANT_GRACE_S": str(job.spec.grace_s),
        "PET_NPROC_PER_NODE": str(role.processes),
    }
    if facts.has_ca:
        found["PLIANT_CA_FILE"] = f"{JOIN_PATH}/{CA_KEY}"
    if job.spec.is_task_queue and role.role == PARAMETER_SERVER:
        found |= {"PET_NPROC_PER_NODE": "0", "PLIANT_PS": "1"}
    if job.spec.seated_servers:
        found["PLIANT_ROLE"] = role.role
        found["PET_ROLE"] = f"{PARAMETER_SERVER}:{job.spec.server_count}"
    if _claim(job) is not None:
        found["PLIANT_CHECKPOINT_DIR"] = f"{CHECKPOINT_PATH}/{job.uid[:8]}"
    return found


def _claim(job: ElasticJob) -> str | None:
    return claim_name(job.name) if job.spec.claim_spec is not None else job.spec.claim


def _volumes(job: ElasticJob, facts: PodFacts) -> list[dict[str, Any]]:
    keys = [TOKEN_KEY, *([CA_KEY] if facts.has_ca else [])]
    items = [{"key": key, "path": key} for key in keys]
    secret = {"secretName": token_secret(job.name), "defaultMode": 0o440, "items": items}
    found: list[dict[str, Any]] = [
        {"name": JOIN_VOLUME, "secret": secret},
        {"name": HOME_VOLUME, "emptyDir": {}},
        {"name": SHM_VOLUME, "emptyDir": {"medium": "Memory"}},
    ]
    if (claim := _claim(job)) is not None:
        found.append({"name": CHECKPOINT_VOLUME, "persistentVolumeClaim": {"claimName": claim}})
    return found

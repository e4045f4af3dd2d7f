"""Names, labels and annotations of the objects that belong to an ElasticJob."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from pliant.core.model.names import NAME_MAX

GROUP = "pliant.dev"
VERSION = "v1alpha1"
KIND = "ElasticJob"
PLURAL = "elasticjobs"
OPERATOR = "pliant.dev/operator"
FINALIZER = "pliant.dev/coordinator"

JOB_LABEL = "pliant.dev/job"
ROLE_LABEL = "pliant.dev/role"
INDEX_LABEL = "pliant.dev/index"
TIER_LABEL = "pliant.dev/tier"
TEMPLATE_ANNOTATION = "pliant.dev/template"
JOINED_ANNOTATION = "pliant.dev/joined"
SLOTS_LABEL = "pliant.dev/slots"  # of a node: the workers of jobs in queues that it takes
SUBMISSION_LABEL = "pliant.dev/submission"
SUBMISSION_ANNOTATION = "pliant.dev/submission-number"  # with the identity of the store

WORKER = "worker"
PARAMETER_SERVER = "ps"
BASE, SURPLUS = "base", "surplus"  # pods up to `min`, and those beyond

_HASH_LENGTH = 8
_POD_NAME = re.compile(r"(w|ps)([1-9][0-9]*)")
_LETTERS = {WORKER: "w", PARAMETER_SERVER: "ps"}
_ROLES = {letter: role for role, letter in _LETTERS.items()}


def coordinator_name(namespace: str, name: str) -> str:
    """Return the name of an ElasticJob in the coordinator: NAMESPACE.NAME, or a part of it with a hash if too long."""
    whole = f"{namespace}.{name}"
    if len(whole) <= NAME_MAX:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{whole[: NAME_MAX - _HASH_LENGTH - 1].rstrip('-.')}-{digest}"


def pod_name(job: str, role: str, index: int) -> str:
    """Return the name of a pod, which is also that of its agent. An index is used once."""
    return f"{job}-{_LETTERS[role]}{index}"


def pod_index(job: str, pod: str) -> tuple[str, int] | None:
    """Return the role and index in the name of a pod; None if the name is not one of this job's."""
    found = _POD_NAME.fullmatch(pod.removeprefix(f"{job}-")) if pod.startswith(f"{job}-") else None
    return (_ROLES[found[1]], int(found[2])) if found else None


def labels(job: str, **more: str) -> dict[str, str]:
    """Return the labels of every object of a job."""
    common = {"app.kubernetes.io/name": "pliant", "app.kubernetes.io/managed-by": "pliant", JOB_LABEL: job}
    return {**common, **more}


def template_hash(template: Mapping[str, Any], *settings: object) -> str:
    """Return a short hash of a pod template and the settings that go into its pods."""
    text = json.dumps([template, *settings], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]

"""Objects of the API server for tests, as it sends them."""

from typing import Any

from pliant.kube.model import ElasticJob
from pliant.kube.names import INDEX_LABEL, JOB_LABEL, ROLE_LABEL, TEMPLATE_ANNOTATION, TIER_LABEL
from pliant.kube.observe import read_job

Object = dict[str, Any]


def job_object(workers: Object | None = None, **spec: Any) -> Object:
    template = {
        "spec": {"containers": [{"name": "main", "image": "trainer:1", "command": ["pliant", "run", "train.py"]}]}
    }
    return {
        "metadata": {
            "namespace": "research",
            "name": "digits",
            "uid": "0123456789abcdef",
            "resourceVersion": "12",
            "generation": 3,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"workers": {"min": 2, "max": 8, "target": 4, "template": template, **(workers or {})}, **spec},
    }


def elastic_job(workers: Object | None = None, **spec: Any) -> ElasticJob:
    return read_job(job_object(workers, **spec))


def pod_object(status: Object | None = None, node: str = "", **meta: Any) -> Object:
    labels = {JOB_LABEL: "digits", ROLE_LABEL: "worker", INDEX_LABEL: "7", TIER_LABEL: "surplus"}
    limits = {"resources": {"limits": {"memory": "2Gi"}}}
    return {
        "metadata": {
            "namespace": "research",
            "name": "digits-w7",
            "uid": "p7",
            "resourceVersion": "40",
            "creationTimestamp": "2026-01-01T00:01:00Z",
            "labels": labels,
            "annotations": {TEMPLATE_ANNOTATION: "abc"},
            **meta,
        },
        "spec": {"containers": [{"name": "main", **limits}], **({"nodeName": node} if node else {})},
        "status": {"phase": "Pending", **(status or {})},
    }


def node_object(name: str, ready: str = "True", *taints: str) -> Object:
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:05:00Z"}
    return {
        "metadata": {"name": name},
        "spec": {"taints": [{"key": taint} for taint in taints]},
        "status": {"conditions": [condition]},
    }

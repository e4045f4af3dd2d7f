"""A submission: an image, a command, a strategy and numbers become an ElasticJob. Pure.

Nothing of a pod's specification can be submitted. All else has the defaults of ElasticJob.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pliant.core.model.job import Mode
from pliant.core.submissions import Submission, bad_submission
from pliant.errors import BadInput
from pliant.kube.names import GROUP, KIND, SUBMISSION_ANNOTATION, SUBMISSION_LABEL, VERSION

DEFAULT_COMMAND = ("pliant", "run", "--env", "tf")  # runs exec.py in the image's working folder


def submitted_job(wanted: Submission, namespace: str, mark: str | None = None) -> dict[str, Any]:
    """Return the ElasticJob of a submission. Raises BadInput for one that cannot be used.

    `mark` tells two submissions to a coordinator with the same choices apart.
    """
    if wrong := bad_submission(wanted):
        raise BadInput(f"The submission cannot be used: {wrong}.")
    workers: dict[str, Any] = {
        "min": wanted.size_min,
        "max": wanted.size_max,
        "processesPerPod": wanted.processes,
        "template": _template(wanted),
    }
    if wanted.target is not None:
        workers["target"] = wanted.target
    spec: dict[str, Any] = {"strategy": "AllReduce", "workers": workers}
    if wanted.servers:
        spec["strategy"] = "ParameterServer"
        spec["parameterServers"] = {"count": wanted.servers, "template": _template(wanted)}
    if wanted.mode is not Mode.AUTO:
        spec["mode"] = wanted.mode.capitalize()
    if wanted.claim is not None:
        spec["checkpoints"] = {"claimName": wanted.claim}
    meta: dict[str, Any] = {"name": wanted.task, "namespace": namespace, "labels": {SUBMISSION_LABEL: wanted.task}}
    if mark is not None:
        meta["annotations"] = {SUBMISSION_ANNOTATION: mark}
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": meta, "spec": spec}


def _template(wanted: Submission) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "worker",
        "image": wanted.image,
        "command": list(wanted.command or DEFAULT_COMMAND),
    }
    if wanted.environment:
        container["env"] = [{"name": name, "value": value} for name, value in wanted.environment]
    if wanted.limits:
        container["resources"] = {"limits": dict(wanted.limits)}
    return {"spec": {"containers": [container]}}


def same_submission(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether an existing ElasticJob was submitted with the same choices. Its target may have changed since."""
    if SUBMISSION_LABEL not in found["metadata"].get("labels", {}):
        return False
    return _chosen(found["spec"]) == _chosen(wanted["spec"])


def _chosen(spec: Mapping[str, Any]) -> dict[str, Any]:
    workers = {key: spec["workers"][key] for key in ("min", "max", "processesPerPod", "template")}
    return {
        "workers": workers,
        "strategy": spec["strategy"],
        "mode": spec.get("mode", "Auto"),
        "servers": (spec.get("parameterServers") or {}).get("count"),
        "claim": (spec.get("checkpoints") or {}).get("claimName"),
    }


def describe_job(item: Mapping[str, Any]) -> str:
    """Return one line about a job: its state, its workers, its step, and why."""
    status, spec = item.get("status", {}), item["spec"]["workers"]
    counts, progress = status.get("workers", {}), status.get("progress", {})
    state = status.get("state", "not seen by an operator yet")
    size = f"{counts.get('active', 0)} of {spec.get('target', spec['max'])} workers"
    step = f", step {progress['step']}" if "step" in progress else ""
    why = f": {status['reason']}" if status.get("reason") else ""
    return f"{item['metadata']['name']} is {state} ({size}{step}){why}"

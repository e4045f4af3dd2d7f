"""ElasticJob on a real API server: its rules and the scale subresource."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest

from kube.cluster.control_plane import ControlPlane

PATH = "/apis/pliant.dev/v1alpha1/namespaces/{}/elasticjobs"


def elastic_job(name: str = "job", **changes: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "worker", "image": "none:1", "command": ["pliant", "run", "x.py"]}]}}
    workers = {"min": 1, "max": 4, "target": 2, "template": template, **changes.pop("workers", {})}
    spec = {"workers": {key: value for key, value in workers.items() if value is not None}, **changes}
    return {"apiVersion": "pliant.dev/v1alpha1", "kind": "ElasticJob", "metadata": {"name": name}, "spec": spec}


def create(plane: ControlPlane, namespace: str, job: Mapping[str, Any]) -> httpx2.Response:
    return plane.http().post(PATH.format(namespace), json=job)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (elastic_job(workers={"min": 5}), "min must not exceed max"),
        (elastic_job(workers={"target": 5}), "target must lie between min and max"),
        (elastic_job(workers={"sizes": [2, 4]}), "sizes must contain min"),
        (elastic_job(strategy="ParameterServer"), "parameterServers is required"),
        (elastic_job("n" * 41), "at most 40 characters"),
        (elastic_job("2024-run"), "must begin with a letter"),
        (elastic_job("a.b"), "must begin with a letter"),
        (elastic_job(workers={"min": 0}), "spec.workers.min"),
        (elastic_job(workers={"template": {}}), "spec.workers.template.spec"),
        (elastic_job(workers={"template": {"spec": {"containers": []}}}), "spec.workers.template.spec.containers"),
    ],
)
def test_the_api_server_refuses_a_wrong_job_with_our_words(
    jobs_plane: ControlPlane, namespace: str, job: dict[str, Any], message: str
) -> None:
    answer = create(jobs_plane, namespace, job)
    assert answer.status_code == 422
    assert message in answer.json()["message"]


def test_scale_changes_the_target_within_its_limits(jobs_plane: ControlPlane, namespace: str) -> None:
    create(jobs_plane, namespace, elastic_job()).raise_for_status()
    jobs_plane.kubectl("-n", namespace, "scale", "elasticjob/job", "--replicas=4")
    found = jobs_plane.get("-n", namespace, "elasticjob", "job")
    assert found["spec"]["workers"]["target"] == 4
    refused = jobs_plane.kubectl("-n", namespace, "scale", "elasticjob/job", "--replicas=5", code=1)
    assert "target must lie between min and max" in refused


def test_strategy_cannot_change(jobs_plane: ControlPlane, namespace: str) -> None:
    create(jobs_plane, namespace, elastic_job()).raise_for_status()
    servers = {"count": 1, "template": elastic_job()["spec"]["workers"]["template"]}
    patch = json.dumps({"spec": {"strategy": "ParameterServer", "parameterServers": servers}})
    said = jobs_plane.kubectl("-n", namespace, "patch", "ej/job", "--type=merge", "-p", patch, code=1)
    assert "strategy is immutable" in said

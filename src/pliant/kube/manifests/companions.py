"""Manifests of the objects beside the pods: Service, NetworkPolicy, PodDisruptionBudget, claim and Secret. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pliant.kube.model import ElasticJob
from pliant.kube.names import GROUP, JOB_LABEL, KIND, PARAMETER_SERVER, ROLE_LABEL, VERSION, WORKER, labels

TOKEN_KEY, CA_KEY = "token", "ca.pem"


def token_secret(job: str) -> str:
    return f"{job}-join"


def claim_name(job: str) -> str:
    return f"{job}-checkpoints"


def owner(job: ElasticJob) -> dict[str, Any]:
    """Return the reference that lets Kubernetes remove an object together with its ElasticJob."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def owners(item: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the uids of an object's owners."""
    return tuple(str(each.get("uid")) for each in item["metadata"].get("ownerReferences") or ())


def is_own(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether an object is the wanted one, and not one of another owner with the same name.

    An object that outlives its ElasticJob has no owner. Its label tells that the operator made it.
    """
    if wanted_owners := owners(wanted):
        return any(uid in wanted_owners for uid in owners(found))
    mark = (found["metadata"].get("labels") or {}).get(JOB_LABEL)
    return bool(mark == wanted["metadata"]["labels"][JOB_LABEL])


def metadata(job: ElasticJob, name: str, *, owned: bool = True, **more: str) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "namespace": job.namespace, "labels": labels(job.name, **more)}
    return {**found, "ownerReferences": [owner(job)]} if owned else found


def companion_objects(job: ElasticJob) -> tuple[dict[str, Any], ...]:
    """Return the objects that a job needs besides its pods."""
    budgets = [budget(job, WORKER, job.spec.base_pods)]
    if job.spec.servers is not None:
        # Pliant's own servers keep two copies of each row, so one of several may go.
        spare = 1 if job.spec.is_task_queue and job.spec.server_count > 1 else 0
        budgets.append(budget(job, PARAMETER_SERVER, job.spec.server_count - spare))
    claims = [claim(job)] if job.spec.claim_spec is not None else []
    guarded = budgets if job.spec.eviction != "Never" else []
    return (service(job), network_policy(job), *guarded, *claims)


def service(job: ElasticJob) -> dict[str, Any]:
    """Return the headless Service that gives each pod a name: POD.JOB.NAMESPACE.svc."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, job.name),
        "spec": {"clusterIP": "None", "selector": {JOB_LABEL: job.name}, "publishNotReadyAddresses": True},
    }


def network_policy(job: ElasticJob) -> dict[str, Any]:
    """Return the policy by which only pods of the same job reach one another: NCCL does not encrypt."""
    own = {"matchLabels": {JOB_LABEL: job.name}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, job.name),
        "spec": {"podSelector": own, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": own}]}]},
    }


def budget(job: ElasticJob, role: str, least: int) -> dict[str, Any]:
    """Return the budget that lets evictions pass down to the minimum."""
    least = job.spec.wanted_pods(role) if job.spec.eviction == "Always" else least
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(job, f"{job.name}-{role}"),
        "spec": {
            "minAvailable": least,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": {JOB_LABEL: job.name, ROLE_LABEL: role}},
        },
    }


def claim(job: ElasticJob) -> dict[str, Any]:
    """Return the claim for checkpoints. It outlives the job, unless its deletion was asked for."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(job, claim_name(job.name), owned=False),
        "spec": dict((job.spec.claim_spec or {}).get("spec") or {}),
    }


def secret(job: ElasticJob, token: str, ca: str | None) -> dict[str, Any]:
    """Return the Secret with which the pods of a job join it."""
    data = {TOKEN_KEY: f"{token}\n", **({} if ca is None else {CA_KEY: ca})}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, token_secret(job.name)),
        "type": "Opaque",
        "stringData": data,
    }

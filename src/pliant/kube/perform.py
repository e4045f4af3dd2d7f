"""Carry out the actions of `reconcile`: one call to an API for each. No decisions."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, assert_never

from pliant.client import Client
from pliant.core.messages import Cancel, Code, Create, DrainAgent, Resize
from pliant.core.model.job import Target
from pliant.core.model.names import AgentId
from pliant.errors import Refused
from pliant.kube import actions as a
from pliant.kube.api import KubeApi, NameTaken
from pliant.kube.manifests import companions
from pliant.kube.manifests.pods import PodFacts, pod_manifest
from pliant.kube.model import ElasticJob
from pliant.kube.names import FINALIZER, GROUP, JOINED_ANNOTATION, KIND, VERSION, pod_name
from pliant.wire.api import Scope, TokenRequest

log = logging.getLogger(__name__)

ENSURED_S = 300.0  # an object that was there is looked for again after this time
MESSAGE_MAX = 1000
REVISIONS_KEPT = 1000


class Performer:
    """Carries out actions. It remembers which objects it saw lately, to save calls."""

    def __init__(self, api: KubeApi, client: Client, coordinator_for_pods: str, ca_file: Path | None) -> None:
        self._api = api
        self._client = client
        self._ca_file = ca_file
        self._facts = PodFacts(coordinator_for_pods, ca_file is not None)
        self._ensured: dict[tuple[str, str], float] = {}
        self.own_revisions: deque[str] = deque(maxlen=REVISIONS_KEPT)  # of objects that this operator wrote itself

    def undone(self, job: ElasticJob, actions: tuple[a.Action, ...]) -> tuple[a.Action, ...]:
        """Return the actions without objects that were there a short time ago."""
        return tuple(each for each in actions if not self._is_ensured(job, _mark(each)))

    def perform(self, job: ElasticJob, item: dict[str, Any], action: a.Action) -> None:
        """Carry out one action. `item` is the object as the API server last sent it, and is kept up to date.

        Raises PliantError if it failed.
        """
        match action:
            case a.AddFinalizer():
                self._patch(item, {"metadata": {"finalizers": [*job.finalizers, FINALIZER]}})
            case a.RemoveFinalizer():
                rest = [each for each in job.finalizers if each != FINALIZER]
                self._patch(item, {"metadata": {"finalizers": rest or None}})
            case a.FillTarget(target):
                self._patch(item, {"spec": {"workers": {"target": target}}})
            case a.EnsureObject(manifest):
                self._api.ensure(manifest)
                self._note(job, _mark(action))
            case a.EnsureToken():
                self._ensure_token(job)
                self._note(job, _mark(action))
            case a.WriteStatus(status):
                self._write_status(item, status)
            case a.CreatePod(role, index, tier):
                spec = next(each for each in job.spec.roles if each.role == role)
                if self._api.create_own(pod_manifest(job, spec, index, tier, self._facts)):
                    log.info("%s: created pod %s", job.key, pod_name(job.name, role, index))
            case a.DeletePod(pod, uid, why, revision, force):
                self._api.delete_pod(job.namespace, pod, uid, revision, force=force)
                log.info("%s: deleted pod %s: %s", job.key, pod, why)
            case a.MarkJoined(pod, uid):
                self._api.annotate_pod(job.namespace, pod, uid, {JOINED_ANNOTATION: "true"})
            case a.DeleteObject():
                self._api.delete(KIND, job.namespace, job.name, job.uid)
            case a.DeleteClaim():
                self._delete_claim(job)
            case a.PublishEvent():
                self._announce(job, action)
            case a.CreateJob() | a.ResizeJob() | a.CancelJob() | a.ForgetJob() | a.DrainPod():
                self._command(job, action)
            case _:
                assert_never(action)

    # --------------------------------------------------------------------------------------- the coordinator

    def _command(
        self, job: ElasticJob, action: a.CreateJob | a.ResizeJob | a.CancelJob | a.ForgetJob | a.DrainPod
    ) -> None:
        """Send a command. A refusal that means it is done already is no failure."""
        try:
            match action:
                case a.CreateJob(spec, only_settings):
                    self._client.send(job.key, Create(job.key, spec, only_settings=only_settings))
                case a.ResizeJob(target):
                    self._client.send(job.key, Resize(Target(target)))
                case a.CancelJob(why, failed):
                    self._client.send(job.key, Cancel(why, failed))
                case a.ForgetJob():
                    self._client.delete(job.key)
                case a.DrainPod(pod, grace_s, why, immediate):
                    self._client.send(job.key, DrainAgent(AgentId(pod), grace_s, why, immediate, leave=True))
                    log.info("%s: asked %s to leave within %.0f s: %s", job.key, pod, grace_s, why)
                case _:
                    assert_never(action)
        except Refused as error:
            if error.code not in (Code.UNKNOWN, Code.ENDED, Code.NO_JOB):
                raise

    def _ensure_token(self, job: ElasticJob) -> None:
        """Make the Secret of a job. A token that is made and not stored ends with its job."""
        if self._api.find_own(companions.secret(job, "", None)) is None:
            request = TokenRequest(Scope.JOIN, job.key, label=f"pods of {job.key}", until_job_ends=True)
            made = self._client.create_token(request)
            ca = None if self._ca_file is None else self._ca_file.read_text(encoding="ascii")
            self._api.create_own(companions.secret(job, made.token, ca))

    # ---------------------------------------------------------------------------------------- the API server

    def _delete_claim(self, job: ElasticJob) -> None:
        """Delete the claim that the operator made. A claim of another owner stays."""
        with suppress(NameTaken):
            if (found := self._api.find_own(companions.claim(job))) is not None:
                meta = found["metadata"]
                self._api.delete("PersistentVolumeClaim", job.namespace, meta["name"], meta["uid"])

    def _patch(self, item: dict[str, Any], patch: Mapping[str, Any]) -> None:
        """Change the ElasticJob, if it is still the one that was read."""
        meta = item["metadata"]
        guarded = {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": meta["resourceVersion"]}}
        item.update(self._api.patch_job(meta["namespace"], meta["name"], guarded))

    def _write_status(self, item: dict[str, Any], status: Mapping[str, Any]) -> None:
        item.update(self._api.replace_status({**item, "status": status}))
        self.own_revisions.append(item["metadata"]["resourceVersion"])

    def _is_ensured(self, job: ElasticJob, mark: str) -> bool:
        return time.monotonic() - self._ensured.get((job.uid, mark), -ENSURED_S) < ENSURED_S

    def _note(self, job: ElasticJob, mark: str) -> None:
        self._ensured[job.uid, mark] = time.monotonic()
        if len(self._ensured) > 10_000:
            old = [key for key, at in self._ensured.items() if time.monotonic() - at > ENSURED_S]
            for key in old:
                del self._ensured[key]

    def _announce(self, job: ElasticJob, event: a.PublishEvent) -> None:
        """Publish an event. Events are for people, so a failure is logged and forgotten."""
        now = datetime.now(UTC)
        told = f"{job.uid}{event.reason}{event.message}{int(now.timestamp())}"
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        manifest = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{job.name}.{hashlib.sha256(told.encode()).hexdigest()[:16]}",
                "namespace": job.namespace,
            },
            "involvedObject": {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": KIND,
                "name": job.name,
                "namespace": job.namespace,
                "uid": job.uid,
            },
            "reason": event.reason,
            "message": event.message[:MESSAGE_MAX],
            "type": "Warning" if event.warning else "Normal",
            "source": {"component": "pliant-operator"},
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        self._api.create(manifest)


def _mark(action: a.Action) -> str:
    """Return what tells one object that must exist from others; empty for all other actions."""
    return repr(action) if isinstance(action, a.EnsureObject | a.EnsureToken) else ""

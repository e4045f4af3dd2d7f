"""An operator whose calls are answered from memory: for its shell, not for the behaviour of an API server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import httpx2

from pliant.client import Client
from pliant.core.messages import Command
from pliant.credentials import Token
from pliant.errors import Unreachable
from pliant.kube.api import KubeApi, Listing
from pliant.kube.model import CoordinatorView
from pliant.kube.names import FINALIZER
from pliant.kube.operator import Operator
from pliant.kube.perform import Performer
from pliant.kube.reconcile import job_spec
from pliant.wire import api
from unit.kube.objects import Object, elastic_job, job_object

NOW = 1_767_225_700.0  # a little after the objects were created


class AnsweringApi(KubeApi):
    """Lists and objects from memory. It keeps what is written."""

    def __init__(self, *jobs: Object, pods: tuple[Object, ...] = ()) -> None:
        super().__init__(httpx2.Client())
        self.listed, self.listed_pods = list(jobs), pods
        self.objects: dict[tuple[str, str], Object] = {}
        self.refuse: Callable[[Mapping[str, Any]], None] = lambda _manifest: None

    def jobs(self) -> Listing:
        return Listing(tuple(self.listed), 1000)

    def pods(self) -> Listing:
        return Listing(self.listed_pods, 1000)

    def nodes(self) -> Listing:
        return Listing((), 1000)

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        return self.objects.get((kind, name))

    def create(self, manifest: Mapping[str, Any]) -> bool:
        self.refuse(manifest)
        meta = manifest["metadata"]
        key = (manifest["kind"], meta["name"])
        if key in self.objects:
            return False
        self.objects[key] = {**manifest}
        return True

    def replace_status(self, item: Mapping[str, Any]) -> Object:
        [found] = [each for each in self.listed if each["metadata"]["uid"] == item["metadata"]["uid"]]
        found["status"] = item["status"]
        return found

    def delete(self, kind: str, namespace: str, name: str, uid: str | None = None) -> None:
        del self.objects[kind, name]

    def _patch(self, path: str, patch: Mapping[str, Any]) -> Object:
        return {}

    def made(self, kind: str) -> set[str]:
        return {name for found, name in self.objects if found == kind}


class AnsweringClient(Client):
    """A coordinator that leads. Without views of its own it has no jobs; `sent` are the commands."""

    def __init__(self) -> None:
        super().__init__(["http://localhost:1"], Token("id", "secret"), patience_s=0.0)
        self.sent: list[tuple[str, Command]] = []
        self.tokens_made = 0
        self.lines: tuple[api.JobLine, ...] = ()
        self.trouble: dict[str, Exception] = {}

    def about(self, patience_s: float | None = None) -> api.About:
        raise Unreachable("It does not answer yet.")

    def jobs(self) -> tuple[api.JobLine, ...]:
        self._fail("jobs")
        return self.lines

    def job(self, name: str) -> api.JobStatus:
        self._fail(name)
        raise AssertionError(name)

    def send(self, job: str, command: Command, patience_s: float | None = None) -> api.Done:
        self.sent.append((job, command))
        return api.Done(1)

    def create_token(self, request: api.TokenRequest) -> api.CreatedToken:
        self.tokens_made += 1
        line = api.TokenLine("id", request.scope, request.job, "", NOW, None, ended=False)
        return api.CreatedToken(f"pliant_{self.tokens_made}", line)

    def report_submission(self, task: str, body: api.SubmissionReport) -> api.SubmissionLine:
        self._fail(task)
        raise AssertionError(task)

    def _fail(self, what: str) -> None:
        if what in self.trouble:
            raise self.trouble[what]


def waiting_view() -> CoordinatorView:
    """The coordinator's view of a job that waits for its first agents."""
    spec = job_spec(elastic_job().spec)
    return CoordinatorView("waiting", "it waits", "store", 5.0, 4, 0, 0, None, 0, 1, 0, {}, spec=spec)


def ready_job(name: str = "digits", **spec: Any) -> Object:
    """An ElasticJob whose coordinator's job an operator has made."""
    item = job_object(**spec)
    item["metadata"] |= {"name": name, "uid": f"uid-of-{name}", "finalizers": [FINALIZER]}
    item["status"] = {"coordinatorJob": waiting_view().identity}
    return item


def operator_of(api: AnsweringApi, client: AnsweringClient) -> Operator:
    performer = Performer(api, client, "https://pliant.pliant-system.svc:7711", None)
    return Operator(api, client, performer, clock=lambda: NOW)

"""A coordinator whose refusals a test chooses: a real one gives them only in a race."""

from __future__ import annotations

import httpx2

from pliant.client import Client
from pliant.core.messages import Command
from pliant.credentials import Token
from pliant.kube.api import KubeApi
from pliant.kube.model import CoordinatorView
from pliant.kube.reconcile import job_spec
from pliant.wire import api
from unit.kube.objects import elastic_job

NOW = 1_767_225_700.0  # a little after the objects were created


class AnsweringClient(Client):
    """A coordinator that has the jobs in `lines`, and fails as `trouble` tells. `sent` are the commands."""

    def __init__(self) -> None:
        super().__init__(["http://localhost:1"], Token("id", "secret"), patience_s=0.0)
        self.sent: list[tuple[str, Command]] = []
        self.lines: tuple[api.JobLine, ...] = ()
        self.trouble: dict[str, Exception] = {}

    def jobs(self) -> tuple[api.JobLine, ...]:
        return self.lines

    def job(self, name: str, patience_s: float | None = None) -> api.JobStatus:
        raise self.trouble[name]

    def send(self, job: str, command: Command, patience_s: float | None = None) -> api.Done:
        self.sent.append((job, command))
        return api.Done(1)

    def report_submission(self, task: str, body: api.SubmissionReport) -> api.SubmissionLine:
        raise self.trouble[task]


def unused_api() -> KubeApi:
    """An API server for code that does not call it: there is none at this address."""
    return KubeApi(httpx2.Client(base_url="http://localhost:1", trust_env=False))


def waiting_view() -> CoordinatorView:
    """The coordinator's view of a job that waits for its first agents."""
    spec = job_spec(elastic_job().spec)
    return CoordinatorView("waiting", "it waits", "store", 5.0, 4, 0, 0, None, 0, 1, 0, {}, spec=spec)

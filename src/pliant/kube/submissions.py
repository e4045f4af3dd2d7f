"""Follow the submissions at the coordinator: create an ElasticJob for each, delete it on request, and report.

`plan_submissions` decides and is pure. It reads the submissions first and the ElasticJobs afterwards, so a job that is
missing there was deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pliant.client import Client
from pliant.core.messages import Code
from pliant.core.submissions import SubmissionState
from pliant.errors import PliantError, Refused, Unreachable
from pliant.kube.api import ApiRefused, ApiUnreachable, KubeApi
from pliant.kube.names import KIND, SUBMISSION_ANNOTATION, coordinator_name
from pliant.kube.submission import describe_job, submitted_job
from pliant.wire.api import OpenSubmission, SubmissionReport

log = logging.getLogger(__name__)

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CreateSubmitted:
    """Create the ElasticJob of a submission, and report it."""

    number: int
    manifest: Object


@dataclass(frozen=True, slots=True)
class DeleteSubmitted:
    """Delete the ElasticJob of a submission that was stopped."""

    task: str
    uid: str


@dataclass(frozen=True, slots=True)
class ReportSubmission:
    """Report to the coordinator. `only_status`: nothing but the line about the job is new."""

    task: str
    body: SubmissionReport
    only_status: bool = False


SubmissionAction = CreateSubmitted | DeleteSubmitted | ReportSubmission


def plan_submissions(
    entries: Sequence[OpenSubmission], jobs: Iterable[Object], namespace: str, store: str
) -> tuple[SubmissionAction, ...]:
    """Return the next actions for all submissions that are not over. `store` is the identity of the coordinator's."""
    mine = {each["metadata"]["name"]: each for each in jobs if each["metadata"]["namespace"] == namespace}
    found = (_plan(each, mine.get(each.line.task), namespace, store) for each in entries)
    return tuple(action for action in found if action is not None)


def _plan(entry: OpenSubmission, item: Object | None, namespace: str, store: str) -> SubmissionAction | None:
    line = entry.line
    meta: Object = {} if item is None else item["metadata"]
    is_own = meta.get("annotations", {}).get(SUBMISSION_ANNOTATION) == _mark(store, line.number)
    job = coordinator_name(namespace, line.task)
    if line.state is SubmissionState.ACCEPTED:
        if entry.wanted is not None and item is None:
            return CreateSubmitted(line.number, submitted_job(entry.wanted, namespace, _mark(store, line.number)))
        if is_own:
            return _report(entry, SubmissionState.CREATED, "the operator created its job", job)
        if "deletionTimestamp" in meta:
            return None  # an earlier job of that name is about to go
        why = f"there is another job {line.task} in the cluster; choose another name"
        return _report(entry, SubmissionState.REFUSED, why)
    if item is None or not is_own:
        why = "it was stopped" if line.state is SubmissionState.STOPPING else "its job was deleted"
        return _report(entry, SubmissionState.ENDED, why)
    if line.state is SubmissionState.STOPPING and "deletionTimestamp" not in meta:
        return DeleteSubmitted(line.task, meta["uid"])
    if (status := describe_job(item)) != line.status:
        body = SubmissionReport(line.number, line.state, line.why, job, status)
        return ReportSubmission(line.task, body, only_status=True)
    return None


def _report(entry: OpenSubmission, state: SubmissionState, why: str, job: str = "") -> ReportSubmission:
    return ReportSubmission(entry.line.task, SubmissionReport(entry.line.number, state, why, job, entry.line.status))


def _mark(store: str, number: int) -> str:
    return f"{store}.{number}"


class SubmissionFollower:
    """The operator's part in submissions: all jobs that it creates are in one namespace."""

    def __init__(self, api: KubeApi, client: Client, namespace: str) -> None:
        self._api = api
        self._client = client
        self._namespace = namespace

    def read(self) -> tuple[OpenSubmission, ...]:
        """Return the submissions that are not over; none if the coordinator does not answer."""
        try:
            return self._client.submissions()
        except PliantError as error:
            log.info("the submissions were not read: %s", error.why)
            return ()

    def plan(self, entries: Sequence[OpenSubmission], jobs: Iterable[Object]) -> tuple[SubmissionAction, ...]:
        return plan_submissions(entries, jobs, self._namespace, self._client.store or "")

    def perform(self, actions: Iterable[SubmissionAction]) -> None:
        """Carry out actions. A refusal of one leaves the others; the next turn tries again."""
        for action in actions:
            try:
                self._perform(action)
            except ApiUnreachable:
                raise
            except Unreachable as error:
                log.info("the submissions were not reported: %s", error.why)
                return
            except PliantError as error:
                log.warning("%s failed: %s", type(action).__name__, error.why)

    def _perform(self, action: SubmissionAction) -> None:
        match action:
            case CreateSubmitted(number, manifest):
                self._create(number, manifest)
            case DeleteSubmitted(task, uid):
                self._api.delete(KIND, self._namespace, task, uid)
                log.info("deleted the submitted job %s", task)
            case ReportSubmission(task, body):
                self._client.report_submission(task, body)

    def _create(self, number: int, manifest: Object) -> None:
        """Create a job and report it. One whose submission is over by now is deleted again."""
        task = manifest["metadata"]["name"]
        try:
            if not self._api.create(manifest):
                return
        except ApiRefused as error:
            why = f"the cluster refused it: {error.why}"
            self._client.report_submission(task, SubmissionReport(number, SubmissionState.REFUSED, why))
            return
        log.info("created the submitted job %s", task)
        job = coordinator_name(self._namespace, task)
        body = SubmissionReport(number, SubmissionState.CREATED, "the operator created its job", job)
        try:
            self._client.report_submission(task, body)
        except Refused as error:
            if error.code not in (Code.PAST, Code.UNKNOWN):
                raise
            item = self._api.get(KIND, self._namespace, task)
            if item is not None:
                self._api.delete(KIND, self._namespace, task, item["metadata"]["uid"])

"""The operator's plan for submissions, from every state and with every kind of object in the cluster."""

from typing import Any

import pytest

from pliant.core.submissions import Submission, SubmissionState
from pliant.kube.submission import describe_job, submitted_job
from pliant.kube.submissions import (
    CreateSubmitted,
    DeleteSubmitted,
    ReportSubmission,
    SubmissionAction,
    plan_submissions,
)
from pliant.wire.api import OpenSubmission, SubmissionLine

WANTED = Submission("digits", "trainer:1", 1, 8, target=2)
GOING_ON = [SubmissionState.ACCEPTED, SubmissionState.CREATED, SubmissionState.STOPPING]


def entry(state: SubmissionState, status: str = "") -> OpenSubmission:
    line = SubmissionLine(7, "digits", state, "so", "", status, 0.0)
    return OpenSubmission(line, WANTED if state is SubmissionState.ACCEPTED else None)


def job(mark: str = "store.7", *, deleting: bool = False, namespace: str = "research") -> dict[str, Any]:
    made = submitted_job(WANTED, namespace, mark)
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}
    return {**made, "metadata": {**made["metadata"], "uid": "u1", **gone}}


def planned(of: OpenSubmission, *jobs: dict[str, Any]) -> SubmissionAction | None:
    actions = plan_submissions([of], jobs, "research", "store")
    assert len(actions) <= 1
    return actions[0] if actions else None


def reported(action: SubmissionAction | None) -> tuple[SubmissionState, str]:
    assert isinstance(action, ReportSubmission)
    assert not action.only_status
    return action.body.state, action.body.why


def test_an_accepted_submission_becomes_a_job_that_bears_its_number() -> None:
    action = planned(entry(SubmissionState.ACCEPTED), job(namespace="elsewhere"))
    assert action == CreateSubmitted(7, submitted_job(WANTED, "research", "store.7"))


def test_a_job_that_was_created_before_the_operator_died_is_reported_and_not_created_again() -> None:
    action = planned(entry(SubmissionState.ACCEPTED), job())
    assert reported(action)[0] is SubmissionState.CREATED
    assert isinstance(action, ReportSubmission)
    assert action.body.job == "research.digits"


@pytest.mark.parametrize("mark", ["store.6", "other.7"])
def test_a_job_of_another_submission_or_store_is_never_taken_for_its_own(mark: str) -> None:
    state, why = reported(planned(entry(SubmissionState.ACCEPTED), job(mark)))
    assert (state, "another job digits" in why) == (SubmissionState.REFUSED, True)
    assert reported(planned(entry(SubmissionState.STOPPING), job(mark)))[0] is SubmissionState.ENDED


def test_a_name_that_is_about_to_be_free_is_waited_for() -> None:
    assert planned(entry(SubmissionState.ACCEPTED), job("store.6", deleting=True)) is None


def test_the_status_of_a_job_is_reported_once() -> None:
    action = planned(entry(SubmissionState.CREATED), job())
    assert isinstance(action, ReportSubmission)
    assert action.only_status
    assert action.body.status == describe_job(job())
    assert planned(entry(SubmissionState.CREATED, action.body.status), job()) is None


def test_a_job_that_was_deleted_ends_its_submission() -> None:
    assert reported(planned(entry(SubmissionState.CREATED))) == (SubmissionState.ENDED, "its job was deleted")


def test_a_stopped_submission_s_job_is_deleted_once_and_the_end_is_reported() -> None:
    assert planned(entry(SubmissionState.STOPPING), job()) == DeleteSubmitted("digits", "u1")
    waiting = planned(entry(SubmissionState.STOPPING, describe_job(job())), job(deleting=True))
    assert waiting is None
    assert reported(planned(entry(SubmissionState.STOPPING))) == (SubmissionState.ENDED, "it was stopped")

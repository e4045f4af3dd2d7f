"""The operator's shell at refusals of the coordinator. `tests/kube/api` has its behaviour at a real API server."""

import pytest

from pliant.core.messages import Create
from pliant.core.model.job import JobState
from pliant.core.submissions import SubmissionState
from pliant.errors import NotAllowed, Refused, Unreachable
from pliant.kube.actions import CreateJob
from pliant.kube.api import Listing
from pliant.kube.model import Absent, Unknown
from pliant.kube.observe import read_job
from pliant.kube.operator import Lists, make_operator
from pliant.kube.perform import Performer
from pliant.kube.reconcile import job_spec
from pliant.kube.submissions import ReportSubmission, SubmissionFollower
from pliant.wire.api import JobLine, SubmissionReport
from unit.kube.objects import Object, job_object
from unit.kube.stand_ins import NOW, AnsweringClient, unused_api


def named(name: str) -> Object:
    item = job_object()
    return {**item, "metadata": {**item["metadata"], "name": name}}


def line(name: str) -> JobLine:
    return JobLine(name, JobState.RUNNING, "", 0, 0, 1, 1, 1, 1, 0, None, 0, 1)


@pytest.mark.parametrize(("code", "why"), [("no-job", "The coordinator is changing."), ("bad", "Refused.")])
def test_a_job_that_the_coordinator_refuses_to_show_is_unknown_alone(code: str, why: str) -> None:
    client = AnsweringClient()
    client.lines = (line("research.bad"),)
    client.trouble["research.bad"] = Refused("Refused.", code)
    operator = make_operator(unused_api(), client, "https://x", None)
    none = Listing((), 1)
    views = operator._read_views(Lists(Listing((named("bad"), named("good")), 1), none, none, NOW))
    assert views == {"research.bad": Unknown(why), "research.good": Absent("")}


def report(task: str) -> ReportSubmission:
    return ReportSubmission(task, SubmissionReport(1, SubmissionState.CREATED, "so"))


def test_a_submission_that_is_refused_leaves_the_others_and_a_silent_coordinator_none() -> None:
    client = AnsweringClient()
    follower = SubmissionFollower(unused_api(), client, "research")
    client.trouble = {"a": NotAllowed("No."), "b": Unreachable("No answer.")}
    follower.perform([report("a"), report("b"), report("c")])  # the next turn tries the rest again


@pytest.mark.parametrize("only_settings", [True, False])
def test_the_coordinator_is_told_whether_settings_alone_may_change(only_settings: bool) -> None:
    item, client = job_object(), AnsweringClient()
    job = read_job(item)
    wanted = job_spec(job.spec)
    performer = Performer(unused_api(), client, "https://x", None)
    performer.perform(job, item, CreateJob(wanted, only_settings))
    assert client.sent == [("research.digits", Create("research.digits", wanted, only_settings=only_settings))]
